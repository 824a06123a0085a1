//! A copy of a stage's mutable state (weights and optimizer moments) in one buffer. Another rank holds this copy as a
//! checkpoint in memory.

use std::sync::Arc;

use stagecoach_kernels::bytes_of;
use stagecoach_kernels::device::{CudaContext, CudaError, CudaEvent, HostTensor};
use stagecoach_model::{Architecture, Parameter, stage_parameter_specs};
use stagecoach_pipeline::{Partition, Placement};
use tch::{Kind, Tensor, no_grad};

use super::snapshot::copy_all;
use crate::execute::{CopyToHost, Stage, owners};

/// The values and moments of the parameters that a stage holds and its replica owns. If two stages share a tied weight,
/// the copies of both stages include this weight. The values are fp32 on the CPU, parameter by parameter in the stage's
/// order.
#[derive(Debug)]
pub struct PeerCopy {
    memory: HostTensor,
    /// The copy from the GPU into this memory, which may still run.
    copying: Option<Arc<CopyToHost>>,
}

impl PeerCopy {
    /// Returns the number of values in the copy of the stage that `rank` runs, in a job with `replicas` replicas.
    pub fn numel(
        architecture: &dyn Architecture,
        placement: &Placement,
        partition: &Partition,
        replicas: usize,
        rank: usize,
    ) -> usize {
        let (stage, replica) = (rank % placement.ranks(), rank / placement.ranks());
        let specs = stage_parameter_specs(architecture, placement, partition, stage);
        let owners = owners(&specs.iter().collect::<Vec<_>>(), replicas);
        let owned = specs.iter().zip(owners).filter(|(_, owner)| *owner == replica);
        3 * owned.map(|(spec, _)| spec.numel()).sum::<u64>() as usize
    }

    /// Allocates a buffer for `numel` values. With `gpu`, the memory is pinned for copies from the GPU.
    ///
    /// # Errors
    /// If the GPU's driver can't pin the memory.
    pub fn zeros(numel: usize, gpu: Option<CudaContext>) -> Result<PeerCopy, CudaError> {
        Ok(PeerCopy { memory: HostTensor::zeros(&[numel as i64], Kind::Float, gpu)?, copying: None })
    }

    /// Returns the number of values.
    pub fn element_count(&self) -> usize {
        self.memory.numel()
    }

    /// Returns the memory to send, and the event at which a copy from the GPU into this memory completes. If the event
    /// is `Some`, the send must wait for it.
    pub fn to_send(&self) -> (Tensor, Option<Arc<CudaEvent>>) {
        (self.memory.shallow_clone(), self.copying.as_ref().map(|copying| copying.done()))
    }

    /// Waits until a copy into the memory is complete. Returns the memory, which the caller may read or receive into.
    ///
    /// # Errors
    /// If the GPU's driver fails.
    pub fn tensor(&self) -> Result<Tensor, CudaError> {
        self.copying.as_ref().map_or(Ok(()), |copying| copying.wait())?;
        Ok(self.memory.shallow_clone())
    }

    /// Copies the state of `stage` into this buffer, which must have the state's size. A GPU continues to compute
    /// during the copy.
    ///
    /// # Errors
    /// If the GPU's driver fails.
    pub fn copy_from(&mut self, stage: &Stage) -> Result<(), CudaError> {
        let stage_tensors = state(stage);
        let pieces = pieces(&self.tensor()?, &stage_tensors);
        let Some(gpu) = &stage.gpu else {
            // SAFETY: the tensors are contiguous, fp32 and on the CPU. The pieces don't overlap, and no other code uses
            // the tensors at a step boundary.
            let bytes = |(to, from)| unsafe { (&mut *bytes_of(to), &*bytes_of(from)) };
            copy_all(pieces.iter().zip(&stage_tensors).map(bytes));
            return Ok(());
        };
        let flat: Vec<Tensor> = stage_tensors.iter().map(|tensor| tensor.view([-1])).collect();
        self.copying = Some(gpu.copy_to_host(pieces.iter().zip(&flat))?);
        Ok(())
    }

    /// Loads this copy, the state after `updates` updates, into `stage`.
    ///
    /// # Errors
    /// If the GPU's driver fails.
    pub fn load_into(&self, stage: &mut Stage, updates: u64) -> Result<(), CudaError> {
        stage.wait_for_copies()?;
        let stage_tensors = state(stage);
        let pieces = pieces(&self.tensor()?, &stage_tensors);
        no_grad(|| {
            pieces.iter().zip(&stage_tensors).for_each(|(from, to)| to.shallow_clone().copy_(&from.view_as(to)));
        });
        stage.parameters.update_compute();
        stage.optimizer.set_updates(updates);
        Ok(())
    }
}

/// Waits for a copy into the memory before the memory is freed.
impl Drop for PeerCopy {
    fn drop(&mut self) {
        let _ = self.copying.take().map(|copying| copying.wait());
    }
}

/// Returns the part of a buffer for each tensor of `tensors`.
fn pieces(buffer: &Tensor, tensors: &[Tensor]) -> Vec<Tensor> {
    let sizes: Vec<i64> = tensors.iter().map(|tensor| tensor.numel() as i64).collect();
    buffer.split_with_sizes(sizes, 0)
}

/// Returns the tensors that updates change, in the order of the parameters: the value and both moments.
fn state(stage: &Stage) -> Vec<Tensor> {
    let parameter_tensors = |(index, parameter): (usize, &Parameter)| {
        let moments = stage.optimizer.moments(index)?;
        Some([&parameter.value, &moments.exp_avg, &moments.exp_avg_sq].map(Tensor::shallow_clone))
    };
    stage.parameters.iter().enumerate().filter_map(parameter_tensors).flatten().collect()
}
