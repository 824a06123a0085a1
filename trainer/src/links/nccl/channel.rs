//! The messages from one rank to another, at one of the two ends. A thread passes the messages of all links between the
//! two to their communicator, in the order in which the program handed them over.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use tch::Tensor;

use super::super::receiver::ArrivedTensor;
use super::super::{Interrupt, LinkError, LinkId};
use super::communicator::{Communicator, CommunicatorEnd};
use crate::sys::{CudaContext, CudaError, CudaEvent, CudaStream, Timestamp};

/// Interval between polls of pending messages: the delay before a sent tensor is freed, and before a failure is
/// noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The time for pending messages to complete after the other end has closed its connection, having sent or received all
/// of them.
const PEER_CLOSED_GRACE: Duration = Duration::from_millis(500);

/// The time limit for a communicator to send its remaining messages, once they are done on the device.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// A tensor to be sent, or to be filled.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) link: LinkId,
    pub(crate) microbatch: usize,
    pub(crate) tensor: Tensor,
    /// The channel that receives the tensor of a receive.
    pub(crate) arrivals: Option<mpsc::Sender<Result<ArrivedTensor, LinkError>>>,
}

/// The handle of a channel's thread. When the last handle is dropped, the thread sends its remaining messages, or
/// abandons its remaining receives.
#[derive(Debug)]
pub(crate) struct Channel {
    context: CudaContext,
    messages: Option<mpsc::Sender<(Message, CudaEvent)>>,
    failure: Arc<OnceLock<LinkError>>,
    thread: Option<JoinHandle<()>>,
}

/// Configuration from which a channel starts.
#[derive(Debug)]
pub(super) struct ChannelConfig {
    pub(super) context: CudaContext,
    pub(super) communicator: Communicator,
    pub(super) end: CommunicatorEnd,
    /// Rank of the other end.
    pub(super) peer: usize,
    /// Closed by the other end when it is gone.
    pub(super) sockets: Vec<TcpStream>,
    /// Ends the thread once the group has failed.
    pub(super) interrupt: Interrupt,
}

impl Channel {
    pub(super) fn start(config: ChannelConfig) -> Result<Channel, CudaError> {
        let (messages, handed_over) = mpsc::channel();
        let failure: Arc<OnceLock<LinkError>> = Arc::default();
        let (context, stream) = (config.context, config.context.stream()?);
        let worker = ChannelThread { config, stream, pending: VecDeque::new(), refused: None, peer_closed_at: None };
        let failed = failure.clone();
        let thread = Some(std::thread::spawn(move || worker.run(&handed_over, &failed)));
        Ok(Channel { context, messages: Some(messages), failure, thread })
    }

    /// Hands a message over, to run after the work that libtorch has queued so far.
    pub(crate) fn enqueue(&self, message: Message) -> Result<(), LinkError> {
        let ready = self.context.record_default_stream()?;
        let link = message.link;
        let messages = self.messages.as_ref().and_then(|messages| messages.send((message, ready)).ok());
        messages.ok_or_else(|| LinkError::Broken(format!("the link for {link} is closed")))?;
        self.failure().map_or(Ok(()), Err)
    }

