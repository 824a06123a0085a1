//! Tests of Kueue's real controller. They manage Workloads as the operator manages a job's Workload, and check how
//! Kueue responds.

mod minors;

use serde_json::{Value, json};
use stagecoach_cluster::kueue::{self, Kueue, cluster_queue, collection, local_queue, resource_flavor, topology};
use stagecoach_cluster::{ControlPlane, TestKubelet, condition_of, merge, until};

/// Starts a control plane with Kueue, and a queue `team` with three CPUs.
fn cluster(changes: Value, queue: Value) -> (ControlPlane, Kueue) {
    let plane = ControlPlane::start();
    let kueue = Kueue::start(&plane, changes);
    kueue::create(
        plane.client(),
        &[
            resource_flavor("default", json!({})),
            cluster_queue("all", &[("default", json!({"cpu": 3}))], queue),
            local_queue("team", "all"),
        ],
    );
    (plane, kueue)
}

/// Returns a Workload of two pods with one CPU each. `spec` is merged into its spec.
fn workload(name: &str, spec: Value) -> Value {
    let container = json!({"name": "trainer", "image": "none", "resources": {"requests": {"cpu": 1}}});
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
    let mut workload = json!({
        "apiVersion": kueue::API, "kind": "Workload", "metadata": {"name": name},
        "spec": {"queueName": "team", "podSets": [{"name": "stages", "count": 2, "template": template}]},
    });
    merge(&mut workload["spec"], spec);
    workload
}

fn path(name: &str) -> String {
    format!("{}/{name}", collection("Workload", "default"))
}

fn until_condition(plane: &ControlPlane, name: &str, kind: &str, status: &str) -> Value {
    until(&format!("{name}: {kind}={status}"), || {
        condition_of(&plane.get(&path(name))?, kind).filter(|condition| condition["status"] == status)
    })
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": "the test's own",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

/// Writes conditions as the owner of a Workload does. Also removes the Workload's admission if `release` is true.
fn write(plane: &ControlPlane, name: &str, conditions: &[Value], release: bool) {
    until(&format!("{name}: conditions of its owner"), || {
        let workload = plane.get(&path(name))?;
        let mut all = workload["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.retain(|old| conditions.iter().all(|new| new["type"] != old["type"]));
        all.extend_from_slice(conditions);
        // Kueue writes conditions too, and this write must not lose any of them
        let version = &workload["metadata"]["resourceVersion"];
        let mut patch = json!({"metadata": {"resourceVersion": version}, "status": {"conditions": all}});
        if release {
            patch["status"]["admission"] = Value::Null;
        }
        match plane.client().patch(&format!("{}/status", path(name)), &patch) {
            Ok(_) => Some(()),
            Err(refusal) if refusal.code == 409 => None,
            Err(refusal) => panic!("{refusal}"),
        }
    });
}

fn finish(plane: &ControlPlane, name: &str) {
    write(plane, name, &[condition("Finished", "True", "Succeeded")], false);
}

/// Writes the conditions that the owner of an evicted Workload writes after the Workload's pods have ended. `reason` is
/// the reason of the eviction. Kueue queues a preempted Workload again at once. Otherwise, Kueue reads the reason in
/// the condition `Requeued` and decides when to queue the Workload again.
fn release(plane: &ControlPlane, name: &str, reason: &str) {
    let conditions = [
        condition("QuotaReserved", "False", "Pending"),
        condition("Admitted", "False", "NoReservation"),
        condition("Requeued", if reason == "Preempted" { "True" } else { "False" }, reason),
    ];
    write(plane, name, &conditions, true);
}

#[test]
fn the_second_workload_waits_for_the_end_of_the_first() {
    let (plane, _kueue) = cluster(json!({}), json!({}));
    kueue::create(plane.client(), &[workload("first", json!({}))]);
    let admitted = until_condition(&plane, "first", "Admitted", "True");
    assert_eq!(admitted["reason"], "Admitted");
    let admission = plane.get(&path("first")).unwrap()["status"]["admission"].clone();
    let assigned = json!([{
        "name": "stages", "count": 2, "flavors": {"cpu": "default"}, "resourceUsage": {"cpu": "2"},
    }]);
    assert_eq!(admission, json!({"clusterQueue": "all", "podSetAssignments": assigned}));

    kueue::create(plane.client(), &[workload("second", json!({}))]);
    let waits = until_condition(&plane, "second", "QuotaReserved", "False");
    let message = waits["message"].as_str().unwrap();
    assert_eq!(waits["reason"], "Pending");
    assert!(message.contains("insufficient unused quota for cpu in flavor default, 1 more needed"), "{message}");

    finish(&plane, "first");
    until_condition(&plane, "second", "Admitted", "True");
}

#[test]
fn nothing_is_admitted_while_it_is_away() {
    let (plane, kueue) = cluster(json!({}), json!({}));
    kueue::create(plane.client(), &[workload("first", json!({}))]);
    until_condition(&plane, "first", "Admitted", "True");
    kueue::create(plane.client(), &[workload("second", json!({}))]);
    until_condition(&plane, "second", "QuotaReserved", "False");
    kueue.kill();
    // the webhooks fail closed: the API server accepts no creation or change of a Workload or a pod
    let refused = plane.client().create(&collection("Workload", "default"), &workload("third", json!({}))).unwrap_err();
    assert!(refused.message.contains("failed calling webhook \"mworkload.kb.io\""), "{refused}");
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "none"}]}});
    let refused = plane.client().create("/api/v1/namespaces/default/pods", &pod).unwrap_err();
    assert!(refused.message.contains("failed calling webhook \"mpod.kb.io\""), "{refused}");

    kueue.run();
    plane.client().create("/api/v1/namespaces/default/pods", &pod).unwrap();
    finish(&plane, "first");
    until_condition(&plane, "second", "Admitted", "True");
}

