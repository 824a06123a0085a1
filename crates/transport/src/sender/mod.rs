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
    /// Starts to send on `stream`, the stream of the connection `socket`, also from the memory of `gpu`.
    pub(super) fn start(
        link: LinkId,
        socket: TcpStream,
        stream: LinkStream,
        carrier: Outgoing,
        gpu: Option<CudaContext>,
    ) -> Sender {
        let bytes = Arc::new(AtomicU64::new(0));
        let sender = StreamSender::start(link, socket, stream, carrier, bytes.clone(), gpu);
        Sender { link, backend: Backend::Stream(sender), bytes }
    }

    /// Sends from the memory of `device`, a GPU.
    pub(super) fn over(link: LinkId, device: Device, channel: Arc<Channel>) -> Sender {
        Sender { link, backend: Backend::Nccl(channel, device), bytes: Arc::default() }
    }

    /// Hands over a contiguous tensor, which the link keeps alive until it is sent.
    ///
    /// A send to a stream blocks while [`SENDS_IN_FLIGHT`](stagecoach_pipeline::SENDS_IN_FLIGHT) earlier tensors have
    /// not left this stage: TCP's buffers or shared memory are full and the receiver has not posted their receives, or
    /// a GPU has not computed them. Tensors between replicas never block, because they are sent while the stage
    /// computes. A send from GPU to GPU never blocks: it runs on the device, after the computation of the tensor.
    ///
    /// # Errors
    /// If an earlier send failed.
    pub fn send(&self, microbatch: usize, tensor: Tensor) -> Result<(), LinkError> {
        self.send_when(microbatch, tensor, None)
    }

    /// Like [`send`](Self::send), for a tensor that is complete only with an event. Without an event, the tensor is
    /// complete after the work that libtorch has queued so far.
    pub fn send_when(
        &self,
        microbatch: usize,
        tensor: Tensor,
        complete: Option<Arc<CudaEvent>>,
    ) -> Result<(), LinkError> {
        match &self.backend {
            Backend::Stream(queue) => queue.send(self.link, microbatch, tensor, complete),
            Backend::Nccl(channel, device) => {
                complete.map_or(Ok(()), |complete| complete.make_default_stream_wait())?;
                let tensor = tensor.to_device(*device);
                let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
                self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                channel.enqueue(Message { link: self.link, microbatch, tensor, arrivals: None })
            }
        }
    }

    /// The reason that an earlier send failed, as far as it is known.
    pub(super) fn failure(&self) -> Option<LinkError> {
        match &self.backend {
            Backend::Stream(queue) => queue.failure(),
            Backend::Nccl(channel, _) => channel.failure(),
        }
    }

    /// Payload bytes sent so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
