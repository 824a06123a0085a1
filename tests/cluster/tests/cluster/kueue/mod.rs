//! Tests of Kueue's real controller. The tests manage Workloads as the operator manages a job's Workload, and check how
//! Kueue responds.

mod minors;

use std::sync::OnceLock;

use serde_json::{Value, json};
use stagecoach_cluster::kueue::{self, Kueue, cluster_queue, collection, local_queue, resource_flavor, topology};
use stagecoach_cluster::{ControlPlane, TestKubelet, condition_of, merge, until};

/// Returns the control plane with Kueue that several tests share. The settings of one test have no effect on the
/// others.
fn shared() -> &'static ControlPlane {
    static CLUSTER: OnceLock<(ControlPlane, TestKubelet, Kueue)> = OnceLock::new();
    let (plane, ..) = CLUSTER.get_or_init(|| {
        let (plane, kueue) = own(json!({
            "featureGates": {"PriorityBoost": true},
            "integrations": {"externalFrameworks": ["PipelineJob.v1alpha1.stagecoach.dev"]},
        }));
        let kubelet = TestKubelet::start(&plane, 2, 0);
        (plane, kubelet, kueue)
    });
    plane
}

/// Starts a control plane with Kueue, whose configuration has these changes.
fn own(changes: Value) -> (ControlPlane, Kueue) {
    let plane = ControlPlane::start();
    let kueue = Kueue::start(&plane, changes);
    kueue::create(plane.client(), &[resource_flavor("default", json!({}))]);
    (plane, kueue)
}

/// A namespace with the local queue `team`. The queue belongs to a ClusterQueue, which has the namespace's name and
/// three CPUs.
struct Team<'p> {
    plane: &'p ControlPlane,
    namespace: &'static str,
}

impl<'p> Team<'p> {
    /// Creates the namespace and the queues. The CPUs are of the flavor `flavor`. This function merges `queue` into the
    /// spec of the ClusterQueue.
    fn new(plane: &'p ControlPlane, namespace: &'static str, flavor: &str, queue: Value) -> Team<'p> {
        plane.create_namespace(namespace);
        let team = Team { plane, namespace };
        let of_all = cluster_queue(namespace, &[(flavor, json!({"cpu": 3}))], queue);
        kueue::create(plane.client(), &[of_all]);
        team.create(&[local_queue("team", namespace)]);
        team
    }

    /// Creates objects in the team's namespace.
    fn create(&self, objects: &[Value]) {
        let mut objects = objects.to_vec();
        objects.iter_mut().for_each(|object| object["metadata"]["namespace"] = self.namespace.into());
        kueue::create(self.plane.client(), &objects);
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", collection("Workload", self.namespace))
    }

    fn get(&self, name: &str) -> Value {
        self.plane.get(&self.path(name)).unwrap()
    }

    fn patch(&self, name: &str, patch: &Value) {
        self.plane.client().patch(&self.path(name), patch).unwrap();
    }

    fn until_condition(&self, name: &str, kind: &str, status: &str) -> Value {
        until(&format!("{name}: {kind}={status}"), || {
            condition_of(&self.plane.get(&self.path(name))?, kind).filter(|condition| condition["status"] == status)
        })
    }

    /// Writes conditions as the owner of a Workload does. Also removes the Workload's admission if `release` is true.
    fn write(&self, name: &str, conditions: &[Value], release: bool) {
        until(&format!("{name}: conditions of its owner"), || {
            let workload = self.plane.get(&self.path(name))?;
            let mut all = workload["status"]["conditions"].as_array().cloned().unwrap_or_default();
            all.retain(|old| conditions.iter().all(|new| new["type"] != old["type"]));
            all.extend_from_slice(conditions);
            // Kueue writes conditions too, and this write must not lose any of them
            let version = &workload["metadata"]["resourceVersion"];
            let mut patch = json!({"metadata": {"resourceVersion": version}, "status": {"conditions": all}});
            if release {
                patch["status"]["admission"] = Value::Null;
            }
            match self.plane.client().patch(&format!("{}/status", self.path(name)), &patch) {
                Ok(_) => Some(()),
                Err(refusal) if refusal.code == 409 => None,
                Err(refusal) => panic!("{refusal}"),
            }
        });
    }

    fn finish(&self, name: &str) {
        self.write(name, &[condition("Finished", "True", "Succeeded")], false);
    }

    /// Writes the conditions that the owner of an evicted Workload writes after the Workload's pods have ended.
    /// `reason` is the reason of the eviction. Kueue queues a preempted Workload again at once. Otherwise, Kueue reads
    /// the reason in the condition `Requeued` and decides when to queue the Workload again.
    fn release(&self, name: &str, reason: &str) {
        let conditions = [
            condition("QuotaReserved", "False", "Pending"),
            condition("Admitted", "False", "NoReservation"),
            condition("Requeued", if reason == "Preempted" { "True" } else { "False" }, reason),
        ];
        self.write(name, &conditions, true);
    }
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

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": "the test's own",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

