//! Checks that the control plane starts, runs beside other control planes, and leaves no process or file behind.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use stagecoach_cluster::{Client, Component, ControlPlane, TestKubelet, is_gone, process_state, spawn, until};

#[test]
fn restarts_and_leaves_nothing_behind() {
    let plane = ControlPlane::start();
    let kubelet = TestKubelet::start(&plane, 1, 0);
    let (pids, folder) = (plane.process_ids(), plane.folder().to_owned());
    assert_eq!(pids.len(), 4);

    assert!(plane.kubectl(&["run", "a", "--image=none", "--restart=Never"]).status.success());
    kubelet.pod("a").view();
    plane.kill(Component::ApiServer);
    kubelet.pod("a").exit(3, "");
    plane.restart_api_server();
    until("the exit to be reported", || {
        let pod = plane.get("/api/v1/namespaces/default/pods/a")?;
        (pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3).then_some(())
    });

    let scheduler = pids[3];
    plane.stop(Component::Scheduler);
    until("the scheduler to stop", || (process_state(scheduler) == Some('T')).then_some(()));
    plane.resume(Component::Scheduler);
    until("the scheduler to go on", || (process_state(scheduler) != Some('T')).then_some(()));

    let all: Vec<u32> = pids.into_iter().chain(plane.process_ids()).collect();
    drop(kubelet);
    drop(plane);
    assert!(all.iter().all(|pid| is_gone(*pid)), "{all:?}");
    assert!(!folder.exists());
}

#[test]
fn a_killed_test_leaves_nothing_behind() {
    let test = ["--exact", "plane::holds_a_plane_until_killed", "--ignored", "--nocapture"];
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = spawn(command.args(test).stdout(Stdio::piped())).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.find_map(|line| Some(line.unwrap().strip_prefix("HELD ")?.to_owned())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let (folder, pids) = line.split_once(' ').unwrap();
    let pids: Vec<u32> = pids.split(' ').map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 4);
    until("the processes to end", || pids.iter().all(|pid| is_gone(*pid)).then_some(()));
    until("the folder to go", || (!Path::new(folder).exists()).then_some(()));
}

#[test]
#[ignore = "the other half of a_killed_test_leaves_nothing_behind"]
fn holds_a_plane_until_killed() {
    // the control plane must outlive the thread that started it
    let plane = std::thread::spawn(ControlPlane::start).join().unwrap();
    assert!(plane.get("/readyz").is_some());
    let pids: Vec<String> = plane.process_ids().iter().map(u32::to_string).collect();
    println!("\nHELD {} {}", plane.folder().display(), pids.join(" "));
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    std::thread::park();
}

#[test]
fn an_account_has_its_own_rights_and_no_more() {
    let plane = ControlPlane::start();
    plane.create_namespace("team");
    plane.apply(
        "
apiVersion: v1
kind: ServiceAccount
metadata: {name: operator, namespace: team}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: operator, namespace: team}
rules: [{apiGroups: [''], resources: [pods], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: operator, namespace: team}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: operator}
subjects: [{kind: ServiceAccount, name: operator, namespace: team}]
",
    );
    let account = Client::new(&plane.service_account_kubeconfig("team", "operator"));
    until("the role to count", || account.request(http::Method::GET, "/api/v1/namespaces/team/pods", None).ok());
    let refused = account.request(http::Method::GET, "/api/v1/namespaces/default/pods", None).unwrap_err();
    assert_eq!((refused.code, refused.reason.as_str()), (403, "Forbidden"));

    // the client and kubectl validate strictly: both refuse a misspelled field
    let typo = json!({"metadata": {"name": "typo"}, "dota": {}});
    assert_eq!(plane.client().create("/api/v1/namespaces/team/configmaps", &typo).unwrap_err().code, 400);
    let error = plane.try_apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: typo}, dota: {}}").unwrap_err();
    assert!(error.contains("unknown field"), "{error}");

    // the API server serves Kubernetes' own gang scheduling
    let group = plane.get("/apis/scheduling.k8s.io/v1alpha2").unwrap();
    assert!(group["resources"].as_array().unwrap().iter().any(|resource| resource["kind"] == "PodGroup"), "{group}");
}
