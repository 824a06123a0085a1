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

/// Receives tensors over one link, in the order in which they were posted.
#[derive(Debug)]
pub struct Receiver {
    link: LinkId,
    /// The device on which its tensors are used.
    device: Device,
    backend: Backend,
}

#[derive(Debug)]
enum Backend {
    Stream(StreamReceiver),
    Nccl(NcclReceiver),
}

impl Receiver {
    /// Starts to receive tensors for `device` from `stream`, the stream of the connection `socket`; also into the
    /// memory of `gpu`.
    pub(super) fn start(
        link: LinkId,
        device: Device,
        socket: TcpStream,
        stream: LinkStream,
        carrier: Incoming,
        gpu: Option<CudaContext>,
    ) -> Receiver {
        let device = if link.payload.is_on_device() { device } else { Device::Cpu };
        Receiver { link, device, backend: Backend::Stream(StreamReceiver::start(link, socket, stream, carrier, gpu)) }
    }

    /// Receives into the memory of a GPU.
    pub(super) fn over(link: LinkId, device: Device, channel: Arc<Channel>) -> Receiver {
        Receiver { link, device, backend: Backend::Nccl(NcclReceiver::new(channel)) }
    }

    /// Posts a receive: allocates the tensor (by libtorch, for the alignment that kernels expect) and returns at once.
    /// `shape` and `kind` are those of the tensor that the sender must send.
    pub fn post(&mut self, microbatch: usize, shape: &[i64], kind: Kind) {
        self.post_into(microbatch, Tensor::empty(shape, (kind, self.device)));
    }

    /// Posts a receive into a contiguous tensor. The caller does not use the tensor until it has arrived.
    pub fn post_into(&mut self, microbatch: usize, tensor: Tensor) {
        match &mut self.backend {
            Backend::Stream(receiver) => receiver.post(microbatch, tensor),
            Backend::Nccl(receiver) => receiver.post(self.link, self.device, microbatch, tensor),
        }
    }

    /// Waits for the tensor posted for `microbatch`. A tensor in the memory of a GPU may not be filled yet: later
    /// computations of libtorch run once it is.
    pub fn wait(&mut self, microbatch: usize) -> Result<Tensor, LinkError> {
        self.wait_for_arrival(microbatch).map(|(tensor, _)| tensor)
    }

    /// Like [`wait`](Self::wait), with the time of arrival.
    pub fn wait_for_arrival(&mut self, microbatch: usize) -> Result<(Tensor, Timestamp), LinkError> {
        match &mut self.backend {
            Backend::Stream(receiver) => receiver.wait(self.link, microbatch),
            Backend::Nccl(receiver) => receiver.wait(self.link, microbatch),
        }
    }

    /// Whether a thread of this process fills the posted tensors.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self.backend, Backend::Stream(_))
    }

    /// The reason that an earlier receive failed, as far as it is known. In that case, returned tensors may be wrong.
    pub(super) fn failure(&self) -> Option<LinkError> {
        match &self.backend {
            Backend::Stream(_) => None,
            Backend::Nccl(receiver) => receiver.failure(),
        }
    }
}
