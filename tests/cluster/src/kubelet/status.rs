//! Builds the status of pods as a kubelet writes it. The results depend only on the arguments and on the current time.

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::environment::secrets;
use super::handle::ContainerExit;

/// The state of a container.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ContainerState {
    /// The container has not started, for this reason.
    Waiting(&'static str),
    /// The container runs: the time of its start, and whether it is ready.
    Running { since: Value, ready: bool },
    /// The container has ended: the times of its start and end, and its exit.
    Terminated { since: Value, at: Value, exit: ContainerExit },
}

/// Returns the current time in the form of RFC 3339.
pub(super) fn now() -> Value {
    serde_json::to_value(Time(k8s_openapi::jiff::Timestamp::now())).unwrap()
}

/// Returns the strategic merge patch for `/status`. `states` has the states of the pod's containers in order, and after
/// them the states of the init containers that have started.
pub(super) fn patch(pod: &Pod, address: Option<&str>, started: &Value, states: &[ContainerState]) -> Value {
    let spec = pod.spec.as_ref().unwrap();
    let (main, init) = states.split_at(spec.containers.len());
    let containers: Vec<Value> = spec.containers.iter().zip(main).map(|(of, state)| container(of, state)).collect();
    let init_containers = spec.init_containers.iter().flatten().zip(init).map(|(of, state)| container(of, state));
    let evicted = states.iter().any(|state| matches!(state, ContainerState::Terminated { exit, .. } if exit.evicted));
    let phase = phase(main, init);
    // the pod's containers start when the init containers have succeeded
    let initialized = spec.init_containers.is_none() || !main.iter().all(|it| matches!(it, ContainerState::Waiting(_)));
    let ready = main.iter().all(|state| matches!(state, ContainerState::Running { ready: true, .. }));
    let why = match phase {
        "Succeeded" => "PodCompleted",
        "Failed" => "PodFailed",
        _ => "ContainersNotReady",
    };
    let condition = |kind: &str, holds: bool, why: &str| {
        let reason = if holds { Value::Null } else { json!(why) };
        json!({"type": kind, "status": if holds { "True" } else { "False" }, "reason": reason, "lastTransitionTime": transition(pod, kind, holds)})
    };
    let mut conditions = vec![
        condition("PodReadyToStartContainers", address.is_some(), why),
        condition("Initialized", initialized, "ContainersNotInitialized"),
        condition("ContainersReady", ready, why),
        condition("Ready", ready, why),
    ];
    if evicted {
        conditions.push(json!({
            "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet",
            "message": "The node was low on resource: memory.", "lastTransitionTime": now(),
        }));
    }
    let mut status = json!({
        "phase": phase,
        "conditions": conditions,
        "containerStatuses": containers,
        "initContainerStatuses": init_containers.collect::<Vec<_>>(),
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "startTime": started,
    });
    if let Some(address) = address {
        status["podIP"] = json!(address);
        status["podIPs"] = json!([{"ip": address}]);
    }
    if evicted {
        status["reason"] = json!("Evicted");
        status["message"] = json!("The node was low on resource: memory.");
    }
    json!({"metadata": {"uid": pod.metadata.uid}, "status": status})
}

fn phase(states: &[ContainerState], init: &[ContainerState]) -> &'static str {
    let init_runs = init.iter().any(|state| matches!(state, ContainerState::Running { .. }));
    let init_failed =
        init.iter().any(|state| matches!(state, ContainerState::Terminated { exit, .. } if exit.code != 0));
    let ended: Vec<&ContainerExit> = states
        .iter()
        .filter_map(|state| match state {
            ContainerState::Terminated { exit, .. } => Some(exit),
            _ => None,
        })
        .collect();
    if ended.iter().any(|exit| exit.evicted) {
        "Failed"
    } else if ended.len() == states.len() && !init_runs {
        if ended.iter().all(|exit| exit.code == 0) { "Succeeded" } else { "Failed" }
    } else if states.iter().any(|state| matches!(state, ContainerState::Waiting(_))) {
        if init_failed { "Failed" } else { "Pending" }
    } else {
        "Running"
    }
}

