//! A copy of all that a stage's updates change, in one buffer.

use stagecoach_pipeline::{Partition, Placement};
use tch::{Device, Kind, Tensor, no_grad};

use super::snapshot::copy_all;
use crate::execute::{Stage, owners};
use crate::model::{Architecture, Parameter, stage_parameter_specs};
use crate::tensor_bytes::bytes_of;

/// The values of all parameters of a stage that its replica owns, and their moments, those of a tied weight on both of its stages:
/// fp32 on the CPU, one parameter after the other in the stage's order.
#[derive(Debug)]
pub(crate) struct StateCopy(Tensor);

impl StateCopy {
    /// How many values a copy of the stage of `rank` has, with so many replicas.
    pub(crate) fn numel(
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

    /// A buffer for so many values. Its memory is written once, so that the first copy into it, for which training waits,
    /// causes no page faults.
    pub(crate) fn zeros(numel: usize) -> StateCopy {
        StateCopy(Tensor::zeros([numel as i64], (Kind::Float, Device::Cpu)))
    }

    /// Its number of values.
    pub(crate) fn len(&self) -> usize {
        self.0.numel()
    }

    /// The same memory, to be sent or received.
    pub(crate) fn tensor(&self) -> Tensor {
        self.0.shallow_clone()
    }

    /// Copies the state of `stage` into this buffer, which has its size.
    pub(crate) fn copy_from(&mut self, stage: &Stage) {
        let of_stage = state(stage);
        let pieces = self.pieces(&of_stage);
        if stage.device == Device::Cpu {
            // SAFETY: contiguous fp32 on the CPU; the pieces don't overlap, and nothing else uses either side at a step's
            // boundary.
            let bytes = |(to, from)| unsafe { (&mut *bytes_of(to), &*bytes_of(from)) };
            copy_all(pieces.iter().zip(&of_stage).map(bytes));
        } else {
            no_grad(|| {
                pieces.into_iter().zip(&of_stage).for_each(|(mut to, from)| to.copy_(&from.flatten(0, -1)));
            });
        }
    }

    /// Makes this the state of `stage`, after so many updates.
    pub(crate) fn load_into(&self, stage: &mut Stage, updates: u64) {
        let of_stage = state(stage);
        let pieces = self.pieces(&of_stage);
        no_grad(|| {
            pieces.iter().zip(&of_stage).for_each(|(from, to)| to.shallow_clone().copy_(&from.view_as(to)));
        });
        stage.parameters.update_compute();
        stage.optimizer.set_updates(updates);
    }

    /// The parts of this buffer for each of these tensors.
    fn pieces(&self, tensors: &[Tensor]) -> Vec<Tensor> {
        let sizes: Vec<i64> = tensors.iter().map(|tensor| tensor.numel() as i64).collect();
        self.0.split_with_sizes(sizes, 0)
    }
}

/// What updates change, in the order of the parameters: the value and both moments.
fn state(stage: &Stage) -> Vec<Tensor> {
    let of_parameter = |(index, parameter): (usize, &Parameter)| {
        let moments = stage.optimizer.moments(index)?;
        Some([&parameter.value, &moments.exp_avg, &moments.exp_avg_sq].map(Tensor::shallow_clone))
    };
    stage.parameters.iter().enumerate().filter_map(of_parameter).flatten().collect()
}
