//! The decision at the end of a step: one verdict for all members, from the votes of all members. This module is pure.

mod losses;

use serde::{Deserialize, Serialize};

pub use self::losses::BlockLosses;
use self::losses::mean_loss;

/// One member's vote at the end of a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepVote {
    /// The number of completed steps including this one; 1 for the first step.
    pub step: u64,
    /// The losses of the gradient blocks for which this rank computed the head (logits and loss); `None` if this rank
    /// computed no head.
    pub losses: Option<BlockLosses>,
    /// The squared gradient norm of each parameter whose whole gradient this rank has. With replicas, only the owner of
    /// a parameter has its whole gradient. An entry has the parameter's index in the sorted list of all names, and the
    /// sum of the gradient's squares. The rank that has the head votes on the norm of a tied weight.
    pub squared_norms: Vec<(u32, f64)>,
    /// Whether this rank was asked to stop (SIGTERM) or has finished training.
    pub stop_requested: bool,
    /// Whether a checkpoint is due at this step boundary.
    pub save_due: bool,
    /// Whether this rank is still writing the previous checkpoint. If so, a due checkpoint waits, and the ranks vote on
    /// it again at the next step boundary.
    pub save_in_progress: bool,
    /// The number of consecutive skipped steps just before this one; the same on all ranks.
    pub consecutive_skips: u32,
    /// Whether all values that this rank observed in the step were finite.
    pub all_finite: bool,
    /// Measurements such as the bytes sent, as numbers that only the leader interprets.
    pub measurements: Vec<f64>,
    /// Whether this rank abandoned the step. A rank abandons a step if it was asked to stop and has no time to finish,
    /// or if it lost a link. A rank also loses a link when the peer abandons the step. The vote on an abandoned step
    /// has no loss and no norms.
    pub unfinished: bool,
}

/// The parts of the job's configuration that affect the decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRules {
    /// The maximum global gradient norm of an update; `None` disables clipping.
    pub clip_norm: Option<f64>,
    /// The number of consecutive skipped steps that aborts the job.
    pub max_consecutive_skips: u32,
}

impl Default for StepRules {
    fn default() -> Self {
        StepRules { clip_norm: None, max_consecutive_skips: 10 }
    }
}

/// The decision on a step, the same for all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The step that was voted on.
    pub step: u64,
    /// The decision on the update.
    pub outcome: StepOutcome,
    /// The step's loss; NaN if no rank reported one.
    pub loss: f32,
    /// The norm of the whole gradient, before clipping.
    pub norm: f64,
    /// Whether all ranks copy their state for a checkpoint at this step boundary.
    pub save: bool,
    /// Whether all ranks leave at this step boundary.
    pub stop: bool,
    /// Whether all ranks leave at this step boundary to form the next group, because a replica that this group lacks
    /// has returned.
    pub regroup: bool,
    /// The number of consecutive skipped steps, including this one. Checkpoints store this number.
    pub consecutive_skips: u32,
    /// Every member's measurements, by group rank. Only the leader receives them; the other members receive an empty
    /// list.
    pub measurements: Vec<Vec<f64>>,
}

/// The decision on a step's gradient.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum StepOutcome {
    /// Apply the update, with every gradient multiplied by `clip`: exactly 1.0 if nothing is clipped.
    Apply {
        /// The factor, in (0, 1].
        clip: f64,
    },
    /// Leave the weights unchanged, but count the step.
    Skip,
    /// End the job.
    Abort {
        /// The kind of failure.
        kind: AbortKind,
        /// The reason, in one sentence.
        reason: String,
    },
    /// A rank abandoned the step: no rank updates its weights, and the step does not count. If no rank was asked to
    /// stop, a link is broken and the group can't continue.
    Discard,
}

/// The kind of failure for which a group ends its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AbortKind {
    /// Too many steps in a row had a loss or gradient that was not finite.
    NonFinite,
    /// The votes are inconsistent.
    Mismatch,
}

