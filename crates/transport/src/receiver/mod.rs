//! The receiving end of a link: posted receives, which are filled in order.

mod nccl;
mod stream;

use std::net::TcpStream;
use std::sync::Arc;

use stagecoach_kernels::device::{CudaContext, Timestamp};
use tch::{Device, Kind, Tensor};

use super::carrier::Incoming;
use super::nccl::Channel;
use super::stream::LinkStream;
use super::{LinkError, LinkId};
use nccl::NcclReceiver;
use stream::StreamReceiver;

/// The receiver of one link. The link fills tensors in the order in which they were posted.
#[derive(Debug)]
pub struct Receiver {
    link: LinkId,
    /// The device of the received tensors.
    device: Device,
    backend: ReceiverBackend,
}

#[derive(Debug)]
enum ReceiverBackend {
    Stream(StreamReceiver),
    Nccl(NcclReceiver),
}

impl Receiver {
    /// Starts to receive tensors for `device` from `stream`, the byte stream of the TCP connection `socket`. With
    /// `gpu`, tensors may be in GPU memory.
    pub(super) fn start(
        link: LinkId,
        device: Device,
        socket: TcpStream,
        stream: LinkStream,
        carrier: Incoming,
        gpu: Option<CudaContext>,
    ) -> Receiver {
        let device = if link.payload.is_on_device() { device } else { Device::Cpu };
        Receiver {
            link,
            device,
            backend: ReceiverBackend::Stream(StreamReceiver::start(link, socket, stream, carrier, gpu)),
        }
    }

    /// Creates a receiver that fills GPU memory over NCCL.
    pub(super) fn over(link: LinkId, device: Device, channel: Arc<Channel>) -> Receiver {
        Receiver { link, device, backend: ReceiverBackend::Nccl(NcclReceiver::new(channel)) }
    }

    /// Posts a receive: allocates the tensor (by libtorch, for the alignment that kernels expect) and returns at once.
    /// `shape` and `kind` must equal the shape and dtype of the sender's tensor.
    pub fn post(&mut self, tag: usize, shape: &[i64], kind: Kind) {
        self.post_into(tag, Tensor::empty(shape, (kind, self.device)));
    }

    /// Posts a receive into a contiguous tensor. The caller must not use the tensor until its data has arrived.
    pub fn post_into(&mut self, tag: usize, tensor: Tensor) {
        match &mut self.backend {
            ReceiverBackend::Stream(receiver) => receiver.post(tag, tensor),
            ReceiverBackend::Nccl(receiver) => receiver.post(self.link, self.device, tag, tensor),
        }
    }

    /// Waits for the tensor that was posted for `tag`. A returned tensor in GPU memory may still be incomplete, but
    /// later computations of libtorch wait for its data.
    pub fn wait(&mut self, tag: usize) -> Result<Tensor, LinkError> {
        self.wait_for_arrival(tag).map(|(tensor, _)| tensor)
    }

    /// Like [`wait`](Self::wait), but also returns the time of arrival.
    pub fn wait_for_arrival(&mut self, tag: usize) -> Result<(Tensor, Timestamp), LinkError> {
        match &mut self.backend {
            ReceiverBackend::Stream(receiver) => receiver.wait(self.link, tag),
            ReceiverBackend::Nccl(receiver) => receiver.wait(self.link, tag),
        }
    }

    /// Whether a thread of this process, and not NCCL, fills the posted tensors.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self.backend, ReceiverBackend::Stream(_))
    }

    /// Returns the reason why an earlier receive over NCCL failed, if a failure is known. After such a failure,
    /// returned tensors may be wrong. A failed receive from a stream returns no wrong tensor: its error is the result
    /// of `wait`.
    pub(super) fn failure(&self) -> Option<LinkError> {
        match &self.backend {
            ReceiverBackend::Stream(_) => None,
            ReceiverBackend::Nccl(receiver) => receiver.failure(),
        }
    }
}
