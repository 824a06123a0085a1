//! Audits: every few steps, one stage recomputes one microbatch of one chunk (contiguous layers) of another stage from
//! the same weights and inputs, and the results must be equal bit for bit. The auditor is the stage with the next rank.
//! A separate link carries the weights and inputs. The auditor computes during the next step, at the point of its
//! program at which it waited longest in the step before. At the end of the next step, the stages compare the hashes of
//! the two results. If the hashes differ, the two stages and a third one, if there is one, compute the item again. The
//! results then show which stage computes wrong results.

mod choice;
mod compare;
mod suspects;

use std::time::Instant;

use serde_json::Value;
use stagecoach_api::contract::FailureKind;
use stagecoach_api::job::{AuditSpec, OnDifference};
use stagecoach_data::MicrobatchLayout;
use stagecoach_engine::StageError;
use stagecoach_engine::execute::{ItemDigest, Stage, StageConfig, WorkInputs, WorkRecorder, work_numel};
use stagecoach_group::Roster;
use stagecoach_model::ModelPart;
use stagecoach_pipeline::{Placement, Replica};
use stagecoach_planner::{VerifiedPlan, environment_differences};
use stagecoach_telemetry::AuditDifference;
use stagecoach_transport::{LinkError, LinkId, Links, Receiver, Sender};
use tch::{Kind, Tensor};

use choice::{AuditedItem, audited_item, auditor};

/// The audits of a stage in one group.
pub(in crate::train) struct Audits<'a> {
    spec: AuditSpec,
    seed: u64,
    rank: usize,
    roster: &'a Roster,
    verified: &'a VerifiedPlan,
    /// The configuration from which this stage is built.
    config: &'a StageConfig<'a>,
    to_next: Sender,
    from_previous: Receiver,
    /// The environment of each rank. Stages must compute bit-identical results only if their environments are equal.
    environments: Vec<Value>,
    /// The recorder of the current step's audited item, if this stage computes that item.
    recorder: Option<WorkRecorder>,
    /// The audit that ends with the current step.
    pending: Option<PendingAudit>,
}

/// A work item between its computation and its recomputation by the auditor.
struct PendingAudit {
    step: u64,
    audited: AuditedItem,
    layout: MicrobatchLayout,
    target_count: u64,
    /// The inputs of the computation. Set on the audited stage, and on the auditor after its recomputation.
    inputs: Option<WorkInputs>,
    /// The result of this stage.
    result: Option<ItemDigest>,
    /// The time that the auditor spent on the recomputation, in seconds.
    seconds: f64,
}

impl<'a> Audits<'a> {
    /// Begins the audits of the stage of `rank`. Returns `None` if `links` lacks an audit link ([`LinkId::audit`]).
    pub(in crate::train) fn begin(
        spec: AuditSpec,
        seed: u64,
        (rank, roster): (usize, &'a Roster),
        verified: &'a VerifiedPlan,
        config: &'a StageConfig<'a>,
        links: &mut Links,
    ) -> Option<Audits<'a>> {
        let ranks = roster.members.len();
        let previous = (rank + ranks - 1) % ranks;
        let to_next = links.senders.remove(&LinkId::audit(rank, ranks))?;
        let from_previous = links.receivers.remove(&LinkId::audit(previous, ranks))?;
        Some(Audits {
            spec,
            seed,
            rank,
            roster,
            verified,
            config,
            to_next,
            from_previous,
            environments: Vec::new(),
            recorder: None,
            pending: None,
        })
    }

    /// Disables the audits in which a stage and its auditor run in different environments. Returns whether there are
    /// such stages.
    pub(in crate::train) fn set_environments(&mut self, environments: Vec<Value>) -> bool {
        self.environments = environments;
        (0..self.ranks()).any(|rank| !self.is_comparable(rank, auditor(rank, self.ranks())))
    }

