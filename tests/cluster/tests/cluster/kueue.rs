//! Kueue's own controller: it admits what fits, says why the rest waits, and can be away for a while.

use serde_json::{Value, json};
use stagecoach_cluster::kueue::{self, Kueue, cluster_queue, collection, local_queue, resource_flavor};
use stagecoach_cluster::{ControlPlane, condition_of, until};

/// A control plane with Kueue, and a queue `team` with three CPUs.
fn cluster() -> (ControlPlane, Kueue) {
    let plane = ControlPlane::start();
    let kueue = Kueue::start(&plane, json!({}));
    kueue::create(
        plane.client(),
        &[
            resource_flavor("default", json!({})),
            cluster_queue("all", &[("default", json!({"cpu": 3}))], json!({})),
            local_queue("team", "all"),
        ],
    );
    (plane, kueue)
}

/// A Workload of two pods with one CPU each.
fn workload(name: &str) -> Value {
    let container = json!({"name": "trainer", "image": "none", "resources": {"requests": {"cpu": 1}}});
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
    json!({
        "apiVersion": kueue::API, "kind": "Workload", "metadata": {"name": name},
        "spec": {"queueName": "team", "podSets": [{"name": "stages", "count": 2, "template": template}]},
    })
}

fn path(name: &str) -> String {
    format!("{}/{name}", collection("Workload", "default"))
}

fn until_condition(plane: &ControlPlane, name: &str, kind: &str, status: &str) -> Value {
    until(&format!("{name}: {kind}={status}"), || {
        condition_of(&plane.get(&path(name))?, kind).filter(|condition| condition["status"] == status)
    })
}

/// What the owner of a Workload writes at its end.
fn finish(plane: &ControlPlane, name: &str) {
    let finished = json!({
        "type": "Finished", "status": "True", "reason": "Succeeded", "message": "the job succeeded",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let add = json!([{"op": "add", "path": "/status/conditions/-", "value": finished}]);
    plane.client().patch(&format!("{}/status", path(name)), &add).unwrap_or_else(|refusal| panic!("{refusal}"));
}

#[test]
fn the_second_workload_waits_for_the_end_of_the_first() {
    let (plane, _kueue) = cluster();
    kueue::create(plane.client(), &[workload("first")]);
    let admitted = until_condition(&plane, "first", "Admitted", "True");
    assert_eq!(admitted["reason"], "Admitted");
    let admission = plane.get(&path("first")).unwrap()["status"]["admission"].clone();
    let assigned = json!([{
        "name": "stages", "count": 2, "flavors": {"cpu": "default"}, "resourceUsage": {"cpu": "2"},
    }]);
    assert_eq!(admission, json!({"clusterQueue": "all", "podSetAssignments": assigned}));

    kueue::create(plane.client(), &[workload("second")]);
    let waits = until_condition(&plane, "second", "QuotaReserved", "False");
    let message = waits["message"].as_str().unwrap();
    assert_eq!(waits["reason"], "Pending");
    assert!(message.contains("insufficient unused quota for cpu in flavor default, 1 more needed"), "{message}");

    finish(&plane, "first");
    until_condition(&plane, "second", "Admitted", "True");
}

#[test]
fn nothing_is_admitted_while_it_is_away() {
    let (plane, kueue) = cluster();
    kueue::create(plane.client(), &[workload("first"), workload("second")]);
    until_condition(&plane, "first", "Admitted", "True");
    until_condition(&plane, "second", "QuotaReserved", "False");
    kueue.kill();
    // its webhooks fail closed: neither a Workload nor a pod can be made or changed
    let refused = plane.client().create(&collection("Workload", "default"), &workload("third")).unwrap_err();
    assert!(refused.message.contains("failed calling webhook \"mworkload.kb.io\""), "{refused}");
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "none"}]}});
    let refused = plane.client().create("/api/v1/namespaces/default/pods", &pod).unwrap_err();
    assert!(refused.message.contains("failed calling webhook \"mpod.kb.io\""), "{refused}");

    kueue.run();
    plane.client().create("/api/v1/namespaces/default/pods", &pod).unwrap();
    finish(&plane, "first");
    until_condition(&plane, "second", "Admitted", "True");
}
