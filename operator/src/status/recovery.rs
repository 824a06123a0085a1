//! The time for which a job did not train after a failure, phase by phase. The operator keeps this time in memory, so
//! the operator does not report a recovery that was in progress when the operator started.

use stagecoach_api::contract::GroupStatus;
use stagecoach_api::job::{FloatString, RecoveryPhasesStatus, RecoveryStatus};
use stagecoach_lifecycle::{AttemptFailure, AttemptPhase, InstanceState, JobState, UnixMillis};

use crate::observe::{ObservedPod, ObservedPods};

/// The phases in their order, with their names in the metric `recovery_phase_seconds`. If a spare replaces the lost
/// stage, the operator creates and starts no pod, and the phases `created` and `started` take no time.
pub(crate) const PHASES: [&str; 7] = ["noticed", "decided", "created", "started", "joined", "loaded", "first_step"];

/// A recovery, complete or in progress.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecoveryTimes {
    failure: AttemptFailure,
    /// The attempt that continues the training.
    attempt: u64,
    /// The end of each phase, in the order of the phases.
    ends: Vec<UnixMillis>,
}

/// The phases of a recovery that are over according to the observed pods.
#[derive(Clone, Debug, Default, PartialEq)]
struct RecoveryProgress {
    now: UnixMillis,
    is_decided: bool,
    are_created: bool,
    are_started: bool,
    /// The group that has formed after the failure.
    group: GroupStatus,
}

impl RecoveryProgress {
    fn of(state: &JobState, failure: &AttemptFailure, pods: &ObservedPods) -> RecoveryProgress {
        let (attempt, now) = (state.attempt, pods.observed_at);
        let is_next = attempt.number > failure.attempt || !state.incarnations.is_empty();
        let is_due = matches!(state.attempt_phase, AttemptPhase::Running { not_before, .. } if not_before <= now);
        let current = || {
            let is_current = |pod: &&ObservedPod| {
                !pod.terminating && !pod.deleted && pod.instance_id().is_some_and(|instance| state.is_newest(instance))
            };
            pods.of_attempt(attempt.number).filter(is_current)
        };
        let runs = |state: &InstanceState| matches!(state, InstanceState::Starting | InstanceState::Ready);
        let polled = pods.leader_status.as_ref().filter(|polled| polled.status.attempt == attempt.number);
        let group = polled.and_then(|polled| polled.status.group.clone());
        RecoveryProgress {
            now,
            is_decided: is_next && is_due,
            are_created: current().count() == attempt.instances() as usize,
            are_started: current().filter(|pod| runs(&pod.state)).count() == attempt.instances() as usize,
            group: group.filter(|group| follows(attempt.number, group, failure)).unwrap_or_default(),
        }
    }
}

/// Whether a group (the connected stages) of this attempt has formed after the failure. A group of a later attempt
/// always follows the failure. A group of the same attempt follows the failure if the group has a later incarnation of
/// the failed stage or lacks this stage. Times can't decide this question: if a spare replaces the stage, the next
/// group may train before the operator observes the failure.
fn follows(attempt: u64, group: &GroupStatus, failure: &AttemptFailure) -> bool {
    let taken_by = failure.rank.and_then(|rank| group.incarnations.get(rank as usize));
    attempt > failure.attempt
        || taken_by.is_some_and(|taker| taker.is_none_or(|incarnation| incarnation > failure.incarnation))
}

impl RecoveryTimes {
    /// Returns the recovery from the last failure, updated with the observed pods: the `known` recovery, or a new
    /// recovery if the failure `is_new`. Returns `None` if there is neither.
    pub(crate) fn update(
        known: Option<RecoveryTimes>,
        is_new: bool,
        state: &JobState,
        pods: &ObservedPods,
    ) -> Option<RecoveryTimes> {
        let failure = state.last_failure.as_ref()?;
        let known = known.filter(|known| known.failure.is_same(failure));
        if known.as_ref().is_some_and(RecoveryTimes::is_over) || (known.is_none() && !is_new) {
            return known;
        }
        let progress = RecoveryProgress::of(state, failure, pods);
        let mut recovery = known.unwrap_or_else(|| RecoveryTimes::new(failure));
        recovery.attempt = state.attempt.number;
        recovery.advance(&progress);
        Some(recovery)
    }

    fn is_over(&self) -> bool {
        self.ends.len() == PHASES.len()
    }

    fn new(failure: &AttemptFailure) -> RecoveryTimes {
        RecoveryTimes { failure: failure.clone(), attempt: failure.attempt, ends: Vec::new() }
    }

    fn advance(&mut self, progress: &RecoveryProgress) {
        let RecoveryProgress { now, is_decided, are_created, are_started, ref group } = *progress;
        let reported = |at: u64| (at > 0).then_some(UnixMillis(at));
        let ends = [
            Some(now),
            is_decided.then_some(now),
            are_created.then_some(now),
            are_started.then_some(now),
            reported(group.joined_at),
            reported(group.loaded_at),
            reported(group.first_step_at),
        ];
        for end in ends.into_iter().skip(self.ends.len()) {
            let Some(end) = end else { return };
            // clocks differ: no phase ends in the future or before the previous phase
            let before = self.ends.last().copied().unwrap_or(self.failure.failed_at);
            self.ends.push(end.min(now).max(before));
        }
    }

