//! What is told at once, and what can wait for the next write: each one costs the API server more than all else that a
//! job does to it, and most of them would say that one more pod is there.

use std::time::Duration;

use jiff::Timestamp;
use stagecoach_api::PipelineJobStatus;
use stagecoach_api::job::{AttemptStatus, Condition, Phase};
use stagecoach_lifecycle::{AttemptPhase, JobState, UnixMillis};

use super::conditions::is_usual;

/// Between two writes that tell nothing but how many pods are where.
const COUNTS_EVERY: Duration = Duration::from_secs(1);
/// Seconds between two writes that tell nothing but progress.
const PROGRESS_EVERY: u64 = 15;

/// What is to be told now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Telling {
    /// The status; the old one if there is nothing to tell, or not yet.
    pub status: PipelineJobStatus,
    /// After how long there is more to tell, even if nothing happens.
    pub more_after: Option<Duration>,
}

/// Holds back what can wait; the `old` status was written so long `ago`, if this operator did it.
pub(super) fn pace(new: PipelineJobStatus, old: &PipelineJobStatus, ago: Option<Duration>, now: UnixMillis) -> Telling {
    if new == *old || essence(&new) != essence(old) || state(&new) != state(old) {
        return Telling { status: new, more_after: None };
    }
    let more_after = if with_progress_of(&new, old) == *old {
        // whoever polls comes again anyway
        told_progress(old).filter(|told| now < told.plus_seconds(PROGRESS_EVERY)).map(|_| None)
    } else {
        ago.and_then(|ago| COUNTS_EVERY.checked_sub(ago)).map(Some)
    };
    match more_after {
        Some(more_after) => Telling { status: old.clone(), more_after },
        None => Telling { status: new, more_after: None },
    }
}

/// What no user should wait for.
fn essence(status: &PipelineJobStatus) -> PipelineJobStatus {
    let condition = |condition: &Condition| match is_usual(condition) {
        true => Condition { kind: condition.kind.clone(), ..Condition::default() },
        false => Condition { message: String::new(), ..condition.clone() },
    };
    PipelineJobStatus {
        phase: status.phase.map(|phase| if phase == Phase::Restarting { Phase::Starting } else { phase }),
        stages: None,
        ready_stages: None,
        attempt: status.attempt.clone().map(|attempt| AttemptStatus { pods_created: false, image: None, ..attempt }),
        conditions: status.conditions.iter().map(condition).collect(),
        progress: None,
        record: None,
        ..status.clone()
    }
}

/// What the operator must not forget. That all pods were made it knows for a while without having written it.
fn state(status: &PipelineJobStatus) -> Option<JobState> {
    let mut state: JobState = serde_json::from_value(status.record.clone()?).ok()?;
    (state.best_step, state.failures_without_progress) = (None, 0);
    if let AttemptPhase::Running { all_created, .. } = &mut state.attempt_phase {
        *all_created = false;
    }
    Some(state)
}

fn with_progress_of(new: &PipelineJobStatus, old: &PipelineJobStatus) -> PipelineJobStatus {
    PipelineJobStatus { progress: old.progress.clone(), record: old.record.clone(), ..new.clone() }
}

fn told_progress(status: &PipelineJobStatus) -> Option<UnixMillis> {
    let at: Timestamp = status.progress.as_ref()?.updated_at.as_deref()?.parse().ok()?;
    Some(UnixMillis(at.as_millisecond().unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stagecoach_api::job::{CheckpointStatus, Progress};
    use stagecoach_lifecycle::Attempt;

    use super::*;

    const NOW: UnixMillis = UnixMillis(1_800_000_000_000);

    fn starting(ready: u32) -> PipelineJobStatus {
        let state = JobState {
            attempt_phase: AttemptPhase::Running { not_before: UnixMillis(0), all_created: ready > 0 },
            attempt: Attempt { number: 1, stages: 4, revision: 7 },
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
            phase: Some(Phase::Starting),
            stages: Some(ready),
            ready_stages: Some(ready),
            attempt: Some(AttemptStatus { number: 1, stages: 4, pods_created: ready > 0, ..AttemptStatus::default() }),
            conditions: vec![
                condition("Scheduled", "False", "Waiting", format!("{} of 4 pods wait", 4 - ready)),
                condition("Running", "False", "Starting", format!("{ready} of 4 stages are ready")),
                condition("Progressing", "False", "Loading", format!("{ready} tensors are loaded")),
            ],
            record: serde_json::to_value(state).ok(),
            ..PipelineJobStatus::default()
        }
    }

    fn told(new: &PipelineJobStatus, old: &PipelineJobStatus, millis: u64) -> bool {
        let telling = pace(new.clone(), old, Some(Duration::from_millis(millis)), NOW);
        assert!(telling.status == *new || telling.status == *old, "one or the other, no mixture");
        telling.status == *new
    }

    #[test]
    fn pods_that_come_one_by_one_are_told_once_a_second() {
        let (old, new) = (starting(0), starting(1));
        assert!(!told(&new, &old, 400));
        assert!(told(&new, &old, 1001));
        let held = pace(new.clone(), &old, Some(Duration::from_millis(400)), NOW);
        assert_eq!(held.more_after, Some(Duration::from_millis(600)), "nothing held back is forgotten");
        assert_eq!(pace(new.clone(), &old, None, NOW).status, new, "who just started knows of no write");
        let again = PipelineJobStatus { phase: Some(Phase::Restarting), ..starting(0) };
        assert!(!told(&new, &again, 400), "pods come after a failure as they do at first");
    }

    #[test]
    fn what_somebody_waits_for_is_told_at_once() {
        let old = starting(0);
        let at_once = |what: &str, change: &dyn Fn(&mut PipelineJobStatus)| {
            let mut new = starting(1);
            change(&mut new);
            assert!(told(&new, &old, 1), "{what}");
        };
        at_once("all are ready", &|new| new.phase = Some(Phase::Running));
        at_once("a pod finds no place", &|new| new.conditions[0].reason = "Unschedulable".into());
        at_once("training begins", &|new| new.conditions[2].status = "True".into());
        at_once("a checkpoint", &|new| new.checkpoint = Some(CheckpointStatus { step: 5, ..Default::default() }));
        at_once("another attempt", &|new| new.record.as_mut().unwrap()["attempt"]["number"] = json!(2));
        at_once("another spec", &|new| new.observed_generation = Some(2));
    }

    #[test]
    fn progress_alone_is_told_every_15_seconds() {
        let at = |step, seconds_ago: u64| {
            let updated_at = Some(crate::report::stamp(UnixMillis(NOW.0 - seconds_ago * 1000)));
            PipelineJobStatus { progress: Some(Progress { step, updated_at, ..Default::default() }), ..starting(4) }
        };
        assert!(!told(&at(9, 0), &at(8, 14), 14_000));
        assert!(told(&at(9, 0), &at(8, 15), 15_000));
        // together with anything else, after a second
        let mut other = at(9, 0);
        other.conditions[2].message = "5 tensors are loaded".into();
        assert!(told(&other, &at(8, 2), 2000));
    }
}
