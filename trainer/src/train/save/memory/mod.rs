//! Checkpoints in memory. After a step, every stage copies its state, and sends the copy to another stage while
//! training continues. With several replicas, the receiver is the same stage of the next replica. With a single
//! replica, it is the next stage. When stages are lost, the surviving stages still have the newest complete checkpoint,
//! and a replacement stage receives its copy from the holder. A group with other replicas redistributes the copies.
//!
//! A stage votes on a step only when it has the complete copy of the previous step, and the group's verdict on a step
//! needs the votes of all stages. A verdict therefore means that every stage has that copy, that older copies may be
//! overwritten, and that the loss of one stage can't lose the last step.

mod choice;
mod copies;
mod interval;
mod load;
mod reshard;

use std::time::{Duration, Instant};

use stagecoach_api::job::MemoryCheckpointSpec;
use stagecoach_engine::execute::Stage;
use stagecoach_engine::state_dict::PeerCopy;
use stagecoach_telemetry::MemoryCheckpointRecord;
use stagecoach_transport::{LinkError, LinkId, Links, PeerRing, Receiver, Sender};

use choice::HeldCopies;
pub(in crate::train) use copies::StateCopies;
use interval::CheckpointInterval;
pub(in crate::train) use load::PeerCheckpoints;
use stagecoach_planner::TrainerState;

/// The checkpoints in memory of a stage in one group.
pub(in crate::train) struct MemoryCheckpoints<'a> {
    rank: usize,
    ring: PeerRing,
    copies: &'a mut StateCopies,
    links: CopyLinks,
    interval: CheckpointInterval,
    /// For each rank, the steps for which that rank held a copy of the previous rank's state when the group began.
    held: Vec<Vec<u64>>,
    /// The number of values in a copy of this stage's state, and in a copy of the previous stage's state.
    own_numel: usize,
    previous_numel: usize,
    /// The step and the buffer of the copy that is being received.
    receiving: Option<(u64, PeerCopy)>,
    /// The time for which training has waited for copies since the last record.
    stall: Duration,
    /// The number of bytes sent up to the last record.
    bytes_sent: u64,
}

/// The links on which a stage exchanges copies.
struct CopyLinks {
    to_next: Sender,
    from_previous: Receiver,
    /// The link on which the next stage returns this stage's state.
    from_next: Receiver,
    /// The link on which this stage returns the previous stage's state.
    to_previous: Sender,
}

impl CopyLinks {
    /// Takes the links out of `links`. Returns `None` if this group has no such links.
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
    /// Begins the memory checkpoints of a stage, and loads the chosen checkpoint into `stage`. [`PeerRing::link_ids`]
    /// lists the required links. Returns `None` if `links` lacks them. `own_numel` and `previous_numel` are the numbers
    /// of values in a copy of this stage's state, and in a copy of the state of the rank whose copies this stage holds.
    ///
    /// # Errors
    /// If the group fails during the call.
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
        // copies of another group or rank do not count, because they contain parameters that other ranks own now
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

    /// Prepares the first step. Every stage copies its initial state, and sends the copy to the next stage unless that
    /// stage already has it. Drops the copies of later steps, whichever checkpoint was loaded.
    ///
    /// # Errors
    /// If the link fails.
    pub(in crate::train) fn begin_training(&mut self, stage: &Stage, state: &TrainerState) -> Result<(), LinkError> {
        let step = state.step;
        self.copies.drop_after(step);
        self.hold_own(stage, state)?;
        // a stage that had the copy before the group began does not receive it again
        let has_previous = |rank: usize| self.held[rank].contains(&step);
        let next = self.ring.holder(self.rank);
        let (is_sent, is_received) = (!has_previous(next), !has_previous(self.rank));
        if is_received {
            self.receive(step)?;
        }
        if is_sent { self.send(step) } else { Ok(()) }
    }

    /// Whether a checkpoint follows `step`. The leader calls this for each step in order.
    pub(in crate::train) fn is_due(&mut self, step: u64) -> bool {
        self.interval.is_due(step)
    }

    /// Adds the duration of a step. `is_copying` is whether the step followed a checkpoint, whose copies were in
    /// transit during the step.
    pub(in crate::train) fn add_step(&mut self, duration: Duration, is_copying: bool) {
        self.interval.add(duration.as_secs_f64(), is_copying);
    }

    /// Copies the state of `stage`, and starts to send the copy. Every stage must have the copies of the previous
    /// checkpoint.
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

    /// Returns the cost of checkpoints for this stage since the last record.
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