#[test]
fn the_second_workload_waits_for_the_end_of_the_first() {
    let team = Team::new(shared(), "research", "default", json!({}));
    team.create(&[workload("first", json!({}))]);
    let admitted = team.until_condition("first", "Admitted", "True");
    assert_eq!(admitted["reason"], "Admitted");
    let admission = team.get("first")["status"]["admission"].clone();
    let assigned = json!([{
        "name": "stages", "count": 2, "flavors": {"cpu": "default"}, "resourceUsage": {"cpu": "2"},
    }]);
    assert_eq!(admission, json!({"clusterQueue": "research", "podSetAssignments": assigned}));

    team.create(&[workload("second", json!({}))]);
    let waits = team.until_condition("second", "QuotaReserved", "False");
    let message = waits["message"].as_str().unwrap();
    assert_eq!(waits["reason"], "Pending");
    assert!(message.contains("insufficient unused quota for cpu in flavor default, 1 more needed"), "{message}");

    team.finish("first");
    team.until_condition("second", "Admitted", "True");
}

#[test]
fn nothing_is_admitted_while_it_is_away() {
    let (plane, kueue) = own(json!({}));
    let team = Team::new(&plane, "away", "default", json!({}));
    team.create(&[workload("first", json!({}))]);
    team.until_condition("first", "Admitted", "True");
    team.create(&[workload("second", json!({}))]);
    team.until_condition("second", "QuotaReserved", "False");
    kueue.kill();
    // the webhooks fail closed: the API server accepts no creation or change of a Workload or a pod
    let refused =
        plane.client().create(&collection("Workload", team.namespace), &workload("third", json!({}))).unwrap_err();
    assert!(refused.message.contains("failed calling webhook \"mworkload.kb.io\""), "{refused}");
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "none"}]}});
    let refused = plane.client().create("/api/v1/namespaces/default/pods", &pod).unwrap_err();
    assert!(refused.message.contains("failed calling webhook \"mpod.kb.io\""), "{refused}");

    kueue.run();
    plane.client().create("/api/v1/namespaces/default/pods", &pod).unwrap();
    team.finish("first");
    team.until_condition("second", "Admitted", "True");
}

#[test]
fn a_workload_of_a_higher_priority_takes_the_place_of_another() {
    let preemption = json!({"preemption": {"withinClusterQueue": "LowerPriority"}});
    let team = Team::new(shared(), "preempting", "default", preemption);
    team.create(&[workload("low", json!({"priority": 1}))]);
    team.until_condition("low", "Admitted", "True");
    team.create(&[workload("high", json!({"priority": 2}))]);
    let evicted = team.until_condition("low", "Evicted", "True");
    assert_eq!(evicted["reason"], "Preempted");
    assert_eq!(team.until_condition("low", "Preempted", "True")["reason"], "InClusterQueue");
    // the evicted Workload holds the quota until its owner releases it
    let low = team.get("low");
    assert_eq!(condition_of(&low, "Admitted").unwrap()["status"], "True");
    assert_eq!(low["status"]["admission"]["clusterQueue"], "preempting");
    let waits = team.until_condition("high", "QuotaReserved", "False");
    assert!(waits["message"].as_str().unwrap().contains("Pending the preemption of 1 workload(s)"), "{waits}");

    team.release("low", "Preempted");
    team.until_condition("high", "Admitted", "True");
    team.finish("high");
    team.until_condition("low", "Admitted", "True");
    assert_eq!(team.until_condition("low", "Evicted", "False")["reason"], "QuotaReserved");

    // a boost takes effect when it is written
    team.create(&[workload("boosted", json!({"priority": 0}))]);
    team.until_condition("boosted", "QuotaReserved", "False");
    let boost = json!({"metadata": {"annotations": {"kueue.x-k8s.io/priority-boost": "7"}}});
    team.patch("boosted", &boost);
    team.until_condition("low", "Evicted", "True");
    team.release("low", "Preempted");
    team.until_condition("boosted", "Admitted", "True");

    team.patch("boosted", &json!({"spec": {"active": false}}));
    assert_eq!(team.until_condition("boosted", "Evicted", "True")["reason"], "Deactivated");
}

