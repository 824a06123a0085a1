//! Tensors that have arrived over a link. The stage may request tensors in an order that differs from the order of
//! arrival.

use std::sync::mpsc;

use stagecoach_kernels::device::Timestamp;
use tch::Tensor;

use crate::{LinkError, LinkId};

/// A tensor that was posted for a receive, and the time at which the link filled it. On a GPU, the time may be a CUDA
/// event that is not complete yet.
#[derive(Debug)]
pub(crate) struct ArrivedTensor {
    pub(crate) tag: usize,
    pub(crate) tensor: Tensor,
    pub(crate) at: Timestamp,
}

impl ArrivedTensor {
    /// Makes later computations of libtorch wait until the tensor is filled. Returns the tensor and the time at which
    /// it is filled.
    fn into_parts(self) -> Result<(Tensor, Timestamp), LinkError> {
        if let Timestamp::Device(filled) = &self.at {
            filled.make_default_stream_wait()?;
        }
        Ok((self.tensor, self.at))
    }
}

/// The arrived tensors, by tag.
#[derive(Debug)]
pub(crate) struct Arrivals {
    arrived: mpsc::Receiver<Result<ArrivedTensor, LinkError>>,
    /// Tensors that arrived before they were requested.
    early: Vec<ArrivedTensor>,
}

impl Arrivals {
    pub(crate) fn new(arrived: mpsc::Receiver<Result<ArrivedTensor, LinkError>>) -> Arrivals {
        Arrivals { arrived, early: Vec::new() }
    }

    /// Waits for the tensor with this tag, and makes later computations of libtorch wait until the tensor is filled.
    pub(crate) fn wait(&mut self, link: LinkId, tag: usize) -> Result<(Tensor, Timestamp), LinkError> {
        if let Some(at) = self.early.iter().position(|early| early.tag == tag) {
            return self.early.swap_remove(at).into_parts();
        }
        loop {
            match self.arrived.recv() {
                Ok(Ok(arrival)) if arrival.tag == tag => return arrival.into_parts(),
                Ok(Ok(other)) => self.early.push(other),
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(LinkError::Broken(format!("the link for {link} is closed"))),
            }
        }
    }
}
