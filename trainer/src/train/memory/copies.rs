//! The copies that a stage holds in memory, of its own state and of that of the stage before it, also from one group to the
//! next. There are two of each: the last, and one before it until every stage has the last.

use super::choice::HeldCopies;
use crate::links::CopyRing;
use crate::plan::TrainerState;
use crate::state_dict::StateCopy;
use crate::sys::{CudaContext, CudaError};

/// How many copies of one stage are held.
const GENERATIONS: usize = 2;

/// What a stage holds.
#[derive(Debug, Default)]
pub(in crate::train) struct StateCopies {
    /// The group whose ranks own what is in the copies, and the rank that this stage had in it.
    group: Option<(usize, CopyRing)>,
    /// Oldest first.
    own: Vec<(TrainerState, StateCopy)>,
    /// Buffers for more copies of its own.
    free: Vec<StateCopy>,
    /// By their steps, oldest first; whole ones only.
    previous: Vec<(u64, StateCopy)>,
}

impl StateCopies {
    /// Begins with a group in which this stage has `rank`. What is held of a group with other ranks is dropped: others owned it.
    pub(super) fn set_group(&mut self, rank: usize, ring: CopyRing) {
        if self.group != Some((rank, ring)) {
            self.begin_anew(rank, ring);
        }
    }

    /// Begins with a group in which this stage has `rank`, and holds nothing.
    pub(super) fn begin_anew(&mut self, rank: usize, ring: CopyRing) {
        *self = StateCopies { group: Some((rank, ring)), ..StateCopies::default() };
    }

    /// What the other stages are told.
    pub(super) fn held(&self) -> HeldCopies {
        HeldCopies {
            group: self.group,
            own: self.own.iter().map(|(state, _)| state.clone()).collect(),
            previous: self.previous.iter().map(|(step, _)| *step).collect(),
        }
    }

    /// The copy of this stage after `step`.
    pub(super) fn own(&self, step: u64) -> Option<&StateCopy> {
        self.own.iter().find(|(state, _)| state.step == step).map(|(_, copy)| copy)
    }

    /// The copy of the previous stage after `step`.
    pub(super) fn previous(&self, step: u64) -> Option<&StateCopy> {
        self.previous.iter().find(|(of, _)| *of == step).map(|(_, copy)| copy)
    }

    /// A buffer for a copy of this stage, the oldest one's once there are enough; a new one is pinned for its GPU.
    pub(super) fn take_own_buffer(&mut self, numel: usize, gpu: Option<CudaContext>) -> Result<StateCopy, CudaError> {
        let oldest = if self.own.len() == GENERATIONS { Some(self.own.remove(0).1) } else { self.free.pop() };
        oldest.filter(|copy| copy.len() == numel).map_or_else(|| StateCopy::zeros(numel, gpu), Ok)
    }

    /// Makes all buffers for copies of this stage, so that none is pinned while it trains: the driver may wait for the GPU then.
    pub(super) fn reserve_own(&mut self, numel: usize, gpu: CudaContext) -> Result<(), CudaError> {
        self.free.retain(|copy| copy.len() == numel);
        while self.own.len() + self.free.len() < GENERATIONS {
            self.free.push(StateCopy::zeros(numel, Some(gpu))?);
        }
        Ok(())
    }

    /// The same for the previous stage.
    pub(super) fn take_previous_buffer(&mut self, numel: usize) -> Result<StateCopy, CudaError> {
        let oldest = (self.previous.len() == GENERATIONS).then(|| self.previous.remove(0).1);
        oldest.filter(|copy| copy.len() == numel).map_or_else(|| StateCopy::zeros(numel, None), Ok)
    }

    /// Holds a copy of this stage.
    pub(super) fn hold_own(&mut self, state: TrainerState, copy: StateCopy) {
        self.own.push((state, copy));
    }

    /// Holds a whole copy of the previous stage.
    pub(super) fn hold_previous(&mut self, step: u64, copy: StateCopy) {
        self.previous.push((step, copy));
    }

    /// Drops what is newer than `step`, from which all go on: what they train again need not be the same on other machines.
    pub(super) fn drop_after(&mut self, step: u64) {
        let newer = self.own.extract_if(.., |(state, _)| state.step > step);
        self.free.extend(newer.map(|(_, copy)| copy));
        self.previous.retain(|(of, _)| *of <= step);
    }
}
