//! The decision at the end of a step: every member's vote in, one verdict for all out. Pure.

mod losses;

use serde::{Deserialize, Serialize};

pub use self::losses::BlockLosses;
use self::losses::mean_loss;

/// One member's vote at the end of a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepVote {
    /// The number of steps that are complete after this one: 1 for the first.
    pub step: u64,
    /// The losses of the gradient blocks whose head this rank computed; none if it computed none.
    pub losses: Option<BlockLosses>,
    /// Per parameter whose gradient this rank has whole (with replicas: its owner): the index in the sorted list of all
    /// names, and the sum of the gradient's squares. A tied weight is voted once, on the head's side.
    pub squared_norms: Vec<(u32, f64)>,
    /// This rank was asked to stop (SIGTERM) or has finished training.
    pub stop_requested: bool,
    /// A checkpoint is due at this step boundary.
    pub save_due: bool,
    /// This rank is still writing the previous checkpoint: one that is due waits, and is voted again at the next step
    /// boundary.
    pub save_in_progress: bool,
    /// The number of steps that were skipped in a row just before this one; the same on all ranks.
    pub consecutive_skips: u32,
    /// Whether everything this rank saw in the step was finite.
    pub all_finite: bool,
    /// Opaque measurements (seconds busy, bytes sent), handed to the leader.
    pub measurements: Vec<f64>,
    /// This rank gave the step up before its end: it was asked to stop and has no time for the rest, or it lost a link,
    /// as one does to a rank that gave up. It has no loss and no norms.
    pub unfinished: bool,
}

/// The parts of the job's configuration that the decision depends on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRules {
    /// The largest global gradient norm an update may have; `None` clips nothing.
    pub clip_norm: Option<f64>,
    /// This many skipped steps in a row abort the job.
    pub max_consecutive_skips: u32,
}

impl Default for StepRules {
    fn default() -> Self {
        StepRules { clip_norm: None, max_consecutive_skips: 10 }
    }
}

/// The decision about a step, the same for all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The step that was voted on.
    pub step: u64,
    /// Whether the update is applied.
    pub outcome: StepOutcome,
    /// The step's loss; NaN if no rank reported one.
    pub loss: f32,
    /// The norm of the whole gradient, before clipping.
    pub norm: f64,
    /// All copy their state for a checkpoint at this step boundary.
    pub save: bool,
    /// All leave at this step boundary.
    pub stop: bool,
    /// A replica that this group trains without is here again: all leave at this step boundary, to form the next group
    /// with it.
    pub form_again: bool,
    /// The number of steps in a row that have been skipped, this one included; stored in checkpoints.
    pub consecutive_skips: u32,
    /// Every member's measurements, by group rank; the leader alone gets them, the others an empty list.
    pub measurements: Vec<Vec<f64>>,
}

/// The decision about a step's gradient.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum StepOutcome {
    /// Update, with every gradient multiplied by `clip`: exactly 1.0 when nothing is clipped.
    Apply {
        /// The factor, in (0, 1].
        clip: f64,
    },
    /// Leave the weights unchanged; the step counts.
    Skip,
    /// End the job.
    Abort {
        /// One sentence.
        reason: String,
    },
    /// Some rank gave the step up: no rank updates, and the step does not count. If nobody was asked to stop, a link is
    /// broken and the group can't continue.
    Drop,
}

/// Decides a step from the votes of all members, by group rank. `name` names a group rank in messages.
///
/// The norm adds the parameters' squared norms in f64 in the order of the parameters' names, whichever rank voted them:
/// it is bit-identical for every partition.
pub fn decide_step(votes: &[StepVote], rules: &StepRules, name: &dyn Fn(usize) -> String) -> Verdict {
    let step = votes.first().map_or(0, |vote| vote.step);
    let mut decided = Verdict {
        step,
        outcome: StepOutcome::Skip,
        loss: f32::NAN,
        norm: f64::NAN,
        save: votes.iter().any(|vote| vote.save_due) && !votes.iter().any(|vote| vote.save_in_progress),
        stop: votes.iter().any(|vote| vote.stop_requested),
        form_again: false,
        consecutive_skips: 0,
        measurements: votes.iter().map(|vote| vote.measurements.clone()).collect(),
    };
    if votes.iter().any(|vote| vote.unfinished) {
        decided.save = false;
        decided.consecutive_skips = votes.iter().map(|vote| vote.consecutive_skips).max().unwrap_or(0);
        return Verdict { outcome: StepOutcome::Drop, ..decided };
    }
    let losses = || votes.iter().enumerate().filter_map(|(group_rank, vote)| Some((group_rank, vote.losses.as_ref()?)));
    let sums = check(votes, name).and_then(|()| Ok((mean_loss(losses(), step, name)?, global_norm(votes, name)?)));
    let outcome = sums.and_then(|(loss, norm)| {
        (decided.loss, decided.norm) = (loss, norm);
        let finite = norm.is_finite() && decided.loss.is_finite() && votes.iter().all(|vote| vote.all_finite);
        if finite {
            let clip = rules.clip_norm.map_or(1.0, |max_norm| (max_norm / (norm + 1e-6)).min(1.0));
            return Ok(StepOutcome::Apply { clip });
        }
        let before = votes.iter().map(|vote| vote.consecutive_skips).max().unwrap_or(0);
        decided.consecutive_skips = before.saturating_add(1);
        if decided.consecutive_skips < rules.max_consecutive_skips {
            return Ok(StepOutcome::Skip);
        }
        Err(format!(
            "step {step} is the last of {} in a row whose loss or gradient was not finite (loss {}, norm {norm}): \
             lower the learning rate, or look at the data of these steps",
            decided.consecutive_skips, decided.loss
        ))
    });
    decided.outcome = outcome.unwrap_or_else(|reason| StepOutcome::Abort { reason });
    if matches!(decided.outcome, StepOutcome::Abort { .. }) {
        // These weights are not worth a checkpoint; the last good one stays.
        (decided.save, decided.stop) = (false, true);
    }
    decided
}

/// All votes must be on one step.
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

/// The norm over all parameters, or why it can't be one.
fn global_norm(votes: &[StepVote], name: &dyn Fn(usize) -> String) -> Result<f64, String> {
    let mut squares: Vec<(u32, f64, usize)> = Vec::new();
    for (group_rank, vote) in votes.iter().enumerate() {
        squares.extend(vote.squared_norms.iter().map(|&(index, square)| (index, square, group_rank)));
    }
    squares.sort_by_key(|&(index, _, _)| index);
    if let Some(pair) = squares.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(format!(
            "the norm of parameter {} was voted twice, by {} and {}: a tied weight is the head's to vote",
            pair[0].0,
            name(pair[0].2),
            name(pair[1].2)
        ));
    }
    // A parameter without a vote would silently be missing from the norm.
    if let Some(missing_index) = squares.iter().enumerate().position(|(at, &(index, _, _))| at != index as usize) {
        return Err(format!("no stage voted the norm of parameter {missing_index}"));
    }
    Ok(squares.iter().map(|&(_, square, _)| square).fold(0.0, |sum, square| sum + square).sqrt())
}
