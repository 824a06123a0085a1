//! The delays after which a job is reconciled again if no event arrives.

use std::time::Duration;

use stagecoach_lifecycle::Decision;

use crate::observe::ObservedPods;

/// The interval at which an unfinished job is reconciled although nothing changed.
const RESYNC_INTERVAL: Duration = Duration::from_secs(300);
/// Delay of the reconcile that writes a new rejection, or a repair that does not last, to the status.
pub(crate) const NEW_REJECTION_DELAY: Duration = Duration::from_millis(50);
/// Retry delay while a pod that was created as a spare has not answered yet whether it is a stage.
pub(crate) const SPARE_STATUS_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Retry delay of a job whose folder still has pods of another job.
pub(crate) const LEAVING_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Delay until the operator looks again for a Workload that another controller makes.
pub(crate) const PREBUILT_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Retry delay while the watch has not yet delivered the exit of a pod that is absent from a list.
const MISSING_POD_RETRY_DELAY: Duration = Duration::from_millis(200);

/// The delay until the next deadline of the decision, or until the pods are observed again. `None` if only an event can
/// change anything.
pub(crate) fn requeue_delay(decision: &Decision, pods: &ObservedPods) -> Option<Duration> {
    let wake = decision.wake_at.map(|wake_at| Duration::from_millis(wake_at.0.saturating_sub(pods.observed_at.0)));
    let missing_pod = pods.awaits_pod_exit().then_some(MISSING_POD_RETRY_DELAY);
    let spare_status = pods.awaits_spare_status.then_some(SPARE_STATUS_RETRY_DELAY);
    let resync = decision.state.outcome().is_none().then_some(RESYNC_INTERVAL);
    [wake, missing_pod, spare_status, resync].into_iter().flatten().min()
}
