//! Checks that the test kubelet writes the same pod status as a real kubelet, in the same order.

use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use stagecoach_api::contract::StageStatus;
use stagecoach_cluster::{Behaviour, Component, ControlPlane, ControlPlaneSettings, TestKubelet, condition_of, until};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Returns the cluster that all tests of this file share, with two nodes of two GPUs each. Tests use different names
/// for their pods.
fn cluster() -> &'static (ControlPlane, TestKubelet) {
    static CLUSTER: OnceLock<(ControlPlane, TestKubelet)> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let plane = ControlPlane::start();
        let kubelet = TestKubelet::start(&plane, 2, 2);
        (plane, kubelet)
    })
}

fn pod(name: &str, behaviour: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"stagecoach.test/behaviour": behaviour}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "trainer", "image": "none",
                "readinessProbe": {"httpGet": {"path": "/readyz", "port": 9090}, "periodSeconds": 1},
            }],
        },
    })
}

fn create(pod: &Value) {
    cluster().0.client().create(PODS, pod).unwrap_or_else(|refusal| panic!("{refusal}"));
}

fn get(name: &str) -> Option<Value> {
    cluster().0.get(&format!("{PODS}/{name}"))
}

fn delete(name: &str) {
    cluster().0.client().delete(&format!("{PODS}/{name}"));
}

/// Waits until the pod satisfies `wanted`, and returns it.
#[track_caller]
fn wait(name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    until(&format!("{name} to be {what}"), || get(name).filter(&wanted))
}

fn is_ready(pod: &Value) -> bool {
    condition_of(pod, "Ready").is_some_and(|ready| ready["status"] == "True")
}

fn has_ended(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn terminated(pod: &Value) -> Value {
    pod["status"]["containerStatuses"][0]["state"]["terminated"].clone()
}

fn wait_gone(name: &str) {
    until(&format!("{name} to go"), || get(name).is_none().then_some(()));
}

#[test]
fn a_plain_pod_runs_and_is_deleted() {
    let (plane, _) = cluster();
    assert!(plane.kubectl(&["run", "plain", "--image=none"]).status.success());
    let running = wait("plain", "ready", is_ready);
    assert_eq!(running["status"]["phase"], "Running");
    assert!(running["status"]["podIP"].as_str().unwrap().starts_with("127."));
    assert_eq!(running["status"]["containerStatuses"][0]["started"], true);
    assert!(plane.kubectl(&["delete", "pod", "plain"]).status.success());
    assert!(get("plain").is_none());
}

#[test]
fn exits_are_seen() {
    let (_, kubelet) = cluster();
    create(&pod("by-itself", "exit 3 50 no luck"));
    let ended = wait("by-itself", "ended", has_ended);
    assert_eq!(ended["status"]["phase"], "Failed");
    let exit = terminated(&ended);
    assert_eq!((&exit["exitCode"], &exit["reason"], &exit["message"]), (&json!(3), &json!("Error"), &json!("no luck")));
    assert!(!is_ready(&ended));

    for name in ["done", "oom", "evicted"] {
        create(&pod(name, "run"));
    }
    kubelet.pod("done").exit(0, "");
    let done = wait("done", "ended", has_ended);
    assert_eq!((&done["status"]["phase"], &terminated(&done)["reason"]), (&json!("Succeeded"), &json!("Completed")));

    kubelet.pod("oom").oom();
    let oom = terminated(&wait("oom", "ended", has_ended));
    assert_eq!((&oom["exitCode"], &oom["reason"]), (&json!(137), &json!("OOMKilled")));

    kubelet.pod("evicted").evict();
    let evicted = wait("evicted", "ended", has_ended);
    assert_eq!((&evicted["status"]["phase"], &evicted["status"]["reason"]), (&json!("Failed"), &json!("Evicted")));
    assert_eq!(condition_of(&evicted, "DisruptionTarget").unwrap()["reason"], "TerminationByKubelet");

    for name in ["by-itself", "done", "oom", "evicted"] {
        delete(name);
        wait_gone(name);
    }
}

/// Returns a pod with a finalizer. The finalizer keeps the object, with its last status, after the kubelet has deleted
/// the pod.
fn held(name: &str, behaviour: &str, grace: u64) -> Value {
    let mut pod = pod(name, behaviour);
    pod["metadata"]["finalizers"] = json!(["stagecoach.test/hold"]);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(grace);
    pod
}

#[test]
fn the_end_is_written_before_the_object_goes() {
    for (name, behaviour, grace, code) in
        [("drains", "run 300", 30, 143), ("stubborn", "ignore-sigterm", 1, 137), ("hung", "hang", 1, 137)]
    {
        create(&held(name, behaviour, grace));
        wait(name, "running", |pod| pod["status"]["phase"] == "Running");
        delete(name);
        let ended = wait(name, "let go", |pod| pod["metadata"]["deletionGracePeriodSeconds"] == 0);
        assert_eq!(terminated(&ended)["exitCode"], code, "{name}: {ended}");
        assert_eq!(ended["status"]["phase"], "Failed");
        let freed = json!({"metadata": {"finalizers": null}});
        cluster().0.client().patch(&format!("{PODS}/{name}"), &freed).unwrap();
        wait_gone(name);
    }
}

#[test]
fn gpus_are_counted_by_the_scheduler() {
    let gpus = |name: &str, count: u32| {
        let mut pod = pod(name, "run");
        pod["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": count}});
        pod
    };
    create(&gpus("two-gpus", 2));
    create(&gpus("nine-gpus", 9));
    wait("two-gpus", "ready", is_ready);
    wait("nine-gpus", "unschedulable", |pod| {
        condition_of(pod, "PodScheduled").is_some_and(|scheduled| scheduled["reason"] == "Unschedulable")
    });
    delete("two-gpus");
    delete("nine-gpus");
}

