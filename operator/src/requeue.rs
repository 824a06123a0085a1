//! The delays after which the operator reconciles a job if no event arrives.

use std::time::Duration;

use stagecoach_lifecycle::Decision;

use crate::observe::ObservedPods;

/// The interval between two reconciles of an unfinished job without any event.
const RESYNC_INTERVAL: Duration = Duration::from_secs(300);
/// The delay until the reconcile that reports a new rejection, or an object that another client repeatedly changes, in
/// the status. The reconcile after a write to a Workload has the same delay.
pub(crate) const FOLLOW_UP_DELAY: Duration = Duration::from_millis(50);
/// The retry delay while a pod that was created as a spare has not reported whether it is a stage.
pub(crate) const SPARE_STATUS_RETRY_DELAY: Duration = Duration::from_millis(200);
/// The retry delay of a job whose folder still has pods of another job.
pub(crate) const LEAVING_RETRY_DELAY: Duration = Duration::from_secs(1);
/// The delay until the operator reads again a missing Workload that another controller creates.
pub(crate) const PREBUILT_RETRY_DELAY: Duration = Duration::from_secs(5);
/// The retry delay while the first list of the Workloads is on its way.
pub(crate) const FIRST_LIST_DELAY: Duration = Duration::from_millis(200);
/// The retry delay while the watch of the Workloads fails.
pub(crate) const UNLISTED_RETRY_DELAY: Duration = Duration::from_secs(5);
/// The retry delay while the watch has not delivered the exit of a pod that is absent from a list.
const MISSING_POD_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Returns the delay until the next deadline of the decision, or until the next observation of the pods. Returns `None`
/// if only an event can change anything.
pub(crate) fn requeue_delay(decision: &Decision, pods: &ObservedPods) -> Option<Duration> {
    let wake = decision.wake_at.map(|wake_at| Duration::from_millis(wake_at.0.saturating_sub(pods.observed_at.0)));
    let missing_pod = pods.awaits_pod_exit().then_some(MISSING_POD_RETRY_DELAY);
    let spare_status = pods.awaits_spare_status.then_some(SPARE_STATUS_RETRY_DELAY);
    let resync = decision.state.outcome().is_none().then_some(RESYNC_INTERVAL);
    [wake, missing_pod, spare_status, resync].into_iter().flatten().min()
}
