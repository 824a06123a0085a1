//! Converts a pod into what lifecycle sees of it: its state, and since when.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1;
use stagecoach_api::contract::{ATTEMPT_LABEL, CONTAINER_NAME, ExitCode, FailureKind, TerminationMessage};
use stagecoach_lifecycle::{Exit, ExternalCause, InstanceState, TerminationReport, UnixMillis};

use super::PartialPod;
use crate::build::PodRole;

/// Why a pod does not run yet, or why the API server rejected an object: reason and message for the condition `Scheduled`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockingReason {
    /// The reason, such as `ImagePullBackOff` or `Unschedulable`.
    pub reason: String,
    /// The message of the scheduler, the kubelet or the API server.
    pub message: String,
}

/// What `pod` was made as, and its attempt; None if it is not a pod of an attempt.
pub(super) fn role(pod: &PartialPod) -> Option<(PodRole, u64)> {
    let labels = pod.metadata.labels.as_ref()?;
    Some((PodRole::from_labels(labels)?, labels.get(ATTEMPT_LABEL)?.parse().ok()?))
}

/// Types and statuses of the pod's conditions.
pub(super) fn conditions(pod: &PartialPod) -> Vec<(String, String)> {
    let conditions = pod.status.conditions.iter().flatten();
    conditions.map(|condition| (condition.type_.clone(), condition.status.clone())).collect()
}