#[test]
fn readiness_and_status_are_asked_over_http() {
    let (_, kubelet) = cluster();
    create(&pod("asked", "run"));
    let address = wait("asked", "ready", is_ready)["status"]["podIP"].as_str().unwrap().to_owned();
    kubelet.pod("asked").set_ready(false);
    wait("asked", "unready", |pod| !is_ready(pod));

    let mut status = StageStatus { attempt: 7, job_uid: "u".into(), ..StageStatus::default() };
    status.progress.step = 41;
    kubelet.pod("asked").set_status(status);
    let printed: StageStatus = serde_json::from_str(&http_get(&address, "/status")).unwrap();
    assert_eq!((printed.attempt, printed.job_uid.as_str(), printed.progress.step), (7, "u", 41));
    assert_eq!(printed.pod_uid, kubelet.pod("asked").view().uid);

    create(&pod("never", "never-ready"));
    wait("never", "running", |pod| pod["status"]["phase"] == "Running");
    assert!(!is_ready(&get("never").unwrap()));
    delete("asked");
    delete("never");
}

/// Sends a GET request. Returns the body of the answer.
fn http_get(address: &str, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect((address, 9090)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[test]
fn a_container_that_cannot_start_waits() {
    create(&pod("no-image", "image-pull-error"));
    let waits = |reason: &'static str| {
        move |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == reason
    };
    assert_eq!(wait("no-image", "waiting", waits("ImagePullBackOff"))["status"]["phase"], "Pending");
    delete("no-image");
    wait_gone("no-image");

    let mut unconfigured = pod("unconfigured", "run");
    unconfigured["spec"]["volumes"] = json!([{"name": "config", "configMap": {"name": "late"}}]);
    create(&unconfigured);
    wait("unconfigured", "waiting", waits("ContainerCreating"));
    let map = json!({"metadata": {"name": "late"}, "data": {"a": "b"}});
    cluster().0.client().create("/api/v1/namespaces/default/configmaps", &map).unwrap();
    wait("unconfigured", "ready", is_ready);
    delete("unconfigured");
}

#[test]
fn an_init_container_that_cannot_be_started_fails_its_pod() {
    let mut pod = pod("no-program", "run");
    pod["spec"]["initContainers"] =
        json!([{"name": "first", "image": "none", "command": ["command", "/no/such/program"]}]);
    create(&pod);
    let ended = wait("no-program", "ended", has_ended);
    let exit = &ended["status"]["initContainerStatuses"][0]["state"]["terminated"];
    assert_eq!((&exit["exitCode"], &exit["reason"]), (&json!(128), &json!("StartError")));
    delete("no-program");
}

#[test]
fn a_real_command_gets_its_environment_and_files() {
    let (plane, kubelet) = cluster();
    let script = r#"echo "I am $NAME at $IP and $MASTER_ADDR"; cat "$CONFIG"; printf '%s' "$ROLE" >"$STAGECOACH_TERMINATION_LOG"; exit 7"#;
    kubelet.behave(move |pod| {
        (pod.name == "real").then(|| Behaviour::Command(["sh", "-c", script].map(String::from).to_vec()))
    });
    let map = json!({"metadata": {"name": "files"}, "data": {"job.yaml": "stages: 3\n"}});
    plane.client().create("/api/v1/namespaces/default/configmaps", &map).unwrap();
    let mut real = pod("real", "");
    real["metadata"]["labels"] = json!({"role": "stage"});
    real["spec"]["volumes"] = json!([{"name": "config", "configMap": {"name": "files"}}]);
    real["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "config", "mountPath": "/etc/stagecoach"}]);
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    real["spec"]["containers"][0]["env"] = json!([
        field("NAME", "metadata.name"),
        field("IP", "status.podIP"),
        field("ROLE", "metadata.labels['role']"),
        {"name": "MASTER_ADDR", "value": "master"},
        {"name": "CONFIG", "value": "/etc/stagecoach/job.yaml"},
    ]);
    let ports = json!([{"port": 29500}]);
    let service = json!({"metadata": {"name": "master"}, "spec": {"selector": {"role": "stage"}, "ports": ports}});
    plane.client().create("/api/v1/namespaces/default/services", &service).unwrap();
    create(&real);
    let ended = wait("real", "ended", has_ended);
    let exit = terminated(&ended);
    assert_eq!((&exit["exitCode"], &exit["message"]), (&json!(7), &json!("stage")));
    let logs = plane.kubectl(&["logs", "real"]);
    let address = ended["status"]["podIP"].as_str().unwrap();
    let printed = format!("I am real at {address} and {address}\nstages: 3\n");
    assert_eq!(String::from_utf8_lossy(&logs.stdout), printed, "{logs:?}");
    delete("real");
}

#[test]
fn sidecars_end_with_their_pod() {
    let mut both = held("both", "exit 0 50", 30);
    both["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "sidecar", "image": "none"}));
    create(&both);
    let half = wait("both", "half ended", |pod| terminated(pod)["exitCode"] == 0);
    assert_eq!(half["status"]["phase"], "Running");
    delete("both");
    let ended = wait("both", "let go", |pod| pod["metadata"]["deletionGracePeriodSeconds"] == 0);
    assert_eq!(ended["status"]["containerStatuses"][1]["state"]["terminated"]["exitCode"], 143);
    cluster().0.client().patch(&format!("{PODS}/both"), &json!({"metadata": {"finalizers": null}})).unwrap();
}

#[test]
fn logs_are_read_from_their_end() {
    let (plane, kubelet) = cluster();
    create(&pod("chatty", "run"));
    for line in ["one", "two", "three"] {
        kubelet.pod("chatty").log(line);
    }
    let tail = plane.get(&format!("{PODS}/chatty/log?tailLines=2")).unwrap();
    assert_eq!(tail, json!("two\nthree\n"));
    delete("chatty");
}

#[test]
fn a_silent_node_keeps_its_pods() {
    // a separate control plane, whose node controller counts a node as lost after 5 s
    let impatient = ["--node-monitor-period=1s", "--node-monitor-grace-period=5s"];
    let flags = impatient.map(|flag| (Component::ControllerManager, flag.to_owned())).to_vec();
    let plane = ControlPlane::start_with(ControlPlaneSettings { flags });
    let kubelet = TestKubelet::start(&plane, 2, 0);
    let path = |name: &str| format!("{PODS}/{name}");
    for (name, node) in [("lost", "node-0"), ("kept", "node-1")] {
        let mut pod = pod(name, "run");
        pod["spec"]["nodeName"] = json!(node);
        plane.client().create(PODS, &pod).unwrap();
        until("a ready pod", || plane.get(&path(name)).filter(is_ready));
    }
    kubelet.stop_node("node-0");
    kubelet.pod("lost").exit(1, "");
    plane.client().delete(&path("lost"));
    plane.client().delete(&path("kept"));
    until("the other pod to go", || plane.get(&path("kept")).is_none().then_some(()));
    until("the node to be given up", || {
        let node = plane.get("/api/v1/nodes/node-0")?;
        (condition_of(&node, "Ready")?["status"] == "Unknown").then_some(())
    });
    let lost = plane.get(&path("lost")).unwrap();
    assert!(lost["metadata"]["deletionTimestamp"].is_string(), "{lost}");
    assert_eq!((&lost["status"]["phase"], &terminated(&lost)), (&json!("Running"), &Value::Null));
    kubelet.resume_node("node-0");
    until("the lost pod to go", || plane.get(&path("lost")).is_none().then_some(()));
}
