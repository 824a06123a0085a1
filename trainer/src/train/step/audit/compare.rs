//! Compares the two results of an audited work item. If they differ, the stages identify the suspects: the stages that
//! may have computed a wrong result.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stagecoach_api::contract::SuspectedStage;
use stagecoach_engine::StageError;
use stagecoach_engine::execute::ItemDigest;
use stagecoach_group::Member;
use stagecoach_telemetry::{AuditDifference, AuditRecord};

use super::choice::{AuditedItem, auditor};
use super::suspects::{Suspects, suspects};
use super::{Audits, PendingAudit};
use crate::train::collective::{all_gather, topic};
use crate::train::leave::LeaveReason;
use crate::train::recover::link_failure;

/// A stage's message to all stages about the audited work item.
#[derive(Default, Serialize, Deserialize)]
struct AuditResult {
    result: Option<ItemDigest>,
    seconds: f64,
}

/// A stage's message to all stages about a work item for which two stages have different results.
#[derive(Default, Serialize, Deserialize)]
struct Recomputed {
    /// The hash of the stage's inputs, if the stage is one of these two.
    inputs_hash: Option<String>,
    /// All results that the stage has computed for the item.
    results: Vec<ItemDigest>,
}

impl Audits<'_> {
    /// Compares the two results of an audit. All stages call this together, at the end of the step after the audited
    /// step. Returns `None` if nothing was audited.
    ///
    /// # Errors
    /// If the group fails during the call.
    pub(in crate::train) fn compare(&mut self, member: &Member) -> Result<Option<AuditRecord>, LeaveReason> {
        let Some(pending) = self.pending.take() else { return Ok(None) };
        let own = AuditResult { result: pending.result.clone(), seconds: pending.seconds };
        let all: Vec<AuditResult> = all_gather(member, topic::AUDIT, &own)?;
        let (rank, by) = (pending.audited.rank, self.auditor(pending.audited));
        let what = match (&all[rank].result, &all[by].result) {
            (Some(one), Some(other)) => one.first_difference(other),
            _ => {
                return Err(StageError::invalid(
                    "a stage has no result for the audited microbatch: all stages must run the same version of \
                     Stagecoach",
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

    /// Makes the audited stage, its auditor and, if possible, a third stage compute the item again, and identifies the
    /// suspects. `audited` is the first result of the audited stage.
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
            let unequal = "the two stages have different inputs: the memory of one of them or the network between \
                           them has changed the inputs";
            return Ok(self.difference(pending, what, &[rank, by].into(), unequal.to_owned()));
        }
        let results = all.into_iter().map(|one| one.results).enumerate().filter(|(_, all)| !all.is_empty());
        let Suspects { ranks, is_clear } = suspects(&results.collect::<Vec<_>>());
        let names = ranks.iter().map(|&rank| self.name(rank)).collect::<Vec<_>>().join(" and ");
        let conclusion = match is_clear {
            true => format!(
                "{names} computed a wrong result: two stages agreed on another result when all computed the item again"
            ),
            false => {
                format!("one of {names} computed a wrong result: no two stages agreed when all computed the item again")
            }
        };
        Ok(self.difference(pending, what, &ranks, conclusion))
    }

    /// Describes a difference and its suspects.
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
                "audit of step {step}: {} and {} differ in the {what} of chunk {} and microbatch {microbatch}; \
                 {conclusion}",
                self.name(audited.rank),
                self.name(self.auditor(*audited)),
                item.chunk,
            ),
        }
    }

    /// Returns the name of the stage with this group rank, and the name of its host.
    fn name(&self, rank: usize) -> String {
        format!("stage {} on {}", self.stage(rank), self.roster.members[rank].host)
    }

    fn suspect(&self, rank: usize) -> SuspectedStage {
        let member = &self.roster.members[rank];
        SuspectedStage { stage: member.rank as u32, incarnation: member.incarnation }
    }
}