#[test]
fn a_workload_of_a_higher_priority_takes_the_place_of_another() {
    let changes = json!({
        "featureGates": {"PriorityBoost": true},
        "integrations": {"externalFrameworks": ["PipelineJob.v1alpha1.stagecoach.dev"]},
    });
    let (plane, _kueue) = cluster(changes, json!({"preemption": {"withinClusterQueue": "LowerPriority"}}));
    kueue::create(plane.client(), &[workload("low", json!({"priority": 1}))]);
    until_condition(&plane, "low", "Admitted", "True");
    kueue::create(plane.client(), &[workload("high", json!({"priority": 2}))]);
    let evicted = until_condition(&plane, "low", "Evicted", "True");
    assert_eq!(evicted["reason"], "Preempted");
    assert_eq!(until_condition(&plane, "low", "Preempted", "True")["reason"], "InClusterQueue");
    // the evicted Workload holds the quota until its owner releases it
    let low = plane.get(&path("low")).unwrap();
    assert_eq!(condition_of(&low, "Admitted").unwrap()["status"], "True");
    assert_eq!(low["status"]["admission"]["clusterQueue"], "all");
    let waits = until_condition(&plane, "high", "QuotaReserved", "False");
    assert!(waits["message"].as_str().unwrap().contains("Pending the preemption of 1 workload(s)"), "{waits}");

    release(&plane, "low", "Preempted");
    until_condition(&plane, "high", "Admitted", "True");
    finish(&plane, "high");
    until_condition(&plane, "low", "Admitted", "True");
    assert_eq!(until_condition(&plane, "low", "Evicted", "False")["reason"], "QuotaReserved");

    // a boost takes effect when it is written
    kueue::create(plane.client(), &[workload("boosted", json!({"priority": 0}))]);
    until_condition(&plane, "boosted", "QuotaReserved", "False");
    let boost = json!({"metadata": {"annotations": {"kueue.x-k8s.io/priority-boost": "7"}}});
    plane.client().patch(&path("boosted"), &boost).unwrap();
    until_condition(&plane, "low", "Evicted", "True");
    release(&plane, "low", "Preempted");
    until_condition(&plane, "boosted", "Admitted", "True");

    plane.client().patch(&path("boosted"), &json!({"spec": {"active": false}})).unwrap();
    assert_eq!(until_condition(&plane, "boosted", "Evicted", "True")["reason"], "Deactivated");
}