/// Returns the time of the condition's last change: the time in the object if the condition is unchanged, or the
/// current time.
fn transition(pod: &Pod, kind: &str, holds: bool) -> Value {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let same = conditions.into_iter().find(|c| c.type_ == kind && (c.status == "True") == holds);
    same.and_then(|condition| condition.last_transition_time.as_ref())
        .map_or_else(now, |time| serde_json::to_value(time).unwrap())
}

fn container(of: &Container, state: &ContainerState) -> Value {
    let (ready, started) = match state {
        ContainerState::Running { ready, .. } => (*ready, true),
        _ => (false, false),
    };
    let id = format!("test://{}", of.name);
    let shown = match state {
        ContainerState::Waiting(reason) => json!({"waiting": {"reason": reason, "message": waiting(reason, of)}}),
        ContainerState::Running { since, .. } => json!({"running": {"startedAt": since}}),
        ContainerState::Terminated { since, at, exit } => json!({"terminated": {
            "exitCode": exit.code, "reason": exit.reason, "message": exit.message,
            "startedAt": since, "finishedAt": at, "containerID": id,
        }}),
    };
    json!({
        "name": of.name, "image": of.image, "imageID": "", "restartCount": 0,
        "ready": ready, "started": started, "state": shown, "lastState": {},
        "containerID": if matches!(state, ContainerState::Waiting(_)) { Value::Null } else { json!(id) },
    })
}

fn waiting(reason: &str, of: &Container) -> String {
    match reason {
        "ImagePullBackOff" => format!("Back-off pulling image \"{}\"", of.image.as_deref().unwrap_or_default()),
        "CreateContainerConfigError" => {
            format!("secret \"{}\" not found", secrets(of).collect::<Vec<_>>().join("\" or \""))
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(code: i32) -> ContainerState {
        ContainerState::Terminated { since: now(), at: now(), exit: ContainerExit::new(code, "") }
    }

    #[test]
    fn a_pod_is_initialized_when_its_containers_start() {
        let initialized = |pod: Value, state: ContainerState| {
            let status = patch(&serde_json::from_value(pod).unwrap(), None, &now(), &[state]);
            status["status"]["conditions"][1]["status"].clone()
        };
        let waiting = || ContainerState::Waiting("PodInitializing");
        let plain = json!({"spec": {"containers": [{"name": "a"}]}});
        let with_init = json!({"spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "b"}]}});
        assert_eq!(initialized(plain, waiting()), "True");
        assert_eq!(initialized(with_init.clone(), waiting()), "False");
        assert_eq!(initialized(with_init, ended(0)), "True");
    }

    #[test]
    fn the_phase_follows_from_the_containers() {
        let running = || ContainerState::Running { since: now(), ready: true };
        let evicted = ContainerState::Terminated {
            since: now(),
            at: now(),
            exit: ContainerExit { evicted: true, ..ContainerExit::new(137, "") },
        };
        for (states, expected) in [
            (vec![ContainerState::Waiting("ContainerCreating")], "Pending"),
            (vec![running()], "Running"),
            (vec![ended(1), running()], "Running"), // a sidecar still runs
            (vec![ended(0), ended(0)], "Succeeded"),
            (vec![ended(0), ended(143)], "Failed"),
            (vec![evicted, running()], "Failed"),
        ] {
            assert_eq!(phase(&states, &[]), expected, "{states:?}");
        }
        let waiting = [ContainerState::Waiting("PodInitializing")];
        assert_eq!(phase(&[ended(0)], &[running()]), "Running", "a sidecar ends after the others");
        assert_eq!(
            phase(&[ended(0)], &[ended(143)]),
            "Succeeded",
            "the exit code of a sidecar must not change the phase"
        );
        assert_eq!((phase(&waiting, &[running()]), phase(&waiting, &[ended(1)])), ("Pending", "Failed"));
    }
}
