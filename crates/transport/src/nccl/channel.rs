//! One end of the channel that carries all messages from one rank to another. A thread passes the messages of all links
//! in this direction to the communicator, one at a time, in the order in which the stage enqueued them.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use stagecoach_kernels::device::{CudaContext, CudaError, CudaEvent, CudaStream, Timestamp};
use tch::Tensor;

use super::super::{Interrupt, LinkError, LinkId};
use super::communicator::{Communicator, CommunicatorEnd};
use super::turn::{Signal, SlotGuard, TransferSlot, read_signal, write_signal};
use crate::arrivals::ArrivedTensor;

/// The shortest and the longest interval between polls of a CUDA event. Between these limits, the interval is a
/// sixteenth of the time waited so far, which bounds both the delay and the work of polling.
const POLL_INTERVALS: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(200)];

/// The interval between checks for failures while a thread waits for a signal.
const SIGNAL_TIMEOUT: Duration = Duration::from_millis(1);

/// The time for which a message may still complete after the peer has closed its connection. The peer may have finished
/// the message before it closed the connection.
const PEER_CLOSED_GRACE: Duration = Duration::from_millis(500);

/// The time limit for a communicator to send its remaining messages, once the device has finished them.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// A tensor that the channel sends or fills.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) link: LinkId,
    pub(crate) tag: usize,
    pub(crate) tensor: Tensor,
    /// The queue to which the channel passes the tensor after a receive; `None` if no link waits for the tensor.
    pub(crate) arrivals: Option<mpsc::Sender<Result<ArrivedTensor, LinkError>>>,
}

/// The handle of a channel's thread. Dropping the handle waits for the thread. Before the thread ends, it sends its
/// remaining messages, or abandons its remaining receives.
#[derive(Debug)]
pub(crate) struct Channel {
    context: CudaContext,
    messages: Option<mpsc::Sender<(Message, CudaEvent)>>,
    failure: Arc<OnceLock<LinkError>>,
    /// Whether the handle was dropped.
    is_abandoned: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Configuration from which a channel starts.
#[derive(Debug)]
pub(super) struct ChannelConfig {
    pub(super) context: CudaContext,
    pub(super) communicator: Communicator,
    pub(super) end: CommunicatorEnd,
    /// The rank of this end.
    pub(super) rank: usize,
    /// The rank of the peer.
    pub(super) peer: usize,
    /// The sockets of the links. The sockets close when the peer's process ends. The first socket carries the signals
    /// of both ends ([`super::turn`]).
    pub(super) sockets: Vec<TcpStream>,
    /// The slot that permits one transfer at a time. All channels of the stage share it.
    pub(super) slot: Arc<TransferSlot>,
    /// The first failure among the stage's channels. All channels of the stage share this value, because later failures
    /// are consequences of the first one.
    pub(super) first_failure: Arc<OnceLock<LinkError>>,
    /// The interrupt that ends the thread once the group has failed.
    pub(super) interrupt: Interrupt,
}

impl Channel {
    pub(super) fn start(config: ChannelConfig) -> Result<Channel, CudaError> {
        let (messages, handed_over) = mpsc::channel();
        let failure: Arc<OnceLock<LinkError>> = Arc::default();
        let is_abandoned: Arc<AtomicBool> = Arc::default();
        let (context, stream) = (config.context, config.context.stream()?);
        let worker = ChannelThread {
            config,
            stream,
            is_abandoned: Arc::clone(&is_abandoned),
            current: None,
            peer_closed_at: None,
        };
        let failed = failure.clone();
        let thread = Some(std::thread::spawn(move || worker.run(&handed_over, &failed)));
        Ok(Channel { context, messages: Some(messages), failure, is_abandoned, thread })
    }

    /// Enqueues a message. Its transfer runs after the work that libtorch has queued so far.
    ///
    /// # Errors
    /// If an earlier message failed.
    pub(crate) fn enqueue(&self, message: Message) -> Result<(), LinkError> {
        let ready = self.context.record_default_stream()?;
        let link = message.link;
        let messages = self.messages.as_ref().and_then(|messages| messages.send((message, ready)).ok());
        messages.ok_or_else(|| LinkError::Broken(format!("the link for {link} is closed")))?;
        self.failure().map_or(Ok(()), Err)
    }