    /// Returns the seconds of each phase; `None` until all phases are over.
    pub(crate) fn seconds(&self) -> Option<[f64; PHASES.len()]> {
        let ends: [UnixMillis; PHASES.len()] = self.ends.clone().try_into().ok()?;
        let mut before = self.failure.failed_at;
        Some(ends.map(|end| {
            let seconds = end.0.saturating_sub(before.0) as f64 / 1000.0;
            before = end;
            seconds
        }))
    }

    /// Returns the recovery in the form of the status; `None` until the recovery is over.
    pub(crate) fn status(&self) -> Option<RecoveryStatus> {
        let seconds = self.seconds()?;
        let rounded = |seconds: f64| Some(FloatString(seconds).rounded(3));
        let [noticed, decided, created, started, joined, loaded, first_step] = seconds.map(rounded);
        Some(RecoveryStatus {
            attempt: self.attempt,
            replaced: self.attempt == self.failure.attempt,
            seconds: rounded(seconds.iter().sum()),
            phases: RecoveryPhasesStatus { noticed, decided, created, started, joined, loaded, first_step },
        })
    }
}

#[cfg(test)]
mod tests {
    use stagecoach_lifecycle::FailureReason;

    use super::*;

    fn failure() -> AttemptFailure {
        AttemptFailure {
            attempt: 3,
            rank: Some(1),
            mesh: None,
            incarnation: 0,
            reason: FailureReason::Killed,
            exit_code: Some(137),
            kind: None,
            step: None,
            action: None,
            message: "killed".into(),
            failed_at: UnixMillis(1000),
            uncounted: false,
        }
    }

    fn group([joined_at, loaded_at, first_step_at]: [u64; 3]) -> GroupStatus {
        GroupStatus { joined_at, loaded_at, first_step_at, ..GroupStatus::default() }
    }

    #[test]
    fn phases_end_in_their_order() {
        let mut recovery = RecoveryTimes::new(&failure());
        let steps = [
            RecoveryProgress { now: UnixMillis(1800), ..RecoveryProgress::default() },
            RecoveryProgress { now: UnixMillis(1850), is_decided: true, ..RecoveryProgress::default() },
            RecoveryProgress {
                now: UnixMillis(1900),
                is_decided: true,
                are_created: true,
                ..RecoveryProgress::default()
            },
            RecoveryProgress {
                now: UnixMillis(2500),
                is_decided: true,
                are_created: true,
                are_started: true,
                ..RecoveryProgress::default()
            },
        ];
        for (index, progress) in steps.iter().enumerate() {
            recovery.advance(progress);
            assert_eq!(recovery.ends.len(), index + 1);
            assert_eq!(recovery.status(), None);
        }
        let formed = |now, times| RecoveryProgress { now: UnixMillis(now), group: group(times), ..steps[3].clone() };
        recovery.advance(&formed(3000, [2600, 2700, 0]));
        assert_eq!(recovery.status(), None);
        recovery.advance(&formed(4000, [2600, 2700, 2750]));
        let status = recovery.status().unwrap();
        assert!(status.replaced);
        assert_eq!(status.seconds, Some(FloatString(1.75)));
        let found = recovery.seconds().unwrap().map(|seconds| (1000.0 * seconds).round());
        assert_eq!(found, [800.0, 50.0, 50.0, 600.0, 100.0, 100.0, 50.0]);
    }

    #[test]
    fn a_group_follows_a_failure_if_another_takes_part_instead_of_the_stage_that_failed() {
        let group = |incarnations: &[u32]| GroupStatus {
            incarnations: incarnations.iter().copied().map(Some).collect(),
            ..GroupStatus::default()
        };
        let failed = AttemptFailure { incarnation: 1, ..failure() };
        assert!(!follows(3, &group(&[9, 1]), &failed));
        assert!(follows(3, &group(&[0, 2]), &failed));
        assert!(follows(4, &group(&[0, 0]), &failed));
        // a trainer that does not report the incarnations of its group
        assert!(!follows(3, &group(&[]), &failed));
        assert!(!follows(3, &group(&[0, 2]), &AttemptFailure { rank: None, ..failed }));
    }

    /// If a spare replaces the lost stage, the group may train before the operator observes the loss.
    #[test]
    fn what_was_over_before_the_failure_was_known_took_no_time() {
        let mut recovery = RecoveryTimes::new(&failure());
        let all =
            RecoveryProgress { is_decided: true, are_created: true, are_started: true, ..RecoveryProgress::default() };
        recovery.advance(&RecoveryProgress { now: UnixMillis(1500), group: group([200, 300, 400]), ..all });
        assert!(recovery.is_over());
        assert_eq!(recovery.status().unwrap().phases.created, Some(FloatString(0.0)));
    }

    #[test]
    fn clocks_that_differ_make_no_phase_negative() {
        let mut recovery = RecoveryTimes::new(&failure());
        recovery.attempt = 4;
        // the operator's clock shows 900, before the failure at 1000; the leader reports one time before the failure
        // and two times far after it
        let all =
            RecoveryProgress { is_decided: true, are_created: true, are_started: true, ..RecoveryProgress::default() };
        recovery.advance(&RecoveryProgress { now: UnixMillis(900), group: group([5, 1_000_000, 1_000_001]), ..all });
        let seconds = recovery.seconds().unwrap();
        assert!(seconds.iter().all(|seconds| *seconds == 0.0), "{seconds:?}");
        assert!(!recovery.status().unwrap().replaced);
    }
}
