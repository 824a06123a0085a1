//! The start of a group from memory: all stages choose a memory checkpoint together, and each stage loads its state
//! from the copies.

use stagecoach_engine::execute::{Stage, owners};
use stagecoach_engine::state_dict::PeerCopy;
use stagecoach_group::Member;
use stagecoach_kernels::device::CudaError;
use stagecoach_model::ParameterSpec;
use stagecoach_planner::TrainerState;
use stagecoach_transport::{LinkError, LinkId, Links, PeerRing};
use tch::Tensor;

use super::choice::{CopySource, HeldCopies, MemoryCheckpoint, newest_complete};
use super::reshard::{Owners, Transfer, transfers};
use super::{MemoryCheckpoints, StateCopies};
use crate::train::collective::{all_gather, topic};
use crate::train::leave::LeaveReason;

/// The copies that the stages of a group hold when the group starts, by rank, and the memory checkpoint from which the
/// stages resume, if there is one.
#[derive(Debug)]
pub(in crate::train) struct PeerCheckpoints {
    pub(super) held: Vec<HeldCopies>,
    pub(super) chosen: Option<MemoryCheckpoint>,
}

impl PeerCheckpoints {
    /// Reports this stage's copies to the other stages, and chooses the newest checkpoint that is available for all, if
    /// it is of step `saved` or later. `saved` is the step of the newest checkpoint on the volume. All members call
    /// this together, and make the same choice. If the job has several replicas, the leader passes `recorded`, the last
    /// step in the metrics. A copy of the step after `recorded` may be chosen, because the copy contains the record of
    /// that step. A copy of any later step is not chosen: it was made by a group whose steps were discarded while the
    /// stage with the copy was absent.
    ///
    /// # Errors
    /// If the group fails during the call.
    pub(in crate::train) fn agree(
        member: &Member,
        copies: &StateCopies,
        ring: PeerRing,
        saved: u64,
        recorded: Option<u64>,
    ) -> Result<PeerCheckpoints, LeaveReason> {
        let described: Vec<(HeldCopies, Option<u64>)> = all_gather(member, topic::MEMORY, &(copies.held(), recorded))?;
        let recorded = described.first().and_then(|(_, recorded)| *recorded);
        let mut held: Vec<HeldCopies> = described.into_iter().map(|(held, _)| held).collect();
        if let Some(recorded) = recorded {
            held.iter_mut().for_each(|held| held.drop_after(recorded + 1));
        }
        let chosen = newest_complete(&held, ring).filter(|chosen| chosen.state.step >= saved);
        Ok(PeerCheckpoints { held, chosen })
    }

    /// Returns the state of training from which all stages resume, if it is in memory.
    pub(in crate::train) fn state(&self) -> Option<&TrainerState> {
        self.chosen.as_ref().map(|chosen| &chosen.state)
    }
}

impl MemoryCheckpoints<'_> {
    /// Loads `stage` from a memory checkpoint. If the previous stage has lost its state, this stage sends its copy of
    /// that state back.
    pub(super) fn load(
        &mut self,
        MemoryCheckpoint { state, sources, .. }: MemoryCheckpoint,
        stage: &mut Stage,
    ) -> Result<(), LinkError> {
        self.copies.set_group(self.rank, self.ring);
        let (step, updates) = (state.step, state.updates);
        let previous = self.ring.held_by(self.rank);
        if let (false, Some(copy)) = (sources[previous].is_own, self.copies.previous(step)) {
            self.links.to_previous.send(step as usize, copy.tensor()?)?;
        }
        if !sources[self.rank].is_own {
            let copy = self.copies.take_own_buffer(self.own_numel, stage.gpu_context())?;
            self.links.from_next.post_into(step as usize, copy.tensor()?);
            drop(self.links.from_next.wait(step as usize)?);
            self.copies.hold_own(state, copy);
        }
        let own = self.copies.own(step).ok_or_else(|| no_copy(step))?;
        Ok(own.load_into(stage, updates)?)
    }

    /// Loads `stage` from a memory checkpoint of a group with other replicas. Each parameter goes from the replica that
    /// has it to its current owner, over the links between the replicas of a stage.
    pub(super) fn load_resharded(
        &mut self,
        MemoryCheckpoint { state, ring, sources, .. }: MemoryCheckpoint,
        stage: &mut Stage,
        links: &mut Links,
    ) -> Result<(), LinkError> {
        let (replica, stages) = (stage.replica.index, self.ring.stages);
        let specs: Vec<&ParameterSpec> = stage.parameters.iter().map(|parameter| &parameter.spec).collect();
        let numels: Vec<u64> = specs.iter().map(|spec| spec.numel()).collect();
        let owners = Owners { numels: &numels, before: &owners(&specs, ring.replicas), now: &stage.sharding.owners };
        let stage_sources: Vec<CopySource> =
            (0..ring.replicas).map(|replica| sources[replica * stages + stage.index]).collect();
        let transfers = transfers(owners, &stage_sources);
        let part = |copy: &PeerCopy, offset: i64, numel: i64| -> Result<Tensor, CudaError> {
            Ok(copy.tensor()?.narrow(0, offset, numel))
        };
        let own = PeerCopy::zeros(self.own_numel, stage.gpu_context())?;
        let is_here = |transfer: &&Transfer| transfer.source.rank == self.rank;
        let arriving: Vec<&Transfer> =
            transfers.iter().filter(|transfer| transfer.owner == replica && !is_here(transfer)).collect();
        for transfer in &arriving {
            let link = LinkId::replicas(transfer.source.rank, self.rank);
            links.receiver(link)?.post_into(transfer.parameter, part(&own, transfer.offset, transfer.numel)?);
        }
        for transfer in transfers.iter().filter(is_here) {
            let held = match transfer.source.is_own {
                true => self.copies.own(state.step),
                false => self.copies.previous(state.step),
            };
            let held = held.ok_or_else(|| no_copy(state.step))?;
            let values = part(held, transfer.source_offset, transfer.numel)?;
            if transfer.owner == replica {
                part(&own, transfer.offset, transfer.numel)?.copy_(&values);
                continue;
            }
            let link = LinkId::replicas(self.rank, transfer.owner * stages + stage.index);
            links.sender(link)?.send(transfer.parameter, values)?;
        }
        for transfer in &arriving {
            let link = LinkId::replicas(transfer.source.rank, self.rank);
            drop(links.receiver(link)?.wait(transfer.parameter)?);
        }
        own.load_into(stage, state.updates)?;
        self.copies.reset(self.rank, self.ring);
        self.copies.hold_own(state, own);
        self.held.iter_mut().for_each(Vec::clear);
        Ok(())
    }
}

/// Returns the error of a missing copy. All ranks choose by the reports of all ranks, so a rank without the chosen copy
/// has made a wrong report.
fn no_copy(step: u64) -> LinkError {
    LinkError::Broken(format!("this stage does not have the copy of step {step} that it reported: this is a bug"))
}
