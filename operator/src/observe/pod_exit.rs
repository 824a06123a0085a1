//! The exit of a pod's trainer, and the external cause of the exit, such as an eviction or a lost node, if the exit has
//! one.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodCondition};
use stagecoach_api::contract::{CONTAINER_NAME, ExitCode, FailureKind, TerminationMessage};
use stagecoach_api::job::ProgressStatus;
use stagecoach_api::visible;
use stagecoach_lifecycle::{Exit, ExternalCause, TerminationReport};

use super::PartialPod;

/// Returns the trainer's exit. `ended` is the terminated state of the trainer's container, if the container has one.
pub(super) fn exit(pod: &PartialPod, ended: Option<&ContainerStateTerminated>) -> Exit {
    let message = ended.and_then(termination_message);
    let mut report = message.as_ref().map(TerminationReport::from);
    if ended.is_some_and(|ended| ended.reason.as_deref() == Some("OOMKilled")) {
        let message = "the kernel killed the trainer because it reached the memory limit of its container: raise the \
                       limit, or use more stages";
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
        message: pod.status.message.as_deref().map(|message| visible(message).into_owned()),
        termination: report,
    }
}

/// Returns the last progress of an exited trainer; `None` if its termination message has no progress.
pub(super) fn last_progress(pod: &PartialPod) -> Option<ProgressStatus> {
    let mut containers = pod.status.container_statuses.iter().flatten();
    let trainer = containers.find(|container| container.name == CONTAINER_NAME)?;
    termination_message(trainer.state.as_ref()?.terminated.as_ref()?)?.progress
}

fn termination_message(ended: &ContainerStateTerminated) -> Option<TerminationMessage> {
    TerminationMessage::from_json(ended.message.as_deref()?)
}

/// Whether the kubelet evicted the pod because the pod exceeded its own storage limit. A pod that the kubelet evicts
/// because the node lacks a resource has the condition `DisruptionTarget`.
fn is_over_its_own_limit(pod: &PartialPod) -> bool {
    pod.status.reason.as_deref() == Some("Evicted") && disruption(pod).is_none()
}

fn disruption(pod: &PartialPod) -> Option<&PodCondition> {
    pod.condition("DisruptionTarget").filter(|condition| condition.status == "True")
}

/// Returns the exit of a pod whose init container failed; `None` if no init container failed, or if an external cause
/// such as an eviction ended the pod. The exit has the code of a general failure and not the code of the init
/// container, because only the trainer uses the exit codes of `stagecoach_api::contract`.
pub(super) fn init_container_exit(pod: &PartialPod) -> Option<Exit> {
    let (container, ended) = failed_init_container(pod).filter(|_| external_cause(pod).is_none())?;
    let why = ended.message.as_deref().or(ended.reason.as_deref()).unwrap_or_default();
    let message = format!("init container {container} exited with code {}: {}", ended.exit_code, visible(why));
    Some(Exit { message: Some(message), ..Exit::with_code(ExitCode::Failure.code()) })
}

/// Returns the name and the terminated state of the init container that failed, if one failed. Sidecars are ignored:
/// the kubelet stops sidecars when another container fails, and the exit of a sidecar does not end the pod.
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

/// Whether the pod ends by itself: its containers have ended, and the kubelet then stops the sidecars among the init
/// containers.
pub(super) fn ends_by_itself(pod: &PartialPod) -> bool {
    let statuses = pod.status.container_statuses.as_deref().unwrap_or_default();
    let has_ended =
        |container: &ContainerStatus| container.state.as_ref().is_some_and(|state| state.terminated.is_some());
    matches!(pod.status.phase.as_deref(), Some("Failed" | "Succeeded"))
        || !statuses.is_empty() && statuses.iter().all(has_ended)
}

/// Returns the external cause of the exit, if the exit has one.
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use stagecoach_lifecycle::{InstanceState, UnixMillis};

    use super::super::pod_state;
    use super::super::pod_state::tests::{at, pod};
    use super::*;

    fn state(pod: &Value) -> (InstanceState, UnixMillis) {
        pod_state::state(&serde_json::from_value(pod.clone()).unwrap())
    }

    fn exit(pod: &Value) -> Exit {
        match state(pod).0 {
            InstanceState::Exited(exit) => exit,
            other => panic!("{other:?}"),
        }
    }

    fn ended(terminated: Value) -> Value {
        let sidecar = json!({"name": "proxy", "state": {"running": {"startedAt": "2026-01-01T00:00:02Z"}}});
        pod(
            json!({"phase": "Running", "containerStatuses": [sidecar, {"name": "trainer", "state": {"terminated": terminated}}]}),
        )
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
        let escapes = r#"{"kind": "Error", "stage": 2, "message": "\u001b[2J\u202e\r\nred", "action": "\u0000"}"#;
        let Exit { termination: Some(report), .. } = exit(&ended(json!({"exitCode": 5, "message": escapes}))) else {
            panic!()
        };
        assert_eq!((report.message.as_str(), report.action.as_deref()), ("^[[2J<U+202E>^M\nred", Some("^@")));
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

    /// The kubelet sets no condition `DisruptionTarget` when it evicts a pod that has exceeded its own limit.
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
        // a sidecar that the kubelet stops because of the failure is not the failed container
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
}
