//! The state that a stage keeps from one group to the next, so that a surviving stage repeats as little reading and
//! building as possible.

use stagecoach_api::job::{Precision, Recompute};
use stagecoach_checkpoint::Fence;
use stagecoach_engine::execute::Stage;
use stagecoach_engine::state_dict::Snapshot;
use stagecoach_kernels::device::CudaError;
use stagecoach_pipeline::{Partition, Placement, Replica};
use stagecoach_planner::{JobConfig, Plan, VerifiedPlan};

use crate::train::save::memory::StateCopies;

/// The state of a stage between two groups.
#[derive(Debug, Default)]
pub(in crate::train) struct CarryOver {
    pub(in crate::train) last_group: LastGroup,
    pub(in crate::train) tensors: CarriedTensors,
    /// Whether the stage serves the job's page; only on a stage that has led a group.
    pub(in crate::train) serves_page: bool,
    /// Whether the stage has reported that a faster transport is missing; only on a stage that has led a group.
    pub(in crate::train) reported_missing_transports: bool,
}

/// The facts about the stage's last group on which the next group depends.
#[derive(Debug, Default)]
pub(in crate::train) struct LastGroup {
    /// The number of the group's fence, which is the group's right to commit checkpoints; `None` before the first
    /// group.
    pub(in crate::train) epoch: Option<u64>,
    /// The fence that the stage acquired for the group; only on the leader.
    pub(in crate::train) fence: Option<Fence>,
    /// The ranks that are lost and have not returned. The next group does not wait for them if it may train without a
    /// replica. `None` before the first group.
    pub(in crate::train) lost_ranks: Option<Vec<usize>>,
    /// The rank of the group's leader, if this stage becomes the leader when the process of that leader ends.
    pub(in crate::train) leads_after: Option<u32>,
    /// The group whose leader's process has ended, if this stage succeeds that leader and leads the next group.
    pub(in crate::train) group_to_succeed: Option<u64>,
}

/// The tensors of the last group that the next group may use.
#[derive(Debug, Default)]
pub(in crate::train) struct CarriedTensors {
    /// The layout of the tensors in the other fields.
    layout: Option<TensorLayout>,
    /// The last group's stage. The values of its tensors are unspecified.
    pub(in crate::train) stage: Option<Stage>,
    pub(in crate::train) snapshot: Option<LastSnapshot>,
    pub(in crate::train) copies: StateCopies,
}

/// A copy of the state that this stage saved, or was about to save, after a step. The copy depends only on the job and
/// the step, and equals the content of the step's checkpoint, whichever group writes that checkpoint.
#[derive(Debug)]
pub(in crate::train) struct LastSnapshot {
    /// The number of finished steps.
    pub(in crate::train) step: u64,
    pub(in crate::train) snapshot: Snapshot,
}

/// The settings that determine which tensors a stage has.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::train) struct TensorLayout {
    placement: Placement,
    partition: Partition,
    recompute: Recompute,
    precision: Precision,
    /// The replica, because each replica owns different parameters.
    replica: Replica,
}

impl TensorLayout {
    pub(in crate::train) fn of(config: &JobConfig, plan: &Plan, verified: &VerifiedPlan) -> TensorLayout {
        TensorLayout {
            placement: verified.training.placement.clone(),
            partition: verified.partition.clone(),
            recompute: plan.recompute,
            precision: config.training.precision,
            replica: verified.replica,
        }
    }

    /// Returns the layers of each stage, in their order, and the stages of the embedding and the head. Both determine
    /// the parameters in memory checkpoints.
    fn layers(&self) -> (Vec<Vec<usize>>, [usize; 2]) {
        let TensorLayout { placement, partition, .. } = self;
        let stage_layers = |stage| placement.chunks_of(stage).flat_map(|chunk| partition.range(chunk)).collect();
        ((0..placement.ranks()).map(stage_layers).collect(), [placement.first_rank(), placement.last_rank()])
    }
}

impl CarriedTensors {
    /// Begins a group with this layout. Drops the tensors of another layout.
    pub(in crate::train) fn set_layout(&mut self, layout: TensorLayout) {
        let before = self.layout.replace(layout.clone());
        if before.as_ref() == Some(&layout) {
            return;
        }
        (self.stage, self.snapshot) = Default::default();
        // The copies stay usable if every stage keeps its layers. Each copy records the replicas of its group, and the
        // division of a stage's layers into chunks does not affect a copy.
        if before.is_none_or(|before| before.layers() != layout.layers()) {
            self.copies = StateCopies::default();
        }
    }

    /// Takes the last group's stage, so that the next group reuses its memory. The values of its tensors are
    /// unspecified.
    ///
    /// # Errors
    /// If the GPU's driver fails.
    pub(in crate::train) fn take_stage(&mut self) -> Result<Option<Stage>, CudaError> {
        let mut stage = self.stage.take();
        stage.as_mut().map_or(Ok(()), Stage::discard_step)?;
        Ok(stage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_of_the_same_parameters_however_a_stage_is_divided() {
        let layout = |placement: &[usize], layers: &[usize], count| TensorLayout {
            placement: Placement::new(placement.to_vec()).unwrap(),
            partition: Partition { layers: layers.to_vec() },
            recompute: Recompute::None,
            precision: Precision::Float32,
            replica: Replica { index: 0, count },
        };
        let alone = layout(&[0, 1], &[3, 2], 1);
        let replica = layout(&[0, 0, 1, 1], &[1, 2, 1, 1], 2);
        assert_ne!(alone, replica);
        assert_eq!(alone.layers(), replica.layers());
        for other in [layout(&[0, 1], &[2, 3], 1), layout(&[0, 1, 1, 0], &[1, 1, 1, 2], 1)] {
            assert_ne!(alone.layers(), other.layers());
        }
    }
}
