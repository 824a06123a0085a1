//! The content of a job's page, without the presentation. The module does no I/O.

use std::sync::Arc;

use stagecoach_lifecycle::UnixMillis;

use super::metrics::Metrics;
use super::step_timeline::StepTimeline;

/// The current state of a job.
#[derive(Clone, Debug)]
pub(super) struct PageModel {
    /// The job's name.
    pub(super) job: String,
    /// The time at which the folder was read.
    pub(super) now: UnixMillis,
    /// The job's status, in a sentence or two.
    pub(super) status_text: String,
    /// A sentence for each problem, such as a file that could not be read.
    pub(super) problems: Vec<String>,
    /// The number of the job's steps; `None` if the job's length is in epochs or not known.
    pub(super) steps: Option<u64>,
    pub(super) metrics: Arc<Metrics>,
    /// Unigram entropy of the held-out tokens, in nats per token; `None` before the run is finished.
    pub(super) unigram_entropy: Option<f64>,
    /// The timeline of the last step that has a timeline.
    pub(super) timeline: Option<Arc<StepTimeline>>,
    /// `pipeline.memoryLimit`, in bytes; `None` if the job sets no limit.
    pub(super) memory_limit: Option<u64>,
    pub(super) checkpoints: Checkpoints,
    /// The failures, the newest first.
    pub(super) failures: Vec<FailureRow>,
}

/// The checkpoints on the volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Checkpoints {
    /// The newest checkpoints, by descending steps.
    pub(super) newest: Vec<Checkpoint>,
    /// The number of checkpoints that are older than `newest`.
    pub(super) older: usize,
}

/// A committed checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Checkpoint {
    pub(super) step: u64,
    /// The time of the commit by the file system's clock, if it is known.
    pub(super) committed_at: Option<UnixMillis>,
    /// The size of all files except the manifest, in bytes; `None` if the manifest can't be read.
    pub(super) bytes: Option<u64>,
    /// The reason why the checkpoint can't be used; `None` if the manifest matches its hash and each file has the size
    /// in the manifest.
    pub(super) problem: Option<String>,
}

/// A failure, and the recovery from the failure.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FailureRow {
    pub(super) failed_at: UnixMillis,
    /// The root cause of the failure.
    pub(super) cause: String,
    /// The finished phases of the recovery in their order, each with its duration in seconds.
    pub(super) phases: Vec<(&'static str, f64)>,
    /// The step from which training resumed, and the number of repeated steps; `None` if they are not known.
    pub(super) resumption: Option<String>,
}

impl FailureRow {
    /// Returns the seconds from the failure to the end of the last phase.
    pub(super) fn seconds(&self) -> f64 {
        self.phases.iter().map(|(_, seconds)| seconds).sum()
    }
}

/// Returns the finished phases, each with the seconds since the end of the previous phase.
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
