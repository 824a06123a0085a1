//! Throttles status writes. A status write is the most expensive request of a job, and most writes would only change a
//! pod count.

use std::time::Duration;

use jiff::Timestamp;
use stagecoach_api::PipelineJobStatus;
use stagecoach_api::job::{AttemptStatus, Condition, JobPhase, LastFailureStatus};
use stagecoach_lifecycle::{AttemptPhase, JobState, UnixMillis};

use super::conditions::is_normal_startup;
use crate::clock::remaining;
use crate::observe::PROGRESS_INTERVAL;

/// The minimum time between two writes that change only pod counts.
const POD_COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// The status to write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StatusUpdate {
    /// The new status, or the old status if nothing changed or the write is delayed.
    pub status: PipelineJobStatus,
    /// The delay until the reconcile that writes a delayed change; `None` if no change is delayed.
    pub write_after: Option<Duration>,
}

/// Delays changes that are not urgent. `since_last_write` is the age of the `old` status, if this operator wrote that
/// status.
pub(super) fn throttle(
    new: PipelineJobStatus,
    old: &PipelineJobStatus,
    since_last_write: Option<Duration>,
    now: UnixMillis,
) -> StatusUpdate {
    if new == *old || urgent_part(&new) != urgent_part(old) || recorded_state(&new) != recorded_state(old) {
        return StatusUpdate { status: new, write_after: None };
    }
    let write_after = if with_old_progress(&new, old) == *old {
        progress_updated_at(old).and_then(|updated_at| remaining(updated_at, PROGRESS_INTERVAL, now))
    } else {
        since_last_write.and_then(|since_last_write| POD_COUNT_INTERVAL.checked_sub(since_last_write))
    };
    match write_after {
        Some(_) => StatusUpdate { status: old.clone(), write_after },
        None => StatusUpdate { status: new, write_after: None },
    }
}

/// Returns the part of the status that is written at once.
fn urgent_part(status: &PipelineJobStatus) -> PipelineJobStatus {
    let condition = |condition: &Condition| match is_normal_startup(condition) {
        true => Condition { kind: condition.kind.clone(), ..Condition::default() },
        false => Condition { message: String::new(), ..condition.clone() },
    };
    PipelineJobStatus {
        phase: status.phase.map(|phase| if phase == JobPhase::Restarting { JobPhase::Starting } else { phase }),
        stages: None,
        stages_per_replica: None,
        ready_stages: None,
        training_replicas: None,
        attempt: status.attempt.clone().map(|attempt| AttemptStatus { pods_created: false, image: None, ..attempt }),
        conditions: status.conditions.iter().map(condition).collect(),
        last_failure: status.last_failure.clone().map(|failure| LastFailureStatus { log_tail: None, ..failure }),
        progress: None,
        record: None,
        ..status.clone()
    }
}

/// Returns the part of `status.record` that must be written at once. This part excludes progress. It also excludes
/// `all_created`, which the operator caches in memory.
fn recorded_state(status: &PipelineJobStatus) -> Option<JobState> {
    let mut state: JobState = serde_json::from_str(status.record.as_ref()?).ok()?;
    (state.max_finished_steps, state.failures_without_progress) = (None, 0);
    if let AttemptPhase::Running { all_created, .. } = &mut state.attempt_phase {
        *all_created = false;
    }
    Some(state)
}

fn with_old_progress(new: &PipelineJobStatus, old: &PipelineJobStatus) -> PipelineJobStatus {
    PipelineJobStatus { progress: old.progress.clone(), record: old.record.clone(), ..new.clone() }
}

fn progress_updated_at(status: &PipelineJobStatus) -> Option<UnixMillis> {
    let at: Timestamp = status.progress.as_ref()?.updated_at.as_deref()?.parse().ok()?;
    UnixMillis::from_signed(at.as_millisecond())
}

#[cfg(test)]
mod tests {
    use stagecoach_api::contract::Mesh;
    use stagecoach_api::job::{CheckpointStatus, ProgressStatus};
    use stagecoach_lifecycle::Attempt;

    use super::*;

    const NOW: UnixMillis = UnixMillis(1_800_000_000_000);

