//! The sending end of a link.

mod stream;

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stagecoach_kernels::device::{CudaContext, CudaEvent};
use tch::{Device, Tensor};

use super::carrier::Outgoing;
use super::nccl::{Channel, Message};
use super::stream::LinkStream;
use super::{LinkError, LinkId};
use stream::StreamSender;

/// The sending end of a link. The link sends tensors in the order of the calls.
#[derive(Debug)]
pub struct Sender {
    link: LinkId,
    backend: SenderBackend,
    bytes: Arc<AtomicU64>,
}

#[derive(Debug)]
enum SenderBackend {
    Stream(StreamSender),
    Nccl(Arc<Channel>, Device),
}

impl Sender {
    /// Starts to send on `stream`, the byte stream of the TCP connection `socket`. With `gpu`, tensors may be in GPU
    /// memory.
    pub(super) fn start(
        link: LinkId,
        socket: TcpStream,
        stream: LinkStream,
        carrier: Outgoing,
        gpu: Option<CudaContext>,
    ) -> Sender {
        let bytes = Arc::new(AtomicU64::new(0));
        let sender = StreamSender::start(link, socket, stream, carrier, bytes.clone(), gpu);
        Sender { link, backend: SenderBackend::Stream(sender), bytes }
    }

    /// Creates a sender of tensors in the memory of `device`, a GPU, over NCCL.
    pub(super) fn over(link: LinkId, device: Device, channel: Arc<Channel>) -> Sender {
        Sender { link, backend: SenderBackend::Nccl(channel, device), bytes: Arc::default() }
    }

    /// Sends a contiguous tensor. The link keeps the tensor alive until it is sent.
    ///
    /// A link over TCP or shared memory blocks the caller while
    /// [`SENDS_IN_FLIGHT`](stagecoach_pipeline::SENDS_IN_FLIGHT) earlier tensors are not sent yet. A tensor can't be
    /// sent while TCP's buffers or the shared memory are full, or while a GPU has not computed the tensor. Links
    /// between replicas and links over NCCL never block the caller, because their queues are unbounded.
    ///
    /// # Errors
    /// If an earlier send failed.
    pub fn send(&self, tag: usize, tensor: Tensor) -> Result<(), LinkError> {
        self.send_when(tag, tensor, None)
    }

    /// Like [`send`](Self::send), for a tensor that the GPU has computed once the event `complete` has occurred.
    /// Without an event, the tensor is computed once the GPU has done the work that libtorch has queued so far.
    pub fn send_when(&self, tag: usize, tensor: Tensor, complete: Option<Arc<CudaEvent>>) -> Result<(), LinkError> {
        match &self.backend {
            SenderBackend::Stream(queue) => queue.send(self.link, tag, tensor, complete),
            SenderBackend::Nccl(channel, device) => {
                complete.map_or(Ok(()), |complete| complete.make_default_stream_wait())?;
                let tensor = tensor.to_device(*device);
                let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
                self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                channel.enqueue(Message { link: self.link, tag, tensor, arrivals: None })
            }
        }
    }

    /// Returns the reason why an earlier send failed, if a failure is known.
    pub(super) fn failure(&self) -> Option<LinkError> {
        match &self.backend {
            SenderBackend::Stream(queue) => queue.failure(),
            SenderBackend::Nccl(channel, _) => channel.failure(),
        }
    }

    /// Returns the number of payload bytes sent so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
