//! Checkpoints in memory. After a step every stage copies its state, and sends the copy to another stage while training
//! continues: to the same stage of the next replica or, with a single replica, to the next stage. When stages are lost,
//! the others still have the newest complete checkpoint, and a replacement stage receives its part from the stage that
//! holds it. A group with other replicas redistributes the parts. A stage votes on a step only when it has the complete
//! copy of the previous step. A verdict therefore means that every stage has that copy, that older copies may be
//! overwritten, and that the loss of one stage can't lose the last step.

mod choice;
mod copies;
mod interval;
mod reshard;

use std::time::{Duration, Instant};

use stagecoach_api::job::MemoryCheckpointSpec;
use stagecoach_engine::execute::{Stage, owners};
use stagecoach_engine::state_dict::PeerCopy;
use stagecoach_group::Member;
use stagecoach_kernels::device::CudaError;
use stagecoach_model::ParameterSpec;
use stagecoach_telemetry::MemoryCheckpointRecord;
use stagecoach_transport::{LinkError, LinkId, Links, PeerRing, Receiver, Sender};
use tch::Tensor;

use crate::train::collective::{all_gather, topic};
use crate::train::leave::LeaveReason;
use choice::{CopySource, HeldCopies, MemoryCheckpoint, newest_complete};
pub(in crate::train) use copies::StateCopies;
use interval::CheckpointInterval;
use reshard::{Owners, Transfer, transfers};
use stagecoach_planner::TrainerState;

/// The copies that the stages of a group hold at its start, by rank, and the memory checkpoint from which they resume,
/// if there is one.
#[derive(Debug)]
pub(in crate::train) struct PeerCheckpoints {
    held: Vec<HeldCopies>,
    chosen: Option<MemoryCheckpoint>,
}

impl PeerCheckpoints {
    /// Reports this stage's copies to the other stages, and chooses the newest checkpoint that is available for all, if
    /// it is of step `saved` or later. All stages call this together, and make the same choice. Where replicas may be
    /// missing, stage 0 passes the last `recorded` step. A copy of the next step counts, because it contains that
    /// step's record. A copy of a later step belongs to a group that was abandoned while its stage was away, and whose
    /// steps were discarded.
    ///
    /// # Errors
    /// If the group fails meanwhile.
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

    /// The state of training from which all stages resume, if it is in memory.
    pub(in crate::train) fn state(&self) -> Option<&TrainerState> {
        self.chosen.as_ref().map(|chosen| &chosen.state)
    }
}

/// The checkpoints in memory of a stage in one group.
pub(in crate::train) struct MemoryCheckpoints<'a> {
    rank: usize,
    ring: PeerRing,
    copies: &'a mut StateCopies,
    links: CopyLinks,
    interval: CheckpointInterval,
    /// For each rank, the steps after which it held a copy of the previous rank's state when the group began.
    held: Vec<Vec<u64>>,
    /// Number of values in a copy of this stage, and in a copy of the previous stage.
    own_numel: usize,
    previous_numel: usize,
    /// The step of the copy that is being received.
    receiving: Option<(u64, PeerCopy)>,
    /// The time for which training has waited for copies since the last record.
    stall: Duration,
    /// Bytes sent up to the last record.
    bytes_sent: u64,
}

/// The links of one stage.
struct CopyLinks {
    to_next: Sender,
    from_previous: Receiver,
    /// Returns this stage's own state.
    from_next: Receiver,
    /// Returns the previous stage's state.
    to_previous: Sender,
}

impl CopyLinks {
    /// Takes the links out of `links`; `None` if this group has none.
    fn take(links: &mut Links, rank: usize, ring: PeerRing) -> Option<CopyLinks> {
        let previous = ring.held_by(rank);
        Some(CopyLinks {
            to_next: links.senders.remove(&LinkId::state_copy(rank, ring))?,
            from_previous: links.receivers.remove(&LinkId::state_copy(previous, ring))?,
            from_next: links.receivers.remove(&LinkId::held_copy(rank, ring))?,
            to_previous: links.senders.remove(&LinkId::held_copy(previous, ring))?,
        })
    }
}

