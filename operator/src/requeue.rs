//! When a job is reconciled again if no event arrives.

use std::time::Duration;

use stagecoach_lifecycle::{Decision, UnixMillis};

use crate::observe::JobSnapshot;

/// How often a job that is not over is reconciled although nothing changed.
const RESYNC_INTERVAL: Duration = Duration::from_secs(300);
/// Minimum seconds between reconciles, and writes, that change nothing but progress.
pub(crate) const PROGRESS_INTERVAL_SECONDS: u64 = 15;
/// Delay of the reconcile that writes a new rejection to the status.
pub(crate) const NEW_REJECTION_DELAY: Duration = Duration::from_millis(50);
/// Retry delay while a pod that was made as a spare has not said what it is.
pub(crate) const SPARE_STATUS_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Retry delay while the watch has not yet delivered the exit of a pod that is absent from a list.
const MISSING_POD_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Delay until the next deadline of the decision, or list of pods; None if only an event changes anything.
pub(crate) fn requeue_delay(decision: &Decision, snapshot: &JobSnapshot, now: UnixMillis) -> Option<Duration> {
    let wake = decision.wake_at.map(|wake_at| Duration::from_millis(wake_at.0.saturating_sub(now.0)));
    let missing_pod = snapshot.awaits_pod_exit().then_some(MISSING_POD_RETRY_DELAY);
    let spare_status = snapshot.awaits_spare_status.then_some(SPARE_STATUS_RETRY_DELAY);
    let resync = decision.state.outcome().is_none().then_some(RESYNC_INTERVAL);
    [wake, missing_pod, spare_status, resync].into_iter().flatten().min()
}
