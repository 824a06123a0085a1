//! Audits: every few steps, the next stage recomputes one microbatch of one chunk from the same weights and inputs, and
//! compares the results bit for bit. The inputs go over a link of their own. The auditor computes during the next step,
//! at the point where it waited longest in the step before. The hashes of both results are compared at the end of that
//! step. If they differ, both stages compute once more, and so does a third stage, if there is one. The results then
//! show which of them computes wrong.

mod choice;
mod suspects;

use std::collections::BTreeSet;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stagecoach_api::contract::{FailureKind, SuspectedStage};
use stagecoach_api::job::{AuditSpec, OnDifference};
use stagecoach_data::MicrobatchLayout;
use stagecoach_engine::StageError;
use stagecoach_engine::execute::{ItemDigest, Stage, StageConfig, WorkInputs, WorkRecorder, work_numel};
use stagecoach_group::{Member, Roster};
use stagecoach_model::ModelPart;
use stagecoach_pipeline::{Placement, Replica};
use stagecoach_planner::VerifiedPlan;
use stagecoach_planner::environment_differences;
use stagecoach_telemetry::{AuditDifference, AuditRecord};
use stagecoach_transport::{LinkError, LinkId, Links, Receiver, Sender};
use tch::{Kind, Tensor};

use crate::train::collective::{all_gather, topic};
use crate::train::leave::LeaveReason;
use crate::train::recover::link_failure;
use choice::{AuditedItem, audited_item, auditor};
use suspects::{Suspects, suspects};

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
    /// The environment of each rank; results must be bit-identical only between equal environments.
    environments: Vec<Value>,
    /// The recorded work item of the current step.
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
    /// The inputs of the computation: set on the audited stage, and on the auditor from the time at which it computes.
    inputs: Option<WorkInputs>,
    /// The result of this stage.
    result: Option<ItemDigest>,
    /// Seconds that the auditor computed.
    seconds: f64,
}

/// A stage's message to the others about a work item.
#[derive(Default, Serialize, Deserialize)]
struct AuditResult {
    result: Option<ItemDigest>,
    seconds: f64,
}

/// A stage's message to the others about a work item for which two of them have different results.
#[derive(Default, Serialize, Deserialize)]
struct Recomputed {
    /// The hash of the stage's inputs, if the stage is one of the two.
    inputs_hash: Option<String>,
    /// All results of the stage.
    results: Vec<ItemDigest>,
}

impl<'a> Audits<'a> {
    /// The audits of the stage of `rank`, with `links` that were opened with [`LinkId::audit`]; `None` without such
    /// links.
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

    /// Disables audits between stages in different environments from now on. Returns whether there are any.
    pub(in crate::train) fn set_environments(&mut self, environments: Vec<Value>) -> bool {
        self.environments = environments;
        (0..self.ranks()).any(|rank| !self.is_comparable(rank, auditor(rank, self.ranks())))
    }

