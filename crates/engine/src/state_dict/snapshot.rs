//! The tensors that a stage saves at a step boundary.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stagecoach_kernels::device::CudaError;

use super::tensors::{NamedTensor, StageTensor, named_moments, named_weights};
use crate::execute::{CopyToHost, Stage};

/// The number of bytes that a thread copies at a time.
const COPY_BYTES: usize = 4 << 20;

/// The tensors for which a stage is responsible: weights and the optimizer's moments.
#[derive(Debug)]
pub struct Snapshot {
    /// The weights, with Hugging Face's names.
    pub weights: Vec<NamedTensor>,
    /// The moments, with the same names and a suffix.
    pub moments: Vec<NamedTensor>,
    /// The copy from a GPU into this memory, which may still run.
    copying: Option<Arc<CopyToHost>>,
}

impl Snapshot {
    /// Returns the tensors of `stage`. Tensors on the CPU are not copied, so the snapshot is valid until the next
    /// update.
    pub fn of(stage: &Stage) -> Snapshot {
        let all = |tensors: Vec<StageTensor>| tensors.iter().map(NamedTensor::of).collect();
        Snapshot { weights: all(named_weights(stage)), moments: all(named_moments(stage)), copying: None }
    }

    /// Allocates a buffer for the tensors of `stage`.
    ///
    /// # Errors
    /// If the driver of the stage's GPU can't pin the memory.
    pub fn empty_buffer(stage: &Stage) -> Result<Snapshot, CudaError> {
        let buffers = |tensors: Vec<StageTensor>| -> Result<Vec<NamedTensor>, CudaError> {
            tensors.iter().map(|tensor| NamedTensor::buffer(tensor, stage)).collect()
        };
        let (weights, moments) = (buffers(named_weights(stage))?, buffers(named_moments(stage))?);
        Ok(Snapshot { weights, moments, copying: None })
    }

    /// Returns the weight or moment `name`.
    pub fn tensor(&self, name: &str) -> Option<&NamedTensor> {
        self.weights.iter().chain(&self.moments).find(|tensor| tensor.name == name)
    }

    /// Copies the tensors of `stage` into this buffer, with as many threads as the computation uses, because training
    /// waits for the copy. A copy from a GPU runs concurrently with the GPU's computations, and [`wait`](Self::wait)
    /// waits for its end.
    ///
    /// # Errors
    /// If the GPU's driver fails.
    pub fn copy_from(&mut self, stage: &Stage) -> Result<(), CudaError> {
        if let Some(gpu) = &stage.gpu {
            let buffers = self.weights.iter().chain(&self.moments).map(NamedTensor::tensor);
            let source = named_weights(stage).into_iter().chain(named_moments(stage)).map(|(_, tensor)| tensor);
            self.copying = Some(gpu.copy_to_host(buffers.zip(source))?);
            return Ok(());
        }
        let source = Snapshot::of(stage);
        let pairs = self.weights.iter_mut().zip(&source.weights).chain(self.moments.iter_mut().zip(&source.moments));
        copy_all(pairs.map(|(buffer, tensor)| (buffer.bytes_mut(), tensor.bytes())));
        Ok(())
    }

    /// Waits until the copy is complete.
    ///
    /// # Errors
    /// If the GPU's driver fails.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.copying.as_ref().map_or(Ok(()), |copying| copying.wait())
    }

    /// Returns the time for which the last copy has delayed an update. The copy must be complete.
    pub fn stall(&self) -> Duration {
        self.copying.as_ref().map_or(Duration::ZERO, |copying| copying.stall())
    }
}

/// Waits for a copy into the memory before the memory is freed.
impl Drop for Snapshot {
    fn drop(&mut self) {
        let _ = self.wait();
    }
}

/// Copies the second buffer of each pair into the first, which has the same size, with as many threads as the
/// computation uses.
pub(super) fn copy_all<'b>(pairs: impl Iterator<Item = (&'b mut [u8], &'b [u8])>) {
    let pieces: Vec<_> = pairs.flat_map(|(to, from)| to.chunks_mut(COPY_BYTES).zip(from.chunks(COPY_BYTES))).collect();
    // each thread takes one piece at a time, so that all threads share the copy of the largest tensor
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