    /// The reason that an earlier message failed. In that case, tensors received before may be wrong.
    pub(crate) fn failure(&self) -> Option<LinkError> {
        self.failure.get().cloned()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.messages = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct ChannelThread {
    config: ChannelConfig,
    stream: CudaStream,
    /// Messages that the communicator has accepted, each with an event after it; the communicator uses their memory
    /// until then.
    pending: VecDeque<(Message, Arc<CudaEvent>)>,
    /// The message that the communicator did not accept.
    refused: Option<Message>,
    /// The time at which the other end was first observed to be gone.
    peer_closed_at: Option<Instant>,
}

impl ChannelThread {
    fn run(mut self, handed_over: &mpsc::Receiver<(Message, CudaEvent)>, failure: &OnceLock<LinkError>) {
        let ended = self.transfer_all(handed_over);
        let ChannelThread { config, stream, pending, refused, .. } = self;
        let ChannelConfig { communicator, end, peer, sockets, .. } = config;
        if let Err(why) = ended {
            let first = pending.front().map(|(message, _)| message).or(refused.as_ref());
            let link = first.map(|message| message.link.to_string());
            let (from_or_to, way) = match end {
                CommunicatorEnd::Sender => ("to", "send"),
                CommunicatorEnd::Receiver => ("from", "receive"),
            };
            let what = link.unwrap_or_else(|| format!("what goes {from_or_to} stage {peer}"));
            let error = match why {
                device @ LinkError::Device(_) => device,
                why => LinkError::Broken(format!("could not {way} {what}: {why}")),
            };
            // set before the abort, which lets the device continue with tensors that have not arrived
            let _ = failure.set(error.clone());
            drop(communicator);
            let _ = stream.synchronize();
            close(&sockets);
            drop(pending);
            for message in refused.into_iter().chain(handed_over.iter().map(|(message, _)| message)) {
                message.arrivals.map(|arrivals| arrivals.send(Err(error.clone())));
            }
            return;
        }
        communicator.finish(Instant::now() + FINISH_TIMEOUT);
        close(&sockets);
    }

    /// Returns when no more messages come and all are done.
    fn transfer_all(&mut self, handed_over: &mpsc::Receiver<(Message, CudaEvent)>) -> Result<(), LinkError> {
        loop {
            let next = match self.pending.is_empty() {
                true => handed_over.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => handed_over.recv_timeout(POLL_INTERVAL),
            };
            match next {
                Ok((message, ready)) => match self.begin(&message, &ready) {
                    Ok(done) => self.pending.push_back((message, done)),
                    Err(why) => {
                        self.refused = Some(message);
                        return Err(why);
                    }
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) if self.pending.is_empty() => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => match self.config.end {
                    CommunicatorEnd::Sender => std::thread::sleep(POLL_INTERVAL),
                    CommunicatorEnd::Receiver => return Err(broken("nobody waits for it any more")),
                },
            }
            self.release()?;
            self.watch()?;
        }
    }

    /// Passes a message to the communicator. Returns an event after it.
    fn begin(&self, message: &Message, ready: &CudaEvent) -> Result<Arc<CudaEvent>, LinkError> {
        self.stream.wait(ready)?;
        // an empty tensor has no memory, and both ends know that it is empty
        if message.tensor.numel() > 0 {
            let give_up = || match self.config.interrupt.is_triggered() {
                true => Err("the group has ended".to_owned()),
                false => Ok(()),
            };
            self.config.communicator.transfer(&message.tensor, &self.stream, &give_up).map_err(LinkError::Broken)?;
        }
        let done = Arc::new(self.stream.record()?);
        if let Some(arrivals) = &message.arrivals {
            let Message { microbatch, tensor, .. } = message;
            let at = Timestamp::Device(Arc::clone(&done));
            let arrival = ArrivedTensor { microbatch: *microbatch, tensor: tensor.shallow_clone(), at };
            // the receiver of the arrival may have been dropped
            let _ = arrivals.send(Ok(arrival));
        }
        Ok(done)
    }

    /// Drops the messages that are done.
    fn release(&mut self) -> Result<(), LinkError> {
        while let Some((_, done)) = self.pending.front() {
            if !done.is_complete()? {
                break;
            }
            self.pending.pop_front();
        }
        Ok(())
    }

    /// Checks for failures that would keep the pending messages from completing.
    fn watch(&mut self) -> Result<(), LinkError> {
        self.config.communicator.is_ready().map_err(LinkError::Broken)?;
        if self.pending.is_empty() {
            return Ok(());
        }
        if self.config.interrupt.is_triggered() {
            return Err(broken("the group has ended"));
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

/// Whether the other end has closed a connection on which nothing is sent.
fn is_closed(socket: &TcpStream) -> bool {
    match recv(socket, &mut [0_u8], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, bytes)) => bytes == 0,
        Err(error) => !matches!(error, Errno::AGAIN | Errno::INTR),
    }
}

/// Shuts the sockets down. The interrupt has clones of them, so that closing alone would not notify the other end.
fn close(sockets: &[TcpStream]) {
    for socket in sockets {
        let _ = shutdown(socket, Shutdown::Both);
    }
}