    fn is_comparable(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|rank| self.environments.get(rank).unwrap_or(&Value::Null));
        environment_differences(one, other).is_empty()
    }

    /// Begins a step. Returns the recorder of the audited item if it belongs to this stage.
    pub(in crate::train) fn begin_step(&self, step: u64, stage: &Stage) -> Option<WorkRecorder> {
        let audited = self.audited_item(step).filter(|audited| audited.rank == self.rank)?;
        Some(WorkRecorder::new(audited.item, stage))
    }

    /// Keeps the recorder of an executed program until the end of the step.
    pub(in crate::train) fn keep(&mut self, recorder: Option<WorkRecorder>) {
        self.recorder = recorder;
    }

    /// Ends the program of a step that another step follows: sends the recorded inputs to the auditor. `layouts` are
    /// those of all microbatches of the step, `target_count` is the number of its targets.
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

    /// Computes the work item that this stage must audit, unless it has done so already.
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

    /// Compares the results at the end of the step after the audited one. All stages call this together. `None` if
    /// nothing was audited.
    ///
    /// # Errors
    /// If the group fails meanwhile.
    pub(in crate::train) fn compare(&mut self, member: &Member) -> Result<Option<AuditRecord>, LeaveReason> {
        let Some(pending) = self.pending.take() else { return Ok(None) };
        let own = AuditResult { result: pending.result.clone(), seconds: pending.seconds };
        let all: Vec<AuditResult> = all_gather(member, topic::AUDIT, &own)?;
        let (rank, by) = (pending.audited.rank, self.auditor(pending.audited));
        let what = match (&all[rank].result, &all[by].result) {
            (Some(one), Some(other)) => one.first_difference(other),
            _ => {
                return Err(StageError::invalid(
                    "a stage has not computed what is audited: all stages must run one version",
                )
                .into());
            }
        };
        let difference =
            what.map(|what| self.identify_suspects(member, &pending, all[rank].result.clone(), what)).transpose()?;
        Ok(Some(AuditRecord {
            step: pending.step,
            stage: self.stage(rank),
            chunk: pending.audited.item.chunk,
            microbatch: pending.audited.microbatch,
            by: self.stage(by),
            seconds: all[by].seconds,
            difference,
        }))
    }

    /// The error with which this stage ends after a difference, if the job is configured so. All stages end, since the
    /// memory of each may be wrong. Stages that are not suspected end as on a request to stop, but save nothing.
    pub(in crate::train) fn failure_to_leave_with(&self, difference: &AuditDifference) -> Option<StageError> {
        let is_suspected = difference.suspects.iter().any(|suspect| suspect.stage == self.stage(self.rank));
        let kind = if is_suspected { FailureKind::WrongResult } else { FailureKind::Drained };
        (self.spec.on_difference == OnDifference::Restart).then(|| StageError::new(kind, difference.message.clone()))
    }

    /// Makes both stages and a third one recompute, and identifies the suspects. `audited` is the first result of the
    /// audited stage.
    fn identify_suspects(
        &mut self,
        member: &Member,
        pending: &PendingAudit,
        audited: Option<ItemDigest>,
        what: &str,
    ) -> Result<AuditDifference, LeaveReason> {
        let (rank, by) = (pending.audited.rank, self.auditor(pending.audited));
        let third = auditor(by, self.ranks());
        let third = Some(third).filter(|third| *third != rank && self.is_comparable(rank, *third));
        let broken = |error| link_failure(member, error);
        let (mut again, mut inputs_hash) = (None, None);
        if let Some(inputs) = &pending.inputs {
            if third.is_some() && self.rank == by {
                self.send(inputs).map_err(broken)?;
            }
            inputs_hash = Some(inputs.hash());
            again = Some(self.recompute(pending, inputs));
        }
        if third == Some(self.rank) {
            self.post_receives(pending.audited, &pending.layout);
            let inputs = self.receive().map_err(broken)?;
            again = Some(self.recompute(pending, &inputs));
        }
        let first = if self.rank == rank { audited } else { pending.result.clone() };
        let own = Recomputed { inputs_hash, results: first.into_iter().chain(again).collect() };
        let all: Vec<Recomputed> = all_gather(member, topic::AUDIT, &own)?;
        if all[rank].inputs_hash != all[by].inputs_hash {
            let unequal =
                "what the one has sent is not what the other has: a memory or the network between them has changed it";
            return Ok(self.difference(pending, what, &[rank, by].into(), unequal.to_owned()));
        }
        let results = all.into_iter().map(|one| one.results).enumerate().filter(|(_, all)| !all.is_empty());
        let Suspects { ranks, is_clear } = suspects(&results.collect::<Vec<_>>());
        let names = ranks.iter().map(|&rank| self.name(rank)).collect::<Vec<_>>().join(" and ");
        let conclusion = match is_clear {
            true => format!("{names} computed wrong: two stages came to another result when all computed again"),
            false => format!("one of {names} computes wrong: no two stages came to one result when all computed again"),
        };
        Ok(self.difference(pending, what, &ranks, conclusion))
    }

    /// The sentence that describes a difference.
    fn difference(
        &self,
        pending: &PendingAudit,
        what: &str,
        suspects: &BTreeSet<usize>,
        conclusion: String,
    ) -> AuditDifference {
        let PendingAudit { step, audited, .. } = pending;
        let AuditedItem { item, microbatch, .. } = audited;
        AuditDifference {
            suspects: suspects.iter().map(|&rank| self.suspect(rank)).collect(),
            message: format!(
                "audit of step {step}: {} and {} differ in the {what} of chunk {} and microbatch {microbatch}; {conclusion}",
                self.name(audited.rank),
                self.name(self.auditor(*audited)),
                item.chunk,
            ),
        }
    }

    /// A rank of the group and its machine, in words.
    fn name(&self, rank: usize) -> String {
        format!("stage {} on {}", self.stage(rank), self.roster.members[rank].host)
    }

    fn suspect(&self, rank: usize) -> SuspectedStage {
        let member = &self.roster.members[rank];
        SuspectedStage { stage: member.rank as u32, incarnation: member.incarnation }
    }

    /// The job's rank for a rank of the group.
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

    /// The part of the model that a chunk holds.
    fn part(&self, chunk: usize) -> ModelPart {
        ModelPart::of_chunk(&self.verified.training.placement, &self.verified.partition, chunk)
    }

    fn send(&self, inputs: &WorkInputs) -> Result<(), LinkError> {
        // the small tensors first, because the call does not wait until the last tensor has left
        let WorkInputs { input, target_or_gradient, parameters } = inputs;
        let mut messages = [input, target_or_gradient, parameters].into_iter().enumerate();
        messages.try_for_each(|(message, tensor)| self.to_next.send(message, tensor.view([-1])))
    }

    fn post_receives(&mut self, audited: AuditedItem, layout: &MicrobatchLayout) {
        let part = self.part(audited.item.chunk);
        let tokens = (layout.rows * layout.length) as i64;
        let hidden = self.config.architecture.hidden_size() as i64;
        let kind = stagecoach_engine::execute::kind(self.config.precision);
        let tensor = |is_of_tokens| if is_of_tokens { (tokens, Kind::Int64) } else { (tokens * hidden, kind) };
        let parameters = (work_numel(self.config.architecture, &part), Kind::Float);
        let messages = [tensor(part.has_embedding), tensor(part.has_head), parameters];
        for (message, (numel, kind)) in messages.into_iter().enumerate() {
            self.from_previous.post(message, &[numel], kind);
        }
    }

    /// Receives the inputs that were posted last.
    fn receive(&mut self) -> Result<WorkInputs, LinkError> {
        let hidden = self.config.architecture.hidden_size() as i64;
        let shaped = |tensor: Tensor| if tensor.kind() == Kind::Int64 { tensor } else { tensor.view([-1, hidden]) };
        let mut next = |message| self.from_previous.wait(message);
        Ok(WorkInputs { input: shaped(next(0)?), target_or_gradient: shaped(next(1)?), parameters: next(2)? })
    }

    fn recompute(&self, pending: &PendingAudit, inputs: &WorkInputs) -> ItemDigest {
        let chunk = pending.audited.item.chunk;
        // each chunk on a rank of its own, so that only this chunk is built
        let placement = Placement::linear(self.verified.training.placement.chunks());
        // a replica that owns no parameter has no moments
        let replica = Replica { index: 1, count: 1 };
        let config = StageConfig { placement: &placement, seed: None, replica, ..*self.config };
        Stage::build(chunk, &config).recompute(chunk, inputs, &pending.layout, pending.target_count)
    }
}
