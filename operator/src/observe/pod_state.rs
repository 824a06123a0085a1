//! The meaning of a pod for its job: its role as a stage or spare, its state, and the reason why it can't start.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1;
use stagecoach_api::contract::{ATTEMPT_LABEL, CONTAINER_NAME};
use stagecoach_lifecycle::{InstanceState, UnixMillis};

use super::PartialPod;
use super::pod_exit::{exit, init_container_exit};
use crate::build::PodRole;

/// The reason why a pod does not run yet, or why the API server rejected an object. The condition `Scheduled` shows
/// this reason and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockingReason {
    /// The reason, such as `ImagePullBackOff` or `Unschedulable`.
    pub reason: String,
    /// The message of the scheduler, the kubelet or the API server.
    pub message: String,
}

/// Returns the role for which `pod` was created, and its attempt; `None` if the labels do not identify a pod of an
/// attempt.
pub(super) fn role(pod: &PartialPod) -> Option<(PodRole, u64)> {
    let labels = pod.metadata.labels.as_ref()?;
    Some((PodRole::from_labels(labels)?, labels.get(ATTEMPT_LABEL)?.parse().ok()?))
}

/// Returns the types and statuses of the pod's conditions.
pub(super) fn conditions(pod: &PartialPod) -> Vec<(String, String)> {
    let conditions = pod.status.conditions.iter().flatten();
    conditions.map(|condition| (condition.type_.clone(), condition.status.clone())).collect()
}

/// Returns the reason why a pod can't start; `None` if the pod's status has no such reason.
pub(super) fn blocking_reason(pod: &PartialPod) -> Option<BlockingReason> {
    let reason = |reason: &Option<String>, message: &Option<String>| BlockingReason {
        reason: reason.clone().unwrap_or_else(|| "Waiting".into()),
        message: message.clone().unwrap_or_default(),
    };
    let status = &pod.status;
    if status.phase.as_deref().is_some_and(|phase| phase != "Pending") {
        return None;
    }
    if let Some(unscheduled) = pod.condition("PodScheduled").filter(|condition| condition.status == "False") {
        return Some(reason(&unscheduled.reason, &unscheduled.message));
    }
    let mut waiting = [&status.init_container_statuses, &status.container_statuses]
        .into_iter()
        .flat_map(|containers| containers.iter().flatten())
        .filter_map(|container| container.state.as_ref()?.waiting.as_ref());
    let normal = ["ContainerCreating", "PodInitializing"];
    let unexpected =
        waiting.find(|waiting| waiting.reason.as_deref().is_some_and(|reason| !normal.contains(&reason)))?;
    Some(reason(&unexpected.reason, &unexpected.message))
}

/// Returns the pod's state according to its status in the API, and the time at which the pod entered this state.
pub(super) fn state(pod: &PartialPod) -> (InstanceState, UnixMillis) {
    let (metadata, status) = (&pod.metadata, &pod.status);
    let created = time(metadata.creation_timestamp.as_ref()).unwrap_or(UnixMillis(0));
    let is_trainer = |container: &&ContainerStatus| container.name == CONTAINER_NAME;
    let trainer: Option<&ContainerState> =
        status.container_statuses.iter().flatten().find(is_trainer).and_then(|trainer| trainer.state.as_ref());
    // the exit of the trainer container counts, even while the pod is being deleted; the exit of a sidecar never counts
    if let Some(ended) = trainer.and_then(|trainer| trainer.terminated.as_ref()) {
        return (InstanceState::Exited(exit(pod, Some(ended))), time(ended.finished_at.as_ref()).unwrap_or(created));
    }
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        // the trainer never ran, or the container status is missing because the pod was evicted or its node was lost
        let at = pod.condition("DisruptionTarget").and_then(since);
        let exit = init_container_exit(pod).unwrap_or_else(|| exit(pod, None));
        return (InstanceState::Exited(exit), at.unwrap_or(created));
    }
    if let Some(deadline) = time(metadata.deletion_timestamp.as_ref()) {
        // deletionTimestamp = time of the delete request + grace period
        let grace = metadata.deletion_grace_period_seconds.and_then(|grace| u64::try_from(grace).ok()).unwrap_or(0);
        return (InstanceState::Terminating, UnixMillis(deadline.0.saturating_sub(grace.saturating_mul(1000))));
    }
    let ready = pod.condition("Ready");
    if ready.is_some_and(|ready| ready.status == "True") {
        return (InstanceState::Ready, ready.and_then(since).unwrap_or(created));
    }
    match trainer.and_then(|trainer| time(trainer.running.as_ref()?.started_at.as_ref())) {
        // if the pod has lost its readiness, the start-up timeout counts from that time
        Some(started) => (InstanceState::Starting, started.max(ready.and_then(since).unwrap_or(started))),
        None if !pod.spec.scheduling_gates.is_empty() => (InstanceState::SchedulingGated, created),
        None => (InstanceState::Pending, created),
    }
}