impl<'a> MemoryCheckpoints<'a> {
    /// The memory checkpoints of a stage, with `links` that were opened with [`PeerRing::link_ids`] (`None` without
    /// such links). Loads the chosen checkpoint into `stage`. The two numbers are the values in a copy of this stage,
    /// and in a copy of the rank whose copies it holds.
    ///
    /// # Errors
    /// If the group fails meanwhile.
    pub(in crate::train) fn begin(
        spec: &MemoryCheckpointSpec,
        group: PeerCheckpoints,
        (rank, ring): (usize, PeerRing),
        [own_numel, previous_numel]: [usize; 2],
        links: &mut Links,
        copies: &'a mut StateCopies,
        stage: &mut Stage,
    ) -> Result<Option<MemoryCheckpoints<'a>>, LinkError> {
        let PeerCheckpoints { held, chosen } = group;
        let Some(copy_links) = CopyLinks::take(links, rank, ring) else { return Ok(None) };
        // state that other ranks owned does not count
        let previous = |(rank, held): (usize, &HeldCopies)| match held.group == Some((rank, ring)) {
            true => held.previous.clone(),
            false => Vec::new(),
        };
        let held = held.iter().enumerate().map(previous).collect();
        let mut memory = MemoryCheckpoints {
            rank,
            ring,
            copies,
            links: copy_links,
            interval: CheckpointInterval::new(spec.every_steps),
            held,
            own_numel,
            previous_numel,
            receiving: None,
            stall: Duration::ZERO,
            bytes_sent: 0,
        };
        match chosen {
            Some(chosen) if chosen.is_in_place => memory.load(chosen, stage)?,
            Some(chosen) => memory.load_resharded(chosen, stage, links)?,
            None => memory.copies.set_group(rank, ring),
        }
        if let Some(gpu) = stage.gpu_context() {
            memory.copies.reserve_own(own_numel, gpu)?;
        }
        Ok(Some(memory))
    }

    /// Loads `stage` from a checkpoint in memory, and sends the previous stage its part if that stage lacks it.
    fn load(
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

    /// Loads `stage` from a checkpoint in memory of a group with other replicas. Each parameter goes from the replica
    /// that has it to its current owner, over the links between the replicas of a stage.
    fn load_resharded(
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

    /// Prepares the first step: every stage copies its initial state, and the next stage receives the copy unless it
    /// has it already. Copies of later steps are dropped, whichever checkpoint was loaded.
    ///
    /// # Errors
    /// If the link fails.
    pub(in crate::train) fn begin_training(&mut self, stage: &Stage, state: &TrainerState) -> Result<(), LinkError> {
        let step = state.step;
        self.copies.drop_after(step);
        self.hold_own(stage, state)?;
        // a stage that has the copy since before the group began does not need it again
        let has_previous = |rank: usize| self.held[rank].contains(&step);
        let next = self.ring.holder(self.rank);
        let (is_sent, is_received) = (!has_previous(next), !has_previous(self.rank));
        if is_received {
            self.receive(step)?;
        }
        if is_sent { self.send(step) } else { Ok(()) }
    }

    /// Whether a checkpoint follows `step`. Stage 0 calls this for each step in order.
    pub(in crate::train) fn is_due(&mut self, step: u64) -> bool {
        self.interval.is_due(step)
    }

    /// Adds the duration of a step; `is_copying` means that it followed a checkpoint, whose copies were in transit
    /// during the step.
    pub(in crate::train) fn add_step(&mut self, duration: Duration, is_copying: bool) {
        self.interval.add(duration.as_secs_f64(), is_copying);
    }

    /// Copies the state of `stage`, and starts to send it. Every stage must have the previous copy.
    ///
    /// # Errors
    /// If the link fails.
    pub(in crate::train) fn checkpoint(&mut self, stage: &Stage, state: &TrainerState) -> Result<(), LinkError> {
        let started = Instant::now();
        self.hold_own(stage, state)?;
        self.receive(state.step)?;
        self.send(state.step)?;
        self.stall += started.elapsed();
        Ok(())
    }

    /// Waits until the copy from the previous stage has arrived completely, if one is in transit.
    ///
    /// # Errors
    /// If the link fails.
    pub(in crate::train) fn wait(&mut self) -> Result<(), LinkError> {
        let Some((step, copy)) = self.receiving.take() else { return Ok(()) };
        let started = Instant::now();
        drop(self.links.from_previous.wait(step as usize)?);
        self.copies.hold_previous(step, copy);
        self.stall += started.elapsed();
        Ok(())
    }

    /// The cost of checkpoints for this stage since the last record.
    pub(in crate::train) fn take_record(&mut self) -> MemoryCheckpointRecord {
        let bytes = self.links.to_next.bytes();
        let bytes_sent = bytes - std::mem::replace(&mut self.bytes_sent, bytes);
        MemoryCheckpointRecord { stall_seconds: std::mem::take(&mut self.stall).as_secs_f64(), bytes_sent }
    }

    fn hold_own(&mut self, stage: &Stage, state: &TrainerState) -> Result<(), LinkError> {
        if self.copies.own(state.step).is_none() {
            let mut copy = self.copies.take_own_buffer(self.own_numel, stage.gpu_context())?;
            copy.copy_from(stage)?;
            self.copies.hold_own(state.clone(), copy);
        }
        Ok(())
    }

    fn receive(&mut self, step: u64) -> Result<(), LinkError> {
        let copy = self.copies.take_previous_buffer(self.previous_numel)?;
        self.links.from_previous.post_into(step as usize, copy.tensor()?);
        self.receiving = Some((step, copy));
        Ok(())
    }

    fn send(&self, step: u64) -> Result<(), LinkError> {
        let Some((tensor, complete)) = self.copies.own(step).map(PeerCopy::to_send) else { return Ok(()) };
        self.links.to_next.send_when(step as usize, tensor, complete)
    }
}

/// The error of a missing copy. All ranks choose by the reports of all ranks, so a rank without the chosen copy has
/// made a wrong report.
fn no_copy(step: u64) -> LinkError {
    LinkError::Broken(format!("the copy of step {step} that this stage was to have is not there"))
}