    /// Returns the reason why an earlier message failed, if any. After a failure, all received tensors may be wrong.
    pub(crate) fn failure(&self) -> Option<LinkError> {
        self.failure.get().cloned()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.messages = None;
        self.is_abandoned.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct ChannelThread {
    config: ChannelConfig,
    stream: CudaStream,
    is_abandoned: Arc<AtomicBool>,
    /// The message in transfer. The communicator uses the memory of its tensor until the transfer is done.
    current: Option<Message>,
    /// The time at which the thread first observed that the peer had closed a connection.
    peer_closed_at: Option<Instant>,
}

impl ChannelThread {
    fn run(mut self, handed_over: &mpsc::Receiver<(Message, CudaEvent)>, failure: &OnceLock<LinkError>) {
        // the iteration ends when the handle is dropped and all messages are done
        let ended = handed_over.iter().try_for_each(|(message, ready)| self.transfer(message, &ready));
        let ChannelThread { config, stream, current, .. } = self;
        let ChannelConfig { communicator, end, peer, sockets, first_failure, .. } = config;
        if let Err(why) = ended {
            let link = current.as_ref().map(|message| message.link.to_string());
            let (from_or_to, way) = match end {
                CommunicatorEnd::Sender => ("to", "send"),
                CommunicatorEnd::Receiver => ("from", "receive"),
            };
            let what = link.unwrap_or_else(|| format!("the tensors {from_or_to} stage {peer}"));
            let error = match why {
                device @ LinkError::Device(_) => device,
                why => {
                    let broken = || LinkError::Broken(format!("could not {way} {what}: {why}"));
                    first_failure.get_or_init(broken).clone()
                }
            };
            // the failure is set before the abort, because the abort lets the device continue with tensors that have
            // not arrived
            let _ = failure.set(error.clone());
            drop(communicator);
            let _ = stream.synchronize();
            close(&sockets);
            for message in current.into_iter().chain(handed_over.iter().map(|(message, _)| message)) {
                message.arrivals.map(|arrivals| arrivals.send(Err(error.clone())));
            }
            return;
        }
        communicator.finish(Instant::now() + FINISH_TIMEOUT);
        close(&sockets);
    }

    /// Passes a message to the communicator once both ends are ready for it, and returns when the transfer is done.
    fn transfer(&mut self, message: Message, ready: &CudaEvent) -> Result<(), LinkError> {
        let message = &*self.current.insert(message);
        let (tag, arrivals) = (message.tag, message.arrivals.clone());
        let tensor = message.tensor.shallow_clone();
        self.wait_until_complete(ready)?;
        // both ends skip the transfer of an empty tensor, which has no memory
        let turn = if tensor.numel() > 0 { Some(self.take_turn()?) } else { None };
        if turn.is_some() {
            let check_interrupt = || match self.config.interrupt.is_triggered() {
                true => Err("the group has ended".to_owned()),
                false => Ok(()),
            };
            self.config.communicator.transfer(&tensor, &self.stream, &check_interrupt).map_err(LinkError::Broken)?;
        }
        let done = Arc::new(self.stream.record()?);
        if let Some(arrivals) = arrivals {
            let arrival = ArrivedTensor { tag, tensor, at: Timestamp::Device(Arc::clone(&done)) };
            // the receiver of the arrival may have been dropped
            let _ = arrivals.send(Ok(arrival));
        }
        self.wait_until_complete(&done)?;
        self.current = None;
        Ok(())
    }

    /// Waits until both ends are ready, and until both stages have taken their slots. The lower rank takes its slot
    /// first, so that stages never wait for each other in a circle.
    fn take_turn(&mut self) -> Result<SlotGuard, LinkError> {
        self.write(Signal::Ready)?;
        self.read(Signal::Ready)?;
        let is_lower = self.config.rank < self.config.peer;
        if !is_lower {
            self.read(Signal::Go)?;
        }
        let slot = Arc::clone(&self.config.slot);
        let turn = slot.take(|| self.watch())?;
        self.write(Signal::Go)?;
        if is_lower {
            self.read(Signal::Go)?;
        }
        Ok(turn)
    }

    fn write(&self, signal: Signal) -> Result<(), LinkError> {
        write_signal(&self.config.sockets[0], signal).map_err(|error| self.closed(&error))
    }

    fn read(&mut self, signal: Signal) -> Result<(), LinkError> {
        loop {
            let received = read_signal(&self.config.sockets[0], SIGNAL_TIMEOUT).map_err(|error| self.closed(&error))?;
            match received {
                Some(received) if received == signal as u8 => return Ok(()),
                Some(other) => return Err(broken(format!("stage {} sent the signal {other}", self.config.peer))),
                None => self.watch()?,
            }
        }
    }

    fn closed(&self, error: &std::io::Error) -> LinkError {
        match self.config.interrupt.is_triggered() {
            true => broken("the group has ended"),
            false if error.kind() == ErrorKind::UnexpectedEof => {
                broken(format!("stage {} has closed its connection", self.config.peer))
            }
            false => broken(format!("the connection with stage {} is lost: {error}", self.config.peer)),
        }
    }

    fn wait_until_complete(&mut self, event: &CudaEvent) -> Result<(), LinkError> {
        let started = Instant::now();
        while !event.is_complete()? {
            self.watch()?;
            std::thread::sleep((started.elapsed() / 16).clamp(POLL_INTERVALS[0], POLL_INTERVALS[1]));
        }
        Ok(())
    }

    /// Checks for failures that would keep the current message from completing.
    fn watch(&mut self) -> Result<(), LinkError> {
        self.config.communicator.is_ready().map_err(LinkError::Broken)?;
        if self.config.interrupt.is_triggered() {
            return Err(broken("the group has ended"));
        }
        if self.config.end == CommunicatorEnd::Receiver && self.is_abandoned.load(Ordering::Acquire) {
            return Err(broken("the receiver was closed"));
        }
        if self.config.sockets.iter().any(is_closed) {
            let peer_closed_at = *self.peer_closed_at.get_or_insert_with(Instant::now);
            if peer_closed_at.elapsed() > PEER_CLOSED_GRACE {
                return Err(broken(format!("stage {} has closed its connection", self.config.peer)));
            }
        }
        Ok(())
    }
}

fn broken(why: impl Into<String>) -> LinkError {
    LinkError::Broken(why.into())
}

/// Whether the peer has closed a connection. The check does not consume signals that the peer sent earlier.
fn is_closed(socket: &TcpStream) -> bool {
    match recv(socket, &mut [0_u8], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, bytes)) => bytes == 0,
        Err(error) => !matches!(error, Errno::AGAIN | Errno::INTR),
    }
}

/// Shuts the sockets down. Closing alone would not notify the peer, because the interrupt has clones of the sockets.
fn close(sockets: &[TcpStream]) {
    for socket in sockets {
        let _ = shutdown(socket, Shutdown::Both);
    }
}