    fn starting(ready: u32) -> PipelineJobStatus {
        let state = JobState {
            attempt_phase: AttemptPhase::Running { not_before: UnixMillis(0), all_created: ready > 0 },
            attempt: Attempt { number: 1, mesh: Mesh::pipeline(4), revision: 7, admission: 0, admitted_replicas: None },
            ..JobState::default()
        };
        let condition = |kind: &str, status: &str, reason: &str, message: String| Condition {
            kind: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message,
            ..Condition::default()
        };
        PipelineJobStatus {
            phase: Some(JobPhase::Starting),
            stages: Some(ready),
            ready_stages: Some(ready),
            attempt: Some(AttemptStatus { number: 1, stages: 4, pods_created: ready > 0, ..AttemptStatus::default() }),
            conditions: vec![
                condition("Scheduled", "False", "Waiting", format!("{} of 4 pods wait", 4 - ready)),
                condition("Running", "False", "Starting", format!("{ready} of 4 stages are ready")),
                condition("Progressing", "False", "Loading", format!("{ready} tensors are loaded")),
            ],
            record: serde_json::to_string(&state).ok(),
            ..PipelineJobStatus::default()
        }
    }

    fn is_written(new: &PipelineJobStatus, old: &PipelineJobStatus, millis: u64) -> bool {
        let update = throttle(new.clone(), old, Some(Duration::from_millis(millis)), NOW);
        assert!(update.status == *new || update.status == *old, "one or the other, never a mixture");
        update.status == *new
    }

    #[test]
    fn pod_counts_are_written_once_a_second() {
        let (old, new) = (starting(0), starting(1));
        assert!(!is_written(&new, &old, 400));
        assert!(is_written(&new, &old, 1001));
        let update = throttle(new.clone(), &old, Some(Duration::from_millis(400)), NOW);
        assert_eq!(update.write_after, Some(Duration::from_millis(600)), "what is held back is written later");
        assert_eq!(throttle(new.clone(), &old, None, NOW).status, new, "after a restart no write is known");
        let again = PipelineJobStatus { phase: Some(JobPhase::Restarting), ..starting(0) };
        assert!(!is_written(&new, &again, 400), "a restart after a failure is throttled like the first start");
    }

    #[test]
    fn urgent_changes_are_written_at_once() {
        let old = starting(0);
        let at_once = |what: &str, change: &dyn Fn(&mut PipelineJobStatus)| {
            let mut new = starting(1);
            change(&mut new);
            assert!(is_written(&new, &old, 1), "{what}");
        };
        at_once("all are ready", &|new| new.phase = Some(JobPhase::Running));
        at_once("a pod is unschedulable", &|new| new.conditions[0].reason = "Unschedulable".into());
        at_once("training begins", &|new| new.conditions[2].status = "True".into());
        at_once("a checkpoint", &|new| new.checkpoint = Some(CheckpointStatus { step: 5, ..Default::default() }));
        at_once("another attempt", &|new| {
            let mut state: JobState = serde_json::from_str(new.record.as_ref().unwrap()).unwrap();
            state.attempt.number = 2;
            new.record = serde_json::to_string(&state).ok();
        });
        at_once("another spec", &|new| new.observed_generation = Some(2));
    }

    #[test]
    fn progress_alone_is_written_every_15_seconds() {
        let at = |step, seconds_ago: u64| {
            let updated_at = Some(super::super::to_rfc3339(UnixMillis(NOW.0 - seconds_ago * 1000)));
            PipelineJobStatus {
                progress: Some(ProgressStatus { step, updated_at, ..Default::default() }),
                ..starting(4)
            }
        };
        assert!(!is_written(&at(9, 0), &at(8, 14), 14_000));
        let update = throttle(at(9, 0), &at(8, 5), Some(Duration::from_secs(5)), NOW);
        assert_eq!(update.write_after, Some(Duration::from_secs(10)), "what is held back is written later");
        assert!(is_written(&at(9, 0), &at(8, 15), 15_000));
        let ahead = throttle(at(9, 0), &at(8, 0), None, UnixMillis(NOW.0 - 3_600_000));
        assert_eq!(ahead, StatusUpdate { status: at(9, 0), write_after: None }, "the clock was set back by an hour");
        // progress together with another change is written after a second
        let mut other = at(9, 0);
        other.conditions[2].message = "5 tensors are loaded".into();
        assert!(is_written(&other, &at(8, 2), 2000));
    }
}
