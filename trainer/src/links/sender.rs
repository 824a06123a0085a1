//! The sending end of a link. To a stream it is a short queue and the thread that empties it.

use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use stagecoach_pipeline::SENDS_IN_FLIGHT;
use tch::{Device, Tensor};

use super::carrier::Outgoing;
use super::header::{Header, parts};
use super::nccl::{Channel, Message};
use super::stream::LinkStream;
use super::{LinkError, LinkId, LinkPayload};
use crate::tensor_bytes::bytes_of;

/// Sends tensors over one link, in order.
#[derive(Debug)]
pub struct Sender {
    link: LinkId,
    backend: Backend,
    bytes: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Backend {
    Stream(StreamSender),
    Nccl(Arc<Channel>, Device),
}

impl Sender {
    /// Starts to send on `stream`, which is the connection `socket`.
    pub(super) fn start(link: LinkId, socket: TcpStream, stream: LinkStream, carrier: Outgoing) -> Sender {
        let bytes = Arc::new(AtomicU64::new(0));
        Sender {
            link,
            backend: Backend::Stream(StreamSender::start(link, socket, stream, carrier, bytes.clone())),
            bytes,
        }
    }

    /// Sends from the memory of `device`, a GPU.
    pub(super) fn over(link: LinkId, device: Device, channel: Arc<Channel>) -> Sender {
        Sender { link, backend: Backend::Nccl(channel, device), bytes: Arc::default() }
    }

    /// Hands over a contiguous tensor, which the link keeps alive until it is sent.
    ///
    /// To a stream, blocks while [`SENDS_IN_FLIGHT`] earlier ones have not left this stage: TCP's buffers or shared memory are
    /// full, and the receiver has not posted their receives. What replicas exchange never blocks: it is sent while the stage computes.
    /// From GPU to GPU nothing does: the send runs on the device, behind what computes the tensor.
    ///
    /// # Errors
    /// If an earlier send failed.
    pub fn send(&self, microbatch: usize, tensor: Tensor) -> Result<(), LinkError> {
        match &self.backend {
            Backend::Stream(queue) => queue.send(self.link, microbatch, tensor.to_device(Device::Cpu)),
            Backend::Nccl(channel, device) => {
                let tensor = tensor.to_device(*device);
                let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
                self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                channel.enqueue(Message { link: self.link, microbatch, tensor, arrivals: None })
            }
        }
    }

    /// Fails if anything sent so far did, as far as is known.
    pub(super) fn check(&self) -> Result<(), LinkError> {
        match &self.backend {
            Backend::Stream(_) => Ok(()),
            Backend::Nccl(channel, _) => channel.check(),
        }
    }

    /// Payload bytes that have left so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Tensors on the CPU that wait to be written to a stream, and the thread that does it.
#[derive(Debug)]
struct StreamSender {
    tensors: Option<TensorQueue>,
    thread: Option<JoinHandle<()>>,
    failure: Arc<Mutex<Option<LinkError>>>,
}

/// The queue to the thread: a bounded one, or one for all that a step has.
#[derive(Debug)]
enum TensorQueue {
    Bounded(mpsc::SyncSender<(u32, Tensor)>),
    Unbounded(mpsc::Sender<(u32, Tensor)>),
}

impl TensorQueue {
    fn new(payload: LinkPayload) -> (TensorQueue, mpsc::Receiver<(u32, Tensor)>) {
        match payload {
            LinkPayload::Replicas => {
                let (sender, jobs) = mpsc::channel();
                (TensorQueue::Unbounded(sender), jobs)
            }
            _ => {
                // one more is in the hands of the thread
                let (sender, jobs) = mpsc::sync_channel(SENDS_IN_FLIGHT - 1);
                (TensorQueue::Bounded(sender), jobs)
            }
        }
    }

    /// None if the thread has ended.
    fn send(&self, job: (u32, Tensor)) -> Option<()> {
        match self {
            TensorQueue::Bounded(jobs) => jobs.send(job).ok(),
            TensorQueue::Unbounded(jobs) => jobs.send(job).ok(),
        }
    }
}

impl StreamSender {
    fn start(
        link: LinkId,
        socket: TcpStream,
        mut stream: LinkStream,
        mut carrier: Outgoing,
        sent: Arc<AtomicU64>,
    ) -> StreamSender {
        let (tensors, jobs) = TensorQueue::new(link.payload);
        let failure: Arc<Mutex<Option<LinkError>>> = Arc::default();
        let failed = failure.clone();
        let work = move || {
            for (microbatch, tensor) in jobs {
                for part in parts(&tensor, link.payload) {
                    let header = Header::of(microbatch, &part);
                    // SAFETY: a boundary tensor is never written again once it has been handed over, and a copy of a state, or what
                    // replicas exchange, not before its receiver has it.
                    let result = carrier.put(&mut stream, &header.encode(), unsafe { &*bytes_of(&part) });
                    if let Err(error) = result {
                        let error = LinkError::Broken(format!("could not send {header}, {link}: {error}"));
                        *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        return;
                    }
                    sent.fetch_add(header.bytes() as u64, Ordering::Relaxed);
                }
            }
            let _ = socket.shutdown(std::net::Shutdown::Write);
        };
        StreamSender { tensors: Some(tensors), thread: Some(std::thread::spawn(work)), failure }
    }

    fn send(&self, link: LinkId, microbatch: usize, tensor: Tensor) -> Result<(), LinkError> {
        match self.tensors.as_ref().and_then(|tensors| tensors.send((microbatch as u32, tensor))) {
            Some(()) => Ok(()),
            None => Err(self
                .failure
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone()
                .unwrap_or_else(|| LinkError::Broken(format!("the link for {link} is closed")))),
        }
    }
}

impl Drop for StreamSender {
    fn drop(&mut self) {
        self.tensors = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