/// Why a pod can't start, if its status has a reason.
pub(super) fn blocking_reason(pod: &PartialPod) -> Option<BlockingReason> {
    let reason = |reason: &Option<String>, message: &Option<String>| BlockingReason {
        reason: reason.clone().unwrap_or_else(|| "Waiting".into()),
        message: message.clone().unwrap_or_default(),
    };
    let status = &pod.status;
    if status.phase.as_deref().is_some_and(|phase| phase != "Pending") {
        return None;
    }
    if let Some(unscheduled) = condition(pod, "PodScheduled").filter(|condition| condition.status == "False") {
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

/// The pod's state as its node tells it, and since when.
pub(super) fn state(pod: &PartialPod) -> (InstanceState, UnixMillis) {
    let (metadata, status) = (&pod.metadata, &pod.status);
    let created = time(metadata.creation_timestamp.as_ref()).unwrap_or(UnixMillis(0));
    let is_trainer = |container: &&ContainerStatus| container.name == CONTAINER_NAME;
    let trainer: Option<&ContainerState> =
        status.container_statuses.iter().flatten().find(is_trainer).and_then(|trainer| trainer.state.as_ref());
    // only the trainer container's exit counts, not its sidecars'; also while the pod is being deleted
    if let Some(ended) = trainer.and_then(|trainer| trainer.terminated.as_ref()) {
        return (InstanceState::Exited(exit(pod, Some(ended))), time(ended.finished_at.as_ref()).unwrap_or(created));
    }
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        // the trainer never ran, or there is no container status: evicted, or its node was lost
        let at = condition(pod, "DisruptionTarget").and_then(since);
        let exit = init_container_exit(pod).unwrap_or_else(|| exit(pod, None));
        return (InstanceState::Exited(exit), at.unwrap_or(created));
    }
    if let Some(deadline) = time(metadata.deletion_timestamp.as_ref()) {
        // deletionTimestamp = time of the delete request + grace period
        let grace = metadata.deletion_grace_period_seconds.and_then(|grace| u64::try_from(grace).ok()).unwrap_or(0);
        return (InstanceState::Terminating, UnixMillis(deadline.0.saturating_sub(grace.saturating_mul(1000))));
    }
    let ready = condition(pod, "Ready");
    if ready.is_some_and(|ready| ready.status == "True") {
        return (InstanceState::Ready, ready.and_then(since).unwrap_or(created));
    }
    match trainer.and_then(|trainer| time(trainer.running.as_ref()?.started_at.as_ref())) {
        // readiness was lost: the start-up timeout runs from that moment
        Some(started) => (InstanceState::Starting, started.max(ready.and_then(since).unwrap_or(started))),
        None if !pod.spec.scheduling_gates.is_empty() => (InstanceState::SchedulingGated, created),
        None => (InstanceState::Pending, created),
    }
}

/// The trainer's exit; `ended` is the terminated state of its container, if there is one.
fn exit(pod: &PartialPod, ended: Option<&ContainerStateTerminated>) -> Exit {
    let message = ended.and_then(|ended| TerminationMessage::from_json(ended.message.as_deref()?));
    let mut report = message.as_ref().map(TerminationReport::from);
    if ended.is_some_and(|ended| ended.reason.as_deref() == Some("OOMKilled")) {
        let message = "the kernel ended the trainer because its memory limit was reached: raise it, or use more stages";
        let report = report.get_or_insert(TerminationReport {
            kind: FailureKind::OutOfMemory,
            step: None,
            action: None,
            message: String::new(),
            finished_steps: None,
            checkpoint_step: None,
        });
        (report.kind, report.message) = (FailureKind::OutOfMemory, message.into());
    }
    let exceeded_limit = is_over_its_own_limit(pod).then(|| ExitCode::Killed.code());
    Exit {
        code: ended.map(|ended| ended.exit_code).or(exceeded_limit),
        signal: None,
        external_cause: external_cause(pod),
        message: pod.status.message.clone(),
        termination: report,
    }
}

/// Whether the kubelet evicted it for what it stored: an eviction by the node's lack of something is a disruption.
fn is_over_its_own_limit(pod: &PartialPod) -> bool {
    pod.status.reason.as_deref() == Some("Evicted") && disruption(pod).is_none()
}

fn disruption(pod: &PartialPod) -> Option<&PodCondition> {
    condition(pod, "DisruptionTarget").filter(|condition| condition.status == "True")
}

/// The exit of a pod whose init container failed, unless the pod was disrupted. The container's own code has no meaning in the
/// contract of stages.
fn init_container_exit(pod: &PartialPod) -> Option<Exit> {
    let (container, ended) = failed_init_container(pod).filter(|_| external_cause(pod).is_none())?;
    let why = ended.message.as_deref().or(ended.reason.as_deref()).unwrap_or_default();
    let message = format!("init container {container} exited with code {}: {why}", ended.exit_code);
    Some(Exit { message: Some(message), ..Exit::with_code(ExitCode::Failure.code()) })
}

/// The name and the end of the init container that failed, if one did. A sidecar is told to end when another fails, and its own
/// exit ends no pod.
pub(super) fn failed_init_container(pod: &PartialPod) -> Option<(&str, &ContainerStateTerminated)> {
    let is_sidecar = |name: &str| {
        let mut containers = pod.spec.init_containers.iter();
        containers.any(|container| container.name == name && container.restart_policy.as_deref() == Some("Always"))
    };
    let containers = pod.status.init_container_statuses.iter().flatten();
    let mut ended = containers
        .filter_map(|container| Some((container.name.as_str(), container.state.as_ref()?.terminated.as_ref()?)));
    ended.find(|(name, ended)| ended.exit_code != 0 && !is_sidecar(name))
}

/// Whether it ends by itself: its containers have ended, and sidecars among the init containers are ended after them.
pub(super) fn ends_by_itself(pod: &PartialPod) -> bool {
    let statuses = pod.status.container_statuses.as_deref().unwrap_or_default();
    let has_ended =
        |container: &ContainerStatus| container.state.as_ref().is_some_and(|state| state.terminated.is_some());
    matches!(pod.status.phase.as_deref(), Some("Failed" | "Succeeded"))
        || !statuses.is_empty() && statuses.iter().all(has_ended)
}

/// The cause outside the job, if there is one.
fn external_cause(pod: &PartialPod) -> Option<ExternalCause> {
    if is_over_its_own_limit(pod) {
        return None;
    }
    match disruption(pod).and_then(|condition| condition.reason.as_deref()).or(pod.status.reason.as_deref())? {
        "PreemptionByScheduler" | "Preempting" => Some(ExternalCause::Preempted),
        "EvictionByEvictionAPI" | "TerminationByKubelet" | "Evicted" | "Terminated" | "NodeShutdown" => {
            Some(ExternalCause::Evicted)
        }
        "UnexpectedAdmissionError" => Some(ExternalCause::NotAdmitted),
        reason if reason.starts_with("OutOf") => Some(ExternalCause::NotAdmitted),
        "DeletionByTaintManager" | "DeletionByPodGC" | "NodeLost" => Some(ExternalCause::NodeLost),
        _ => None,
    }
}

fn condition<'p>(pod: &'p PartialPod, kind: &str) -> Option<&'p PodCondition> {
    pod.status.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

fn since(condition: &PodCondition) -> Option<UnixMillis> {
    time(condition.last_transition_time.as_ref())
}

