//! What a page shows of a job, apart from how. Pure.

use std::sync::Arc;

use stagecoach_lifecycle::UnixMillis;

use super::metrics::Metrics;
use super::step_timeline::StepTimeline;

/// A job as it is now.
#[derive(Clone, Debug)]
pub(super) struct PageModel {
    /// Its name.
    pub(super) job: String,
    /// When this was read.
    pub(super) now: UnixMillis,
    /// How it stands, in a sentence or two.
    pub(super) status_text: String,
    /// What could not be read, in sentences.
    pub(super) problems: Vec<String>,
    /// The job's steps, unless it has epochs.
    pub(super) steps: Option<u64>,
    pub(super) metrics: Arc<Metrics>,
    /// Unigram entropy of the held-out tokens, in nats per token, of a run that is finished.
    pub(super) unigram_entropy: Option<f64>,
    /// The last step that has a timeline.
    pub(super) timeline: Option<Arc<StepTimeline>>,
    /// `pipeline.memoryLimit`, in bytes.
    pub(super) memory_limit: Option<u64>,
    pub(super) checkpoints: Checkpoints,
    /// The newest first.
    pub(super) failures: Vec<Failure>,
}

/// The checkpoints on the volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Checkpoints {
    /// The newest ones, by descending steps.
    pub(super) newest: Vec<Checkpoint>,
    /// How many there are besides.
    pub(super) older: usize,
}

/// A committed checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Checkpoint {
    pub(super) step: u64,
    /// By the file system's clock, if it is known.
    pub(super) committed_at: Option<UnixMillis>,
    /// Of all files but the manifest, if that can be read.
    pub(super) bytes: Option<u64>,
    /// Why it can't be used; None if the manifest matches its own hash and each file has the manifest's size.
    pub(super) problem: Option<String>,
}

/// A failure, and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failure {
    pub(super) failed_at: UnixMillis,
    /// The root cause.
    pub(super) cause: String,
    /// The phases that are over, in their order, and their seconds.
    pub(super) phases: Vec<(&'static str, f64)>,
    /// From which step training went on, and how many steps were trained again.
    pub(super) resumption: Option<String>,
}

impl Failure {
    /// Seconds from the failure to the end of the last phase.
    pub(super) fn seconds(&self) -> f64 {
        self.phases.iter().map(|(_, seconds)| seconds).sum()
    }
}

/// The phases that have ended: each name with its end, and the seconds since the one before.
pub(super) fn phases(
    failed_at: UnixMillis,
    ends: impl IntoIterator<Item = (&'static str, Option<UnixMillis>)>,
) -> Vec<(&'static str, f64)> {
    let mut before = failed_at;
    let mut phases = Vec::new();
    for (name, end) in ends {
        let Some(end) = end else { continue };
        phases.push((name, end.0.saturating_sub(before.0) as f64 / 1000.0));
        before = before.max(end);
    }
    phases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other_whatever_clocks_say() {
        let at = |millis| Some(UnixMillis(millis));
        let found = phases(UnixMillis(1000), [("a", at(1500)), ("b", None), ("c", at(1400)), ("d", at(2500))]);
        assert_eq!(found, [("a", 0.5), ("c", 0.0), ("d", 1.0)]);
    }
}
