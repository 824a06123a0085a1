//! Receives tensors from GPU to GPU, over NCCL.

use std::collections::HashMap;
use std::sync::{Arc, mpsc};

use stagecoach_kernels::device::Timestamp;
use tch::{Device, Tensor, no_grad};

use super::super::nccl::{Channel, Message};
use super::super::{LinkError, LinkId};
use crate::arrivals::{Arrivals, ArrivedTensor};

/// The receives of a link that are posted to NCCL. NCCL fills memory of the GPU.
#[derive(Debug)]
pub(super) struct NcclReceiver {
    channel: Arc<Channel>,
    /// The sending half of `arrivals`.
    sender: mpsc::Sender<Result<ArrivedTensor, LinkError>>,
    arrivals: Arrivals,
    /// The posted tensors that are on another device than the GPU, by tag. `wait` copies the received data into them.
    destinations: HashMap<usize, Tensor>,
}

impl NcclReceiver {
    pub(crate) fn new(channel: Arc<Channel>) -> NcclReceiver {
        let (sender, arrived) = mpsc::channel();
        NcclReceiver { channel, sender, arrivals: Arrivals::new(arrived), destinations: HashMap::new() }
    }

    /// Returns the reason why a posted receive failed, if a failure is known.
    pub(super) fn failure(&self) -> Option<LinkError> {
        self.channel.failure()
    }

    pub(super) fn post(&mut self, link: LinkId, device: Device, tag: usize, mut tensor: Tensor) {
        if tensor.device() != device {
            let here = Tensor::empty(tensor.size(), (tensor.kind(), device));
            self.destinations.insert(tag, std::mem::replace(&mut tensor, here));
        }
        let message = Message { link, tag, tensor, arrivals: Some(self.sender.clone()) };
        if let Err(error) = self.channel.enqueue(message) {
            let _ = self.sender.send(Err(error)); // `wait` returns this error
        }
    }

    pub(crate) fn wait(&mut self, link: LinkId, tag: usize) -> Result<(Tensor, Timestamp), LinkError> {
        let (arrived, at) = self.arrivals.wait(link, tag)?;
        let tensor = match self.destinations.remove(&tag) {
            None => arrived,
            Some(destination) => {
                no_grad(|| destination.shallow_clone().copy_(&arrived));
                destination
            }
        };
        Ok((tensor, at))
    }
}