fn time(timestamp: Option<&v1::Time>) -> Option<UnixMillis> {
    u64::try_from(timestamp?.0.as_millisecond()).ok().map(UnixMillis)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use stagecoach_lifecycle::InstanceId;

    fn state(pod: &Value) -> (InstanceState, UnixMillis) {
        super::state(&serde_json::from_value(pod.clone()).unwrap())
    }

    fn exit(pod: &Value) -> Exit {
        match state(pod).0 {
            InstanceState::Exited(exit) => exit,
            other => panic!("{other:?}"),
        }
    }

    fn blocking_reason(pod: &Value) -> Option<BlockingReason> {
        super::blocking_reason(&serde_json::from_value(pod.clone()).unwrap())
    }

    /// 2026-01-01T00:00:SSZ
    fn at(seconds: u64) -> UnixMillis {
        UnixMillis(1_767_225_600_000 + seconds * 1000)
    }

    fn pod(status: Value) -> Value {
        let labels = json!({"stagecoach.dev/stage": "2", "stagecoach.dev/attempt": "7"});
        json!({"metadata": {"labels": labels, "creationTimestamp": "2026-01-01T00:00:01Z"}, "status": status})
    }

    fn ended(terminated: Value) -> Value {
        let sidecar = json!({"name": "proxy", "state": {"running": {"startedAt": "2026-01-01T00:00:02Z"}}});
        pod(
            json!({"phase": "Running", "containerStatuses": [sidecar, {"name": "trainer", "state": {"terminated": terminated}}]}),
        )
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
        assert_eq!(state(&unready), (InstanceState::Starting, at(605)), "the start-up timeout starts anew");
        // deleted at second 6 with a grace period of 30
        let mut terminating = ready.clone();
        terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:36Z".into();
        terminating["metadata"]["deletionGracePeriodSeconds"] = 30.into();
        assert_eq!(state(&terminating), (InstanceState::Terminating, at(6)));
    }

    #[test]
    fn only_the_trainers_exit_counts() {
        let message = TerminationMessage::new(FailureKind::Storage, 2, "could not write").to_json();
        let mut pod = ended(json!({"exitCode": 74, "finishedAt": "2026-01-01T00:00:09Z", "message": message}));
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:36Z".into();
        assert_eq!(state(&pod).1, at(9));
        let Exit { code, external_cause, termination: Some(report), .. } = exit(&pod) else { panic!() };
        assert_eq!((code, external_cause, report.kind), (Some(74), None, FailureKind::Storage));
        assert_eq!(report.message, "could not write");
    }

    #[test]
    fn external_causes_are_read_from_the_pod() {
        let external = |status: Value| {
            let Exit { code, external_cause, .. } = exit(&pod(status));
            (code, external_cause)
        };
        let disrupted = |reason: &str| json!({"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]});
        assert_eq!(external(disrupted("PreemptionByScheduler")), (None, Some(ExternalCause::Preempted)));
        assert_eq!(external(disrupted("EvictionByEvictionAPI")), (None, Some(ExternalCause::Evicted)));
        assert_eq!(external(disrupted("DeletionByTaintManager")), (None, Some(ExternalCause::NodeLost)));
        assert_eq!(external(disrupted("TerminationByKubelet")), (None, Some(ExternalCause::Evicted)));
        for reason in ["UnexpectedAdmissionError", "OutOfcpu", "OutOfnvidia.com/gpu"] {
            let refused = external(json!({"phase": "Failed", "reason": reason}));
            assert_eq!(refused, (None, Some(ExternalCause::NotAdmitted)), "{reason}");
        }
        assert_eq!(external(json!({"phase": "Failed"})), (None, None));
    }

    /// As the kubelet writes it: without the condition of a disruption.
    #[test]
    fn an_eviction_for_the_pods_own_limit_is_its_own_failure() {
        let message = "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ";
        let evicted = pod(json!({"phase": "Failed", "reason": "Evicted", "message": message}));
        let exit = exit(&evicted);
        assert_eq!((exit.code, exit.external_cause, exit.message.as_deref()), (Some(137), None, Some(message)));
    }

    #[test]
    fn a_failed_init_container_is_named() {
        let fetch = json!({"name": "fetch", "state": {"terminated": {"exitCode": 78, "reason": "Error"}}});
        let mut failed = pod(json!({"phase": "Failed", "initContainerStatuses": [fetch]}));
        let seen = exit(&failed);
        assert_eq!(
            (seen.code, seen.message.as_deref()),
            (Some(1), Some("init container fetch exited with code 78: Error"))
        );
        // a sidecar that is ended for it is none
        let logs = json!({"name": "logs", "state": {"terminated": {"exitCode": 143, "reason": "Error"}}});
        failed["spec"] = json!({"initContainers": [{"name": "logs", "restartPolicy": "Always"}, {"name": "fetch"}]});
        failed["status"]["initContainerStatuses"].as_array_mut().unwrap().insert(0, logs);
        let seen = exit(&failed);
        assert_eq!(seen.message.as_deref(), Some("init container fetch exited with code 78: Error"));
        failed["status"]["reason"] = "Evicted".into();
        failed["status"]["conditions"] =
            json!([{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]);
        let seen = exit(&failed);
        assert_eq!((seen.code, seen.external_cause), (None, Some(ExternalCause::Evicted)));
    }

    #[test]
    fn an_oom_kill_is_reported_as_out_of_memory() {
        let pod = ended(json!({"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:09Z"}));
        let exit = exit(&pod);
        assert_eq!(
            (exit.code, exit.termination.map(|report| report.kind)),
            (Some(137), Some(FailureKind::OutOfMemory))
        );
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
