//! Tests of times from a clock that was ahead of the current clock, or behind it. No wait exceeds its bound, counted
//! from the current time.

use proptest::prelude::*;
use stagecoach_api::job::JobPhase;
use stagecoach_lifecycle::*;

use super::{NOW, exited, ready, running, start};

const HOUR: u64 = 3600;

/// Returns a job that waits for its next attempt. The wait began when the clock showed `recorded_at`.
fn backing_off(recorded_at: UnixMillis) -> Observed {
    let mut observed = running(vec![exited(0, 1, 995), exited(1, 75, 996), exited(2, 75, 996)]);
    observed.policy.backoff_jitter_percent = 25;
    observed.state.failures_without_progress = 9;
    observed.state.started_at = Some(recorded_at);
    observed.state = decide(&observed, recorded_at).state;
    observed.instances.clear();
    observed
}

#[test]
fn a_back_off_that_a_clock_ahead_recorded_is_no_longer_than_the_longest() {
    let observed = backing_off(NOW.plus_seconds(HOUR));
    let decision = decide(&observed, NOW);
    // 10 s plus a jitter of 25 %
    assert_eq!((decision.wake_at, decision.job_phase), (Some(UnixMillis(NOW.0 + 12_500)), JobPhase::Restarting));
    // the time is stored once and does not follow the clock
    let observed = Observed { state: decision.state.clone(), ..observed };
    assert_eq!(decide(&observed, NOW.plus_seconds(5)).state, decision.state);
    assert_eq!(decide(&observed, NOW.plus_seconds(13)).actions, [start(2, 3)]);
}

#[test]
fn a_deadline_runs_from_now_if_a_clock_ahead_recorded_the_start() {
    let mut observed = running((0..3).map(ready).collect());
    observed.policy.active_deadline_seconds = Some(100);
    observed.state.started_at = Some(NOW.plus_seconds(HOUR));
    let decision = decide(&observed, NOW);
    assert_eq!((decision.state.started_at, decision.wake_at), (Some(NOW), Some(NOW.plus_seconds(100))));
}

proptest! {
    #[test]
    fn a_job_starts_again_within_its_longest_back_off_after_any_jump(recorded_at: u64, now in 0..u64::MAX / 2) {
        let now = UnixMillis(now);
        let mut observed = backing_off(UnixMillis(recorded_at));
        let first = decide(&observed, now);
        observed.state = first.state;
        let due = first.wake_at.unwrap_or(now);
        prop_assert!(due <= UnixMillis(now.0 + 12_500), "{due:?}");
        prop_assert_eq!(decide(&observed, due).actions, [start(2, 3)]);
    }
}