    fn is_comparable(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|rank| self.environments.get(rank).unwrap_or(&Value::Null));
        environment_differences(one, other).is_empty()
    }

    /// Begins a step. Returns the recorder of the step's audited item if this stage computes that item.
    pub(in crate::train) fn begin_step(&self, step: u64, stage: &Stage) -> Option<WorkRecorder> {
        let audited = self.audited_item(step).filter(|audited| audited.rank == self.rank)?;
        Some(WorkRecorder::new(audited.item, stage))
    }

    /// Keeps the recorder of an executed program until the end of the step.
    pub(in crate::train) fn keep(&mut self, recorder: Option<WorkRecorder>) {
        self.recorder = recorder;
    }

    /// Ends the recording of a step that another step follows, and sends the recorded inputs to the auditor. `layouts`
    /// are the layouts of all microbatches of the step. `target_count` is the number of the step's targets.
    ///
    /// # Errors
    /// If the link fails.
    pub(in crate::train) fn end_step(
        &mut self,
        step: u64,
        layouts: &[MicrobatchLayout],
        target_count: u64,
    ) -> Result<(), LinkError> {
        let recorded = self.recorder.take().and_then(WorkRecorder::finish);
        let Some(audited) = self.audited_item(step) else { return Ok(()) };
        let Some(layout) = layouts.get(audited.microbatch).cloned() else { return Ok(()) };
        let (inputs, result) = recorded.unzip();
        if let Some(inputs) = &inputs {
            self.send(inputs)?;
        }
        if self.auditor(audited) == self.rank {
            self.post_receives(audited, &layout);
        }
        self.pending = Some(PendingAudit { step, audited, layout, target_count, inputs, result, seconds: 0.0 });
        Ok(())
    }

    /// Computes the work item that this stage must audit, unless this stage has already computed it.
    ///
    /// # Errors
    /// If the link fails.
    pub(in crate::train) fn compute(&mut self) -> Result<(), LinkError> {
        let (rank, ranks) = (self.rank, self.ranks());
        let is_due =
            |pending: &mut PendingAudit| pending.result.is_none() && auditor(pending.audited.rank, ranks) == rank;
        let Some(mut pending) = self.pending.take_if(is_due) else { return Ok(()) };
        let inputs = self.receive()?;
        let started = Instant::now();
        pending.result = Some(self.recompute(&pending, &inputs));
        pending.seconds = started.elapsed().as_secs_f64();
        pending.inputs = Some(inputs);
        self.pending = Some(pending);
        Ok(())
    }

    /// Returns the error with which this stage ends after a difference, if the job restarts after differences. All
    /// stages end, because the memory of each may contain wrong values. Stages that are not suspected end as after a
    /// request to stop, but save nothing.
    pub(in crate::train) fn exit_error(&self, difference: &AuditDifference) -> Option<StageError> {
        let is_suspected = difference.suspects.iter().any(|suspect| suspect.stage == self.stage(self.rank));
        let kind = if is_suspected { FailureKind::WrongResult } else { FailureKind::Drained };
        (self.spec.on_difference == OnDifference::Restart).then(|| StageError::new(kind, difference.message.clone()))
    }

    /// Returns the global rank of a group rank.
    fn stage(&self, rank: usize) -> u32 {
        self.roster.members[rank].rank as u32
    }

    fn ranks(&self) -> usize {
        self.roster.members.len()
    }

    fn auditor(&self, audited: AuditedItem) -> usize {
        auditor(audited.rank, self.ranks())
    }

    fn audited_item(&self, step: u64) -> Option<AuditedItem> {
        let VerifiedPlan { replica, training, blocks, .. } = self.verified;
        let drawn = audited_item(self.spec, self.seed, step, &training.placement, (blocks.all(), replica.count));
        drawn.filter(|audited| self.is_comparable(audited.rank, self.auditor(*audited)))
    }

    /// Returns the part of the model that a chunk holds.
    fn part(&self, chunk: usize) -> ModelPart {
        ModelPart::of_chunk(&self.verified.training.placement, &self.verified.partition, chunk)
    }

    fn send(&self, inputs: &WorkInputs) -> Result<(), LinkError> {
        // the small tensors go first, because a send may wait for the tensors before it, but never for its own tensor
        let WorkInputs { input, target_or_gradient, parameters } = inputs;
        let mut messages = [input, target_or_gradient, parameters].into_iter().enumerate();
        messages.try_for_each(|(message, tensor)| self.to_next.send(message, tensor.view([-1])))
    }

    fn post_receives(&mut self, audited: AuditedItem, layout: &MicrobatchLayout) {
        let part = self.part(audited.item.chunk);
        let tokens = (layout.rows * layout.length) as i64;
        let hidden = self.config.architecture.hidden_size() as i64;
        let kind = stagecoach_engine::execute::kind(self.config.precision);
        let tensor = |holds_token_ids| if holds_token_ids { (tokens, Kind::Int64) } else { (tokens * hidden, kind) };
        let parameters = (work_numel(self.config.architecture, &part), Kind::Float);
        let messages = [tensor(part.has_embedding), tensor(part.has_head), parameters];
        for (message, (numel, kind)) in messages.into_iter().enumerate() {
            self.from_previous.post(message, &[numel], kind);
        }
    }

    /// Receives the inputs whose receives were posted last.
    fn receive(&mut self) -> Result<WorkInputs, LinkError> {
        let hidden = self.config.architecture.hidden_size() as i64;
        let shaped = |tensor: Tensor| if tensor.kind() == Kind::Int64 { tensor } else { tensor.view([-1, hidden]) };
        let mut next = |message| self.from_previous.wait(message);
        Ok(WorkInputs { input: shaped(next(0)?), target_or_gradient: shaped(next(1)?), parameters: next(2)? })
    }

    fn recompute(&self, pending: &PendingAudit, inputs: &WorkInputs) -> ItemDigest {
        let chunk = pending.audited.item.chunk;
        // in this placement each chunk has a separate rank, so that `Stage::build` builds only this chunk
        let placement = Placement::linear(self.verified.training.placement.chunks());
        // replica 1 of 1, counted from 0, owns no parameter, so that the stage has no moments
        let replica = Replica { index: 1, count: 1 };
        let config = StageConfig { placement: &placement, seed: None, replica, ..*self.config };
        Stage::build(chunk, &config).recompute(chunk, inputs, &pending.layout, pending.target_count)
    }
}