#[test]
fn pods_are_assigned_to_the_domains_of_a_topology() {
    let plane = ControlPlane::start();
    let _kubelet = TestKubelet::start(&plane, 2, 0);
    let _kueue = Kueue::start(&plane, json!({}));
    let host = "kubernetes.io/hostname";
    let labels = json!({"kubernetes.io/os": "linux"});
    kueue::create(
        plane.client(),
        &[
            topology("hosts", &[host]),
            resource_flavor("default", json!({"nodeLabels": labels, "topologyName": "hosts"})),
            cluster_queue("all", &[("default", json!({"cpu": 3}))], json!({})),
            local_queue("team", "all"),
        ],
    );
    let mut together = workload("together", json!({}));
    let request = json!({"required": host, "podIndexLabel": "stagecoach.dev/rank"});
    together["spec"]["podSets"][0]["topologyRequest"] = request;
    kueue::create(plane.client(), &[together]);
    until_condition(&plane, "together", "Admitted", "True");
    let status = plane.get(&path("together")).unwrap()["status"].clone();
    let assigned = &status["admission"]["podSetAssignments"][0]["topologyAssignment"];
    assert_eq!(assigned["levels"], json!([host]));
    let slice = &assigned["slices"][0];
    assert_eq!((&slice["domainCount"], &slice["podCounts"]), (&json!(1), &json!({"universal": 2})), "{assigned}");
    let node = slice["valuesPerLevel"][0]["universal"].as_str().unwrap();
    assert!(["node-0", "node-1"].contains(&node), "{assigned}");
}

#[test]
fn a_replacement_takes_over_quota_and_fewer_pods_give_it_back() {
    let (plane, _kueue) = cluster(json!({}), json!({}));
    let elastic = |name: &str, pods: u32, replaces: Option<&str>| {
        let mut workload = workload(name, json!({}));
        workload["spec"]["podSets"][0]["count"] = pods.into();
        let mut annotations = json!({"kueue.x-k8s.io/elastic-job": "true"});
        if let Some(replaces) = replaces {
            annotations["kueue.x-k8s.io/workload-slice-replacement-for"] = replaces.into();
        }
        workload["metadata"]["annotations"] = annotations;
        workload
    };
    kueue::create(plane.client(), &[elastic("small", 2, None)]);
    until_condition(&plane, "small", "Admitted", "True");
    kueue::create(plane.client(), &[elastic("large", 3, Some("default/small"))]);
    until_condition(&plane, "large", "Admitted", "True");
    assert_eq!(until_condition(&plane, "small", "Finished", "True")["reason"], "WorkloadSliceReplaced");

    kueue::create(plane.client(), &[workload("other", json!({}))]);
    until_condition(&plane, "other", "QuotaReserved", "False");
    let fewer = json!([{"op": "replace", "path": "/spec/podSets/0/count", "value": 1}]);
    plane.client().patch(&path("large"), &fewer).unwrap();
    until_condition(&plane, "other", "Admitted", "True");
    // Kueue does not change the admission, although `large` has only one pod now
    let large = plane.get(&path("large")).unwrap();
    assert_eq!(large["status"]["admission"]["podSetAssignments"][0]["count"], 3);
}

#[test]
fn a_workload_whose_pods_are_not_ready_in_time_is_evicted_and_then_deactivated() {
    let requeuing = json!({"backoffBaseSeconds": 1, "backoffLimitCount": 1});
    let changes = json!({"waitForPodsReady": {"timeout": "1s", "requeuingStrategy": requeuing}});
    let (plane, _kueue) = cluster(changes, json!({}));
    kueue::create(plane.client(), &[workload("late", json!({}))]);
    assert_eq!(until_condition(&plane, "late", "Evicted", "True")["reason"], "PodsReadyTimeout");
    release(&plane, "late", "PodsReadyTimeout");
    until_condition(&plane, "late", "Admitted", "True");
    let evicted = until_condition(&plane, "late", "Evicted", "True");
    assert_eq!(evicted["reason"], "DeactivatedDueToRequeuingLimitExceeded");
    assert_eq!(plane.get(&path("late")).unwrap()["spec"]["active"], false);
}
