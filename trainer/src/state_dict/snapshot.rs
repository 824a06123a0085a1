//! Everything that a stage saves, at a step boundary.

use std::sync::{Mutex, PoisonError};

use super::tensors::{NamedTensor, moments, weights};
use crate::execute::Stage;

/// Bytes that a thread copies at a time.
const COPY_BYTES: usize = 4 << 20;

/// The tensors for which a stage is responsible: weights and the optimizer's moments.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// With Hugging Face's names.
    pub(crate) weights: Vec<NamedTensor>,
    /// With the same names and a suffix.
    pub(crate) moments: Vec<NamedTensor>,
}

impl Snapshot {
    /// Refers to the tensors of `stage` without a copy if they are on the CPU: valid until the next update.
    pub(crate) fn of(stage: &Stage) -> Snapshot {
        Snapshot { weights: weights(stage), moments: moments(stage) }
    }

    /// A staging buffer for the tensors of `stage`.
    pub(crate) fn empty_buffer(stage: &Stage) -> Snapshot {
        let empty_buffers = |tensors: Vec<NamedTensor>| tensors.iter().map(NamedTensor::empty_buffer).collect();
        Snapshot { weights: empty_buffers(weights(stage)), moments: empty_buffers(moments(stage)) }
    }

    /// The tensor `name`, a weight's or a moment's.
    pub(crate) fn tensor(&self, name: &str) -> Option<&NamedTensor> {
        self.weights.iter().chain(&self.moments).find(|tensor| tensor.name == name)
    }

    /// Copies the tensors of `stage` into this staging buffer, with as many threads as compute, because training waits for
    /// it.
    pub(crate) fn copy_from(&mut self, stage: &Stage) {
        let source = Snapshot::of(stage);
        let pairs = self.weights.iter_mut().zip(&source.weights).chain(self.moments.iter_mut().zip(&source.moments));
        copy_all(pairs.map(|(buffer, tensor)| (buffer.bytes_mut(), tensor.bytes())));
    }
}

/// Copies pairs of buffers of one size, the second of each into the first, with as many threads as compute.
pub(super) fn copy_all<'b>(pairs: impl Iterator<Item = (&'b mut [u8], &'b [u8])>) {
    let pieces: Vec<_> = pairs.flat_map(|(to, from)| to.chunks_mut(COPY_BYTES).zip(from.chunks(COPY_BYTES))).collect();
    // threads take one piece at a time, so that none is left with the largest tensor alone
    let pieces = Mutex::new(pieces.into_iter());
    let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
    let copy = || {
        while let Some((to, from)) = next() {
            to.copy_from_slice(from);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..tch::get_num_threads() {
            scope.spawn(copy);
        }
        copy();
    });
}
