//! The copies that a stage holds in memory: of its own state, and of the state of the previous stage, which is the
//! previous rank in the [`PeerRing`]. The copies persist from one group to the next. The stage holds the newest copy of
//! each of the two states. It also holds the copy before the newest one until every stage has its newest copies.

use stagecoach_engine::state_dict::PeerCopy;
use stagecoach_kernels::device::{CudaContext, CudaError};
use stagecoach_planner::TrainerState;
use stagecoach_transport::PeerRing;

use super::choice::HeldCopies;

/// The maximum number of copies of each state that a stage holds.
const GENERATIONS: usize = 2;

/// The copies that a stage holds.
#[derive(Debug, Default)]
pub(in crate::train) struct StateCopies {
    /// This stage's rank in the group that made the copies, and that group; `None` before the first group.
    group: Option<(usize, PeerRing)>,
    /// The copies of this stage's state, oldest first.
    own: Vec<(TrainerState, PeerCopy)>,
    /// Unused buffers for copies of this stage's state.
    free: Vec<PeerCopy>,
    /// Complete copies of the previous stage's state, each with its step, oldest first.
    previous: Vec<(u64, PeerCopy)>,
}

impl StateCopies {
    /// Begins the group `ring`, in which this stage has `rank`. Drops the copies of another group or rank, because they
    /// contain parameters that other ranks own in this group.
    pub(super) fn set_group(&mut self, rank: usize, ring: PeerRing) {
        if self.group != Some((rank, ring)) {
            self.reset(rank, ring);
        }
    }

    /// Drops all copies, and begins the group `ring`, in which this stage has `rank`.
    pub(super) fn reset(&mut self, rank: usize, ring: PeerRing) {
        *self = StateCopies { group: Some((rank, ring)), ..StateCopies::default() };
    }

    /// Returns the report to the other stages.
    pub(super) fn held(&self) -> HeldCopies {
        HeldCopies {
            group: self.group,
            own: self.own.iter().map(|(state, _)| state.clone()).collect(),
            previous: self.previous.iter().map(|(step, _)| *step).collect(),
        }
    }

    /// Returns the copy of this stage's state after `step`.
    pub(super) fn own(&self, step: u64) -> Option<&PeerCopy> {
        self.own.iter().find(|(state, _)| state.step == step).map(|(_, copy)| copy)
    }

    /// Returns the copy of the previous stage's state after `step`.
    pub(super) fn previous(&self, step: u64) -> Option<&PeerCopy> {
        self.previous.iter().find(|(of, _)| *of == step).map(|(_, copy)| copy)
    }

    /// Returns a buffer for a copy of this stage's state. The buffer is that of the oldest copy if there are
    /// `GENERATIONS` copies, otherwise an unused or a new one. The buffer is pinned if the stage has a GPU.
    pub(super) fn take_own_buffer(&mut self, numel: usize, gpu: Option<CudaContext>) -> Result<PeerCopy, CudaError> {
        let oldest = if self.own.len() == GENERATIONS { Some(self.own.remove(0).1) } else { self.free.pop() };
        oldest.filter(|copy| copy.element_count() == numel).map_or_else(|| PeerCopy::zeros(numel, gpu), Ok)
    }

    /// Creates all buffers for copies of this stage's state, so that training pins no buffer later: to pin memory, the
    /// driver may have to wait for the GPU.
    pub(super) fn reserve_own(&mut self, numel: usize, gpu: CudaContext) -> Result<(), CudaError> {
        self.free.retain(|copy| copy.element_count() == numel);
        while self.own.len() + self.free.len() < GENERATIONS {
            self.free.push(PeerCopy::zeros(numel, Some(gpu))?);
        }
        Ok(())
    }

    /// Returns a buffer for a copy of the previous stage's state. The buffer is that of the oldest copy if there are
    /// `GENERATIONS` copies, otherwise a new one.
    pub(super) fn take_previous_buffer(&mut self, numel: usize) -> Result<PeerCopy, CudaError> {
        let oldest = (self.previous.len() == GENERATIONS).then(|| self.previous.remove(0).1);
        oldest.filter(|copy| copy.element_count() == numel).map_or_else(|| PeerCopy::zeros(numel, None), Ok)
    }

    /// Adds a copy of this stage's state.
    pub(super) fn hold_own(&mut self, state: TrainerState, copy: PeerCopy) {
        self.own.push((state, copy));
    }

    /// Adds a complete copy of the previous stage's state.
    pub(super) fn hold_previous(&mut self, step: u64, copy: PeerCopy) {
        self.previous.push((step, copy));
    }

    /// Drops the copies of steps after `step`, because all stages resume from `step`. When the stages repeat the later
    /// steps on other machines, they may compute other results.
    pub(super) fn drop_after(&mut self, step: u64) {
        let newer = self.own.extract_if(.., |(state, _)| state.step > step);
        self.free.extend(newer.map(|(_, copy)| copy));
        self.previous.retain(|(of, _)| *of <= step);
    }
}