#[test]
fn pods_are_assigned_to_the_domains_of_a_topology() {
    let host = "kubernetes.io/hostname";
    let labels = json!({"kubernetes.io/os": "linux"});
    kueue::create(
        shared().client(),
        &[
            topology("hosts", &[host]),
            resource_flavor("by-host", json!({"nodeLabels": labels, "topologyName": "hosts"})),
        ],
    );
    let team = Team::new(shared(), "placed", "by-host", json!({}));
    let mut together = workload("together", json!({}));
    let request = json!({"required": host, "podIndexLabel": "stagecoach.dev/rank"});
    together["spec"]["podSets"][0]["topologyRequest"] = request;
    team.create(&[together]);
    team.until_condition("together", "Admitted", "True");
    let status = team.get("together")["status"].clone();
    let assigned = &status["admission"]["podSetAssignments"][0]["topologyAssignment"];
    assert_eq!(assigned["levels"], json!([host]));
    let slice = &assigned["slices"][0];
    assert_eq!((&slice["domainCount"], &slice["podCounts"]), (&json!(1), &json!({"universal": 2})), "{assigned}");
    let node = slice["valuesPerLevel"][0]["universal"].as_str().unwrap();
    assert!(["node-0", "node-1"].contains(&node), "{assigned}");
}

#[test]
fn a_replacement_takes_over_quota_and_fewer_pods_give_it_back() {
    let team = Team::new(shared(), "elastic", "default", json!({}));
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
    team.create(&[elastic("small", 2, None)]);
    team.until_condition("small", "Admitted", "True");
    team.create(&[elastic("large", 3, Some("elastic/small"))]);
    team.until_condition("large", "Admitted", "True");
    assert_eq!(team.until_condition("small", "Finished", "True")["reason"], "WorkloadSliceReplaced");

    team.create(&[workload("other", json!({}))]);
    team.until_condition("other", "QuotaReserved", "False");
    let fewer = json!([{"op": "replace", "path": "/spec/podSets/0/count", "value": 1}]);
    team.patch("large", &fewer);
    team.until_condition("other", "Admitted", "True");
    // Kueue does not change the admission, although `large` has only one pod now
    let large = team.get("large");
    assert_eq!(large["status"]["admission"]["podSetAssignments"][0]["count"], 3);
}

#[test]
fn a_workload_whose_pods_are_not_ready_in_time_is_evicted_and_then_deactivated() {
    let requeuing = json!({"backoffBaseSeconds": 1, "backoffLimitCount": 1});
    let changes = json!({"waitForPodsReady": {"timeout": "1s", "requeuingStrategy": requeuing}});
    let (plane, _kueue) = own(changes);
    let team = Team::new(&plane, "late", "default", json!({}));
    team.create(&[workload("late", json!({}))]);
    assert_eq!(team.until_condition("late", "Evicted", "True")["reason"], "PodsReadyTimeout");
    team.release("late", "PodsReadyTimeout");
    team.until_condition("late", "Admitted", "True");
    let evicted = team.until_condition("late", "Evicted", "True");
    assert_eq!(evicted["reason"], "DeactivatedDueToRequeuingLimitExceeded");
    assert_eq!(team.get("late")["spec"]["active"], false);
}
