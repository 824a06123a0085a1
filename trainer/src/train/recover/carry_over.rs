//! The state that a stage keeps from one group to the next, so that a surviving stage reads and builds as little as
//! possible again.

use stagecoach_api::job::{Precision, Recompute};
use stagecoach_checkpoint::Fence;
use stagecoach_engine::execute::Stage;
use stagecoach_engine::state_dict::Snapshot;
use stagecoach_kernels::device::CudaError;
use stagecoach_pipeline::{Partition, Placement, Replica};
use stagecoach_planner::{JobConfig, Plan, VerifiedPlan};

use crate::train::save::memory::StateCopies;

/// The kept state of a stage.
#[derive(Debug, Default)]
pub(in crate::train) struct CarryOver {
    pub(in crate::train) last_group: LastGroup,
    pub(in crate::train) tensors: CarriedTensors,
    /// Whether the stage serves the job's page; only on a stage that has led a group.
    pub(in crate::train) serves_page: bool,
    /// Whether the stage has reported that a faster carrier is missing; only on a stage that has led a group.
    pub(in crate::train) reported_missing_transports: bool,
}

/// The facts of the stage's last group that the next one depends on.
#[derive(Debug, Default)]
pub(in crate::train) struct LastGroup {
    /// The number of the group's fence.
    pub(in crate::train) epoch: Option<u64>,
    /// The fence that the stage acquired for the group; only on the leader.
    pub(in crate::train) fence: Option<Fence>,
    /// The ranks that are lost and have not returned. The next group does not wait for them if it may train without a
    /// replica. `None` before the first group.
    pub(in crate::train) lost_ranks: Option<Vec<usize>>,
    /// The leader of the group, if this stage succeeds the leader when the leader's process ends.
    pub(in crate::train) leads_after: Option<u32>,
    /// A group whose leader's process has ended, so that this stage leads instead.
    pub(in crate::train) leaderless_group: Option<u64>,
}

/// The tensors of the last group that the next one may use.
#[derive(Debug, Default)]
pub(in crate::train) struct CarriedTensors {
    /// The layout of the other fields.
    layout: Option<Layout>,
    /// The last group's stage, with arbitrary values.
    pub(in crate::train) stage: Option<Stage>,
    pub(in crate::train) snapshot: Option<LastSnapshot>,
    pub(in crate::train) copies: StateCopies,
}

/// A copy of the state that this stage saved, or was about to save, after a step. The copy is a function of job and
/// step alone, and equals the content of that step's checkpoint, independent of its writer.
#[derive(Debug)]
pub(in crate::train) struct LastSnapshot {
    /// Number of finished steps.
    pub(in crate::train) step: u64,
    pub(in crate::train) snapshot: Snapshot,
}

/// The settings that determine which tensors a stage has.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::train) struct Layout {
    placement: Placement,
    partition: Partition,
    recompute: Recompute,
    precision: Precision,
    /// Each replica owns other parameters.
    replica: Replica,
}

impl Layout {
    pub(in crate::train) fn of(config: &JobConfig, plan: &Plan, verified: &VerifiedPlan) -> Layout {
        Layout {
            placement: verified.training.placement.clone(),
            partition: verified.partition.clone(),
            recompute: plan.recompute,
            precision: config.training.precision,
            replica: verified.replica,
        }
    }

    /// The layers of each stage, in their order, and the stages of embedding and head. Both determine the parameters in
    /// copies.
    fn layers(&self) -> (Vec<Vec<usize>>, [usize; 2]) {
        let Layout { placement, partition, .. } = self;
        let stage_layers = |stage| placement.chunks_of(stage).flat_map(|chunk| partition.range(chunk)).collect();
        ((0..placement.ranks()).map(stage_layers).collect(), [placement.first_rank(), placement.last_rank()])
    }
}

impl CarriedTensors {
    /// Begins a group with this layout, and drops state of another layout.
    pub(in crate::train) fn set_layout(&mut self, layout: Layout) {
        let before = self.layout.replace(layout.clone());
        if before.as_ref() == Some(&layout) {
            return;
        }
        (self.stage, self.snapshot) = Default::default();
        // copies record their own group's replicas, and the division of a stage's layers into chunks does not affect
        // them
        if before.is_none_or(|before| before.layers() != layout.layers()) {
            self.copies = StateCopies::default();
        }
    }

    /// The last group's stage: its memory, with arbitrary values.
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
        let layout = |placement: &[usize], layers: &[usize], count| Layout {
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
