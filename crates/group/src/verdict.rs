//! The rule that ends a step: every rank's vote in, one verdict for all out. Pure, so that it can be tested alone.

use serde::{Deserialize, Serialize};

/// What one rank has to say at the end of a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepVote {
    /// The number of steps that are complete after this one: 1 for the first.
    pub step: u64,
    /// The step's loss: from the rank with the head, and from no other.
    pub loss: Option<f32>,
    /// Per parameter whose gradient this rank holds: its index in the sorted list of all names, and the sum of the
    /// squares of its gradient. A tied weight is voted by the head's rank alone.
    pub squared_norms: Vec<(u32, f64)>,
    /// This rank was asked to stop (SIGTERM) or is done.
    pub stop: bool,
    /// A checkpoint is due at this boundary.
    pub save: bool,
    /// This rank still writes the one before: a save that is due waits, and so must be voted again at the next boundary.
    pub saving: bool,
    /// How many steps were skipped in a row just before this one; the same on all ranks.
    pub skips_in_a_row: u32,
    /// Whether everything this rank saw in the step was finite.
    pub finite: bool,
    /// Opaque measurements (seconds busy, bytes sent), handed to rank 0.
    pub measures: Vec<f64>,
}

/// The parts of the job that the rule depends on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    /// The largest global gradient norm an update may have; `None` clips nothing.
    pub clip_norm: Option<f64>,
    /// So many skipped steps in a row stop the job.
    pub max_skips_in_a_row: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Rules { clip_norm: None, max_skips_in_a_row: 10 }
    }
}

/// What all ranks do with the step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The step that was voted on.
    pub step: u64,
    /// Whether the update is applied.
    pub outcome: Outcome,
    /// The step's loss; NaN where no rank told one.
    pub loss: f32,
    /// The norm of the whole gradient, before clipping.
    pub norm: f64,
    /// All copy their state for a checkpoint at this boundary.
    pub save: bool,
    /// All leave at this boundary.
    pub stop: bool,
    /// How many steps in a row have been skipped now; a checkpoint keeps it.
    pub skips_in_a_row: u32,
    /// Every rank's measurements, by rank; rank 0 alone gets them, the others an empty list.
    pub measures: Vec<Vec<f64>>,
}

/// What becomes of a step's gradient.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// Update, with every gradient multiplied by `clip`: exactly 1.0 when nothing is clipped.
    Apply {
        /// The factor, in (0, 1].
        clip: f64,
    },
    /// Leave the weights as they are; the step counts.
    Skip,
    /// The job can't go on.
    Abort {
        /// A sentence for people.
        reason: String,
    },
}

/// Decides a step from the votes of all ranks, `votes[rank]`.
///
/// The norm adds the parameters' squared norms in f64 in the order of the parameters' names, whoever voted them: its
/// bits don't depend on how the ranks are cut.
pub fn verdict(votes: &[StepVote], rules: &Rules) -> Verdict {
    let step = votes.first().map_or(0, |vote| vote.step);
    let mut decided = Verdict {
        step,
        outcome: Outcome::Skip,
        loss: votes.iter().find_map(|vote| vote.loss).unwrap_or(f32::NAN),
        norm: f64::NAN,
        save: votes.iter().any(|vote| vote.save) && !votes.iter().any(|vote| vote.saving),
        stop: votes.iter().any(|vote| vote.stop),
        skips_in_a_row: 0,
        measures: votes.iter().map(|vote| vote.measures.clone()).collect(),
    };
    let judged = check(votes).and_then(|()| global_norm(votes)).and_then(|norm| {
        decided.norm = norm;
        let finite = norm.is_finite() && decided.loss.is_finite() && votes.iter().all(|vote| vote.finite);
        if finite {
            let clip = rules.clip_norm.map_or(1.0, |most| (most / (norm + 1e-6)).min(1.0));
            return Ok(Outcome::Apply { clip });
        }
        let before = votes.iter().map(|vote| vote.skips_in_a_row).max().unwrap_or(0);
        decided.skips_in_a_row = before.saturating_add(1);
        if decided.skips_in_a_row < rules.max_skips_in_a_row {
            return Ok(Outcome::Skip);
        }
        Err(format!(
            "step {step} is the last of {} in a row whose loss or gradient was not finite (loss {}, norm {norm}): \
             lower the learning rate, or look at the data of these steps",
            decided.skips_in_a_row, decided.loss
        ))
    });
    decided.outcome = judged.unwrap_or_else(|reason| Outcome::Abort { reason });
    if matches!(decided.outcome, Outcome::Abort { .. }) {
        // The weights at hand are not worth a checkpoint; the last good one stays.
        (decided.save, decided.stop) = (false, true);
    }
    decided
}

/// All votes must be on one step, with one loss among them.
fn check(votes: &[StepVote]) -> Result<(), String> {
    let Some(first) = votes.first() else {
        return Err("no rank voted".to_owned());
    };
    if votes.iter().any(|vote| vote.step != first.step) {
        let steps: Vec<String> =
            votes.iter().enumerate().map(|(rank, vote)| format!("stage {rank} on step {}", vote.step)).collect();
        return Err(format!("the stages voted on different steps: {}", steps.join(", ")));
    }
    let heads: Vec<usize> = (0..votes.len()).filter(|&rank| votes[rank].loss.is_some()).collect();
    match heads[..] {
        [_] => Ok(()),
        [] => Err(format!("no stage voted the loss of step {}: the one with the head must", first.step)),
        _ => Err(format!("stages {heads:?} all voted a loss for step {}: only the one with the head may", first.step)),
    }
}

/// The norm over all parameters, or why it can't be one.
fn global_norm(votes: &[StepVote]) -> Result<f64, String> {
    let mut squares: Vec<(u32, f64, usize)> = Vec::new();
    for (rank, vote) in votes.iter().enumerate() {
        squares.extend(vote.squared_norms.iter().map(|&(index, square)| (index, square, rank)));
    }
    squares.sort_by_key(|&(index, _, _)| index);
    if let Some(pair) = squares.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(format!(
            "the norm of parameter {} was voted twice, by stage {} and stage {}: a tied weight is the head's to vote",
            pair[0].0, pair[0].2, pair[1].2
        ));
    }
    // One that nobody votes would silently be missing from the norm.
    if let Some(hole) = squares.iter().enumerate().position(|(at, &(index, _, _))| at != index as usize) {
        return Err(format!("no stage voted the norm of parameter {hole}"));
    }
    Ok(squares.iter().map(|&(_, square, _)| square).fold(0.0, |sum, square| sum + square).sqrt())
}
