//! Tests of the objects of a job other than its pods. The operator repairs these objects when another client changes
//! them, and deletes them when the job does not need them.

use serde_json::{Value, json};
use stagecoach_cluster::until;

use crate::support::{TestCluster, network_policy, path, shared};

fn service(name: &str) -> String {
    format!("/api/v1/namespaces/default/services/{name}")
}

fn patch(cluster: &TestCluster, path: &str, change: Value) {
    cluster.plane.client().patch(path, &change).unwrap_or_else(|refusal| panic!("{path}: {refusal}"));
}

#[test]
fn what_another_client_changes_or_deletes_is_repaired() {
    let cluster = shared();
    cluster.create("repaired", json!({}));
    cluster.wait_running("repaired", 1);
    let config_map = "/api/v1/namespaces/default/configmaps/repaired-1".to_owned();
    let objects = [service("repaired"), network_policy("repaired"), config_map];
    let before = objects.each_ref().map(|path| cluster.plane.get(path).unwrap());
    let is_as_before = |path: &str, before: &Value| {
        let now = cluster.plane.get(path)?;
        let same = |field: &str| now[field] == before[field];
        let parts =
            ["ports", "selector", "publishNotReadyAddresses", "ingress", "egress", "podSelector", "policyTypes"];
        let same_spec = parts.iter().all(|part| now["spec"][part] == before["spec"][part]);
        let same_labels = now["metadata"]["labels"] == before["metadata"]["labels"];
        let same_owner = now["metadata"]["ownerReferences"] == before["metadata"]["ownerReferences"];
        (same("data") && same_spec && same_labels && same_owner).then_some(())
    };
    for (path, before) in objects.iter().zip(&before) {
        cluster.plane.client().delete(path);
        until(&format!("{path} to be made again"), || is_as_before(path, before));
    }
    let changes = [
        (0, json!({"spec": {"selector": {"stagecoach.dev/attempt": "7"}}})),
        (0, json!({"spec": {"publishNotReadyAddresses": false}})),
        (0, json!({"metadata": {"labels": {"stagecoach.dev/job-uid": null}}})),
        (1, json!({"spec": {"egress": [{}]}})),
        (1, json!({"spec": {"ingress": [{}]}})),
        (1, json!({"spec": {"policyTypes": ["Ingress"]}})),
        (1, json!({"spec": {"podSelector": {"matchLabels": {"app": "nobody"}}}})),
    ];
    for (object, change) in changes {
        patch(cluster, &objects[object], change.clone());
        until(&format!("{change} to be undone"), || is_as_before(&objects[object], &before[object]));
    }
    // the operator keeps a field that it does not set
    patch(cluster, &objects[1], json!({"metadata": {"annotations": {"example.com/note": "seen"}}}));
    let job = cluster.job("repaired").unwrap();
    assert_eq!((&job["status"]["phase"], &job["status"]["restarts"]["total"]), (&json!("Running"), &json!(0)));
    assert_eq!(cluster.plane.get(&objects[1]).unwrap()["metadata"]["annotations"]["example.com/note"], "seen");
}

#[test]
fn the_policy_follows_its_mode_while_the_job_runs() {
    let cluster = shared();
    cluster.create("opened", json!({}));
    cluster.wait_running("opened", 1);
    let is_there = |wanted: bool| (cluster.plane.get(&network_policy("opened")).is_some() == wanted).then_some(());
    is_there(true).unwrap();
    cluster.edit("opened", json!({"networkPolicy": {"mode": "None"}}));
    until("the policy to go", || is_there(false));
    cluster.edit("opened", json!({"networkPolicy": {"mode": "Restricted"}}));
    until("the policy to come back", || is_there(true));
    assert_eq!(cluster.job("opened").unwrap()["status"]["attempt"]["number"], 1, "no attempt was started for it");
    // a policy with the job's name that belongs to another client is not deleted
    cluster.create("theirs", json!({"networkPolicy": {"mode": "None"}}));
    let foreign = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "theirs",
        "labels": {"stagecoach.dev/job": "theirs", "stagecoach.dev/job-uid": cluster.job("theirs").unwrap()["metadata"]["uid"]}},
        "spec": {"podSelector": {}}});
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    cluster.plane.client().create(policies, &foreign).unwrap();
    cluster.wait_running("theirs", 1);
    cluster.kubelet.pod("theirs-0-1").exit(1, "");
    cluster.wait_running("theirs", 2);
    assert!(cluster.plane.get(&network_policy("theirs")).is_some());
}

#[test]
fn the_policy_follows_the_cidrs_while_the_job_runs() {
    let cluster = shared();
    let with = |cidrs: Value| json!({"networkPolicy": {"egressCIDRs": cidrs}});
    cluster.create("reaching", with(json!(["203.0.113.0/24"])));
    cluster.wait_running("reaching", 1);
    let cidrs = || {
        let policy = cluster.plane.get(&network_policy("reaching")).unwrap();
        let peers = policy["spec"]["egress"].as_array().unwrap().iter().flat_map(|rule| rule["to"].as_array());
        let blocks = peers.flatten().filter_map(|peer| peer["ipBlock"]["cidr"].as_str());
        blocks.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(cidrs(), ["203.0.113.0/24"]);
    for wanted in [vec!["0.0.0.0/0", "::/0"], vec![]] {
        cluster.edit("reaching", with(json!(wanted)));
        until("the policy to follow", || (cidrs() == wanted).then_some(()));
    }
    assert_eq!(cluster.job("reaching").unwrap()["status"]["attempt"]["number"], 1, "no attempt was started for it");
}

#[test]
fn a_job_that_is_over_or_suspended_holds_no_address() {
    let cluster = shared();
    let has_service = |name: &str| cluster.plane.get(&service(name)).is_some();
    let gone = |name: &str| until("the Service to go", || (!has_service(name)).then_some(()));
    cluster.create("released", json!({}));
    cluster.wait_running("released", 1);
    cluster.edit("released", json!({"suspend": true}));
    cluster.wait_phase("released", "Suspended");
    gone("released");
    cluster.edit("released", json!({"suspend": false}));
    cluster.wait_running("released", 2);
    assert_eq!(cluster.plane.get(&service("released")).unwrap()["spec"]["selector"]["stagecoach.dev/attempt"], "2");
    for stage in [0, 1] {
        cluster.kubelet.pod(&format!("released-{stage}-2")).exit(0, "");
    }
    cluster.wait_phase("released", "Complete");
    gone("released");
    assert_eq!(cluster.pods("released").len(), 2, "its pods stay, for their logs");
    // the Service is also deleted after a final failure
    cluster.create("lost", json!({"restart": {"maxRestarts": 0}}));
    cluster.wait_running("lost", 1);
    cluster.kubelet.pod("lost-0-1").exit(1, "");
    cluster.wait_phase("lost", "Failed");
    gone("lost");
    // an object that another client creates with the name of a finished job is not deleted
    let foreign =
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "lost"}, "spec": {"ports": [{"port": 1}]}});
    cluster.plane.client().create("/api/v1/namespaces/default/services", &foreign).unwrap();
    cluster.edit_and_wait("lost", json!({"ttlSecondsAfterFinished": 3600}));
    assert!(has_service("lost"));
    cluster.plane.client().delete(&path("lost"));
}