/// Decides a step from the votes of all members, by group rank. `name` returns the name of a group rank for messages.
///
/// The norm is the square root of the sum of the parameters' squared norms. The sum is computed in f64 in the order of
/// the parameters' names, regardless of which rank voted. The norm is therefore bit-identical for every partition.
pub fn decide_step(votes: &[StepVote], rules: &StepRules, name: &dyn Fn(usize) -> String) -> Verdict {
    let step = votes.first().map_or(0, |vote| vote.step);
    let mut decided = Verdict {
        step,
        outcome: StepOutcome::Skip,
        loss: f32::NAN,
        norm: f64::NAN,
        save: votes.iter().any(|vote| vote.save_due) && !votes.iter().any(|vote| vote.save_in_progress),
        stop: votes.iter().any(|vote| vote.stop_requested),
        regroup: false,
        consecutive_skips: 0,
        measurements: votes.iter().map(|vote| vote.measurements.clone()).collect(),
    };
    if votes.iter().any(|vote| vote.unfinished) {
        decided.save = false;
        decided.consecutive_skips = votes.iter().map(|vote| vote.consecutive_skips).max().unwrap_or(0);
        return Verdict { outcome: StepOutcome::Discard, ..decided };
    }
    let losses = || votes.iter().enumerate().filter_map(|(group_rank, vote)| Some((group_rank, vote.losses.as_ref()?)));
    let sums = check(votes, name).and_then(|()| Ok((mean_loss(losses(), step, name)?, global_norm(votes, name)?)));
    let outcome = sums.map(|(loss, norm)| {
        (decided.loss, decided.norm) = (loss, norm);
        let finite = norm.is_finite() && decided.loss.is_finite() && votes.iter().all(|vote| vote.all_finite);
        if finite {
            let clip = rules.clip_norm.map_or(1.0, |max_norm| (max_norm / (norm + 1e-6)).min(1.0));
            return StepOutcome::Apply { clip };
        }
        let before = votes.iter().map(|vote| vote.consecutive_skips).max().unwrap_or(0);
        decided.consecutive_skips = before.saturating_add(1);
        if decided.consecutive_skips < rules.max_consecutive_skips {
            return StepOutcome::Skip;
        }
        let reason = format!(
            "step {step} is the last of {} in a row whose loss or gradient was not finite (loss {}, norm {norm}): \
             lower the learning rate, or look at the data of these steps",
            decided.consecutive_skips, decided.loss
        );
        StepOutcome::Abort { kind: AbortKind::NonFinite, reason }
    });
    decided.outcome = outcome.unwrap_or_else(|reason| StepOutcome::Abort { kind: AbortKind::Mismatch, reason });
    if matches!(decided.outcome, StepOutcome::Abort { .. }) {
        // an abort saves no checkpoint, because the weights may be damaged, and the last good checkpoint stays the
        // newest
        (decided.save, decided.stop) = (false, true);
    }
    decided
}

/// Checks that all votes are on the same step.
fn check(votes: &[StepVote], name: &dyn Fn(usize) -> String) -> Result<(), String> {
    let Some(first) = votes.first() else {
        return Err("no rank voted".to_owned());
    };
    if votes.iter().any(|vote| vote.step != first.step) {
        let on_step = |(group_rank, vote): (usize, &StepVote)| format!("{} on step {}", name(group_rank), vote.step);
        let steps: Vec<String> = votes.iter().enumerate().map(on_step).collect();
        return Err(format!("the stages voted on different steps: {}", steps.join(", ")));
    }
    Ok(())
}

/// Returns the norm over all parameters, or the reason why there is no valid norm.
fn global_norm(votes: &[StepVote], name: &dyn Fn(usize) -> String) -> Result<f64, String> {
    let mut squares: Vec<(u32, f64, usize)> = Vec::new();
    for (group_rank, vote) in votes.iter().enumerate() {
        squares.extend(vote.squared_norms.iter().map(|&(index, square)| (index, square, group_rank)));
    }
    squares.sort_by_key(|&(index, _, _)| index);
    if let Some(pair) = squares.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(format!(
            "the norm of parameter {} was voted twice, by {} and {}: only the stage with the head votes on a tied weight",
            pair[0].0,
            name(pair[0].2),
            name(pair[1].2)
        ));
    }
    // without this check, a parameter without a vote would silently be missing from the norm
    if let Some(missing_index) = squares.iter().enumerate().position(|(at, &(index, _, _))| at != index as usize) {
        return Err(format!("no stage voted the norm of parameter {missing_index}"));
    }
    Ok(squares.iter().map(|&(_, square, _)| square).fold(0.0, |sum, square| sum + square).sqrt())
}