fn since(condition: &PodCondition) -> Option<UnixMillis> {
    time(condition.last_transition_time.as_ref())
}

fn time(timestamp: Option<&v1::Time>) -> Option<UnixMillis> {
    UnixMillis::from_signed(timestamp?.0.as_millisecond())
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};
    use stagecoach_lifecycle::InstanceId;

    use super::*;

    fn state(pod: &Value) -> (InstanceState, UnixMillis) {
        super::state(&serde_json::from_value(pod.clone()).unwrap())
    }

    fn blocking_reason(pod: &Value) -> Option<BlockingReason> {
        super::blocking_reason(&serde_json::from_value(pod.clone()).unwrap())
    }

    /// Returns the time 2026-01-01T00:00:SSZ, where SS is `seconds`.
    pub(in crate::observe) fn at(seconds: u64) -> UnixMillis {
        UnixMillis(1_767_225_600_000 + seconds * 1000)
    }

    pub(in crate::observe) fn pod(status: Value) -> Value {
        let labels = json!({"stagecoach.dev/stage": "2", "stagecoach.dev/attempt": "7"});
        json!({"metadata": {"labels": labels, "creationTimestamp": "2026-01-01T00:00:01Z"}, "status": status})
    }

    #[test]
    fn labels_say_what_a_pod_was_made_as() {
        let role =
            |labels: Value| super::role(&serde_json::from_value(json!({"metadata": {"labels": labels}})).unwrap());
        let stage = |rank, incarnation| Some((PodRole::Stage(InstanceId { rank, incarnation }), 7));
        let (of_stage, attempt) = ("stagecoach.dev/stage", "stagecoach.dev/attempt");
        assert_eq!(role(json!({of_stage: "2", attempt: "7", "stagecoach.dev/incarnation": "3"})), stage(2, 3));
        assert_eq!(role(json!({of_stage: "2", attempt: "7"})), stage(2, 0), "of an older operator");
        assert_eq!(role(json!({"stagecoach.dev/spare": "1", attempt: "7"})), Some((PodRole::Spare(1), 7)));
        for none in [json!({}), json!({attempt: "7"}), json!({of_stage: "2"}), json!({of_stage: "x", attempt: "7"})] {
            assert_eq!(role(none), None);
        }
    }

    #[test]
    fn instance_states_follow_a_pods_life() {
        assert_eq!(state(&pod(json!({"phase": "Pending"}))), (InstanceState::Pending, at(1)));
        let mut held = pod(json!({"phase": "Pending"}));
        held["spec"]["schedulingGates"] = json!([{"name": "kueue.x-k8s.io/admission"}]);
        assert_eq!(state(&held), (InstanceState::SchedulingGated, at(1)));
        let running = json!([{"name": "trainer", "state": {"running": {"startedAt": "2026-01-01T00:00:03Z"}}}]);
        let starting = pod(json!({"phase": "Running", "containerStatuses": running}));
        assert_eq!(state(&starting), (InstanceState::Starting, at(3)));
        let mut ready = starting.clone();
        ready["status"]["conditions"] =
            json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}]);
        assert_eq!(state(&ready), (InstanceState::Ready, at(5)));
        let mut unready = ready.clone();
        unready["status"]["conditions"] =
            json!([{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:10:05Z"}]);
        assert_eq!(state(&unready), (InstanceState::Starting, at(605)), "the start-up timeout starts again");
        // deleted at second 6 with a grace period of 30
        let mut terminating = ready.clone();
        terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:36Z".into();
        terminating["metadata"]["deletionGracePeriodSeconds"] = 30.into();
        assert_eq!(state(&terminating), (InstanceState::Terminating, at(6)));
    }

    #[test]
    fn the_blocking_reason_is_the_clusters_own() {
        let unschedulable = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"});
        let found = blocking_reason(&pod(json!({"phase": "Pending", "conditions": [unschedulable]}))).unwrap();
        assert_eq!((found.reason.as_str(), found.message.as_str()), ("Unschedulable", "0/3 nodes are available"));
        let waiting = |reason: &str| json!({"phase": "Pending", "containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": reason, "message": "m"}}}]});
        assert_eq!(blocking_reason(&pod(waiting("ImagePullBackOff"))).unwrap().reason, "ImagePullBackOff");
        assert_eq!(blocking_reason(&pod(waiting("ContainerCreating"))), None);
        assert_eq!(blocking_reason(&pod(json!({"phase": "Running"}))), None);
    }
}
