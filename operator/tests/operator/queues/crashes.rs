//! Tests of an operator that crashes after each of its writes to a job with a queue, including the writes to Workloads.

use serde_json::{Value, json};
use stagecoach_cluster::kueue::{self, cluster_queue, collection};
use stagecoach_cluster::{merge, until};

use super::queued;
use crate::crashes::{Scenario, ScenarioCluster, ScenarioRun, crash_after_each_write, training};

/// Returns a job in the queue of its namespace.
fn in_queue(elastic: bool, changes: Value) -> Value {
    let annotations = if elastic { json!({"kueue.x-k8s.io/elastic-job": "true"}) } else { json!({}) };
    let metadata = json!({"labels": {"kueue.x-k8s.io/queue-name": "team"}, "annotations": annotations});
    json!({"metadata": metadata, "spec": changes})
}

/// Creates a queue with a quota of four pods in the namespace of a run.
fn with_queue(run: &ScenarioRun) {
    let mut queue = kueue::local_queue("team", &run.namespace);
    queue["metadata"]["namespace"] = run.namespace.as_str().into();
    let quota = cluster_queue(&run.namespace, &[("default", json!({"pods": 4}))], json!({}));
    kueue::create(run.cluster.plane.client(), &[quota, queue]);
}

fn admitted(run: &ScenarioRun) {
    with_queue(run);
    run.running(1);
    wait_reported(run);
}

/// Waits for the last write of the start: the report that all pods are ready.
pub(super) fn wait_reported(run: &ScenarioRun) {
    until("the report that all pods are ready", || {
        let mut end = json!({});
        add_workloads(run, &mut end);
        (end["workloads"] == json!([["1", [2], HOLDS]])).then_some(())
    });
}

/// Adds the Workloads of a run to `end`: the number in the name, the counts of the pod sets, and the true conditions.
pub(super) fn add_workloads(run: &ScenarioRun, end: &mut Value) {
    let workloads = run.cluster.plane.client().list(&collection("Workload", &run.namespace));
    let short = |workload: &Value| {
        let name = workload["metadata"]["name"].as_str().unwrap();
        let conditions = workload["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let holds = conditions.iter().filter(|condition| condition["status"] == "True");
        let mut holds: Vec<String> = holds.map(|condition| condition["type"].as_str().unwrap().to_owned()).collect();
        holds.sort();
        // ignore the other conditions of a finished Workload, whose pods may never have been ready
        if holds.iter().any(|kind| kind == "Finished") {
            holds = vec!["Finished".to_owned()];
        }
        let counts: Vec<&Value> =
            workload["spec"]["podSets"].as_array().unwrap().iter().map(|set| &set["count"]).collect();
        json!([name.rsplit('-').next().unwrap(), counts, holds])
    };
    end["workloads"] = workloads.iter().map(short).collect();
}

/// Returns the final state of a job that trains under its admission.
fn trains(number: u64, stages: usize, workloads: Value) -> Value {
    let mut end = training(number, stages, json!({"workloads": workloads}));
    end["conditions"].as_array_mut().unwrap().insert(1, "Admitted".into());
    end
}

/// Returns the final state of a job without running stages.
fn end_without_pods(phase: &str, conditions: &[&str], workloads: Value) -> Value {
    let mut end = training(1, 2, json!({"workloads": workloads}));
    let changes = json!({"phase": phase, "conditions": conditions, "stages": [0, 0], "services": []});
    merge(&mut end, changes);
    end
}

/// The true conditions of the Workload of a job that trains.
pub(super) const HOLDS: [&str; 3] = ["Admitted", "PodsReady", "QuotaReserved"];

fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "enqueue",
            spec: in_queue(false, json!({"suspend": true})),
            setup: |run| {
                with_queue(run);
                run.cluster.wait_phase(&run.job(), "Suspended");
            },
            action: |run| run.cluster.edit(&run.job(), json!({"suspend": false})),
            end: trains(1, 2, json!([["1", [2], HOLDS]])),
        },
        Scenario {
            name: "evict",
            spec: in_queue(false, json!({})),
            setup: admitted,
            action: |run| {
                let stop = json!({"spec": {"stopPolicy": "HoldAndDrain"}});
                let path = format!("{}/{}", collection("ClusterQueue", ""), run.namespace);
                run.cluster.plane.client().patch(&path, &stop).unwrap();
            },
            end: {
                let mut end = end_without_pods(
                    "Pending",
                    &["Accepted", "ObjectsInSync", "Reconciling"],
                    json!([["1", [2], ["Evicted"]]]),
                );
                end["pods"] = json!([]);
                end
            },
        },
        Scenario {
            name: "slice",
            spec: in_queue(true, json!({})),
            setup: admitted,
            action: |run| run.cluster.edit(&run.job(), json!({"stages": 3})),
            end: trains(2, 3, json!([["1", [2], ["Finished"]], ["2", [3], HOLDS]])),
        },
        Scenario {
            name: "grow",
            spec: in_queue(
                false,
                json!({
                    "suspend": true, "elastic": {"minDataParallel": 1, "maxDataParallel": 3},
                    "training": {"gradientBlocks": 4, "microbatches": 4}, "restart": {"reformTimeoutSeconds": 60},
                }),
            ),
            setup: |run| {
                with_queue(run);
                run.cluster.wait_phase(&run.job(), "Suspended");
            },
            action: |run| run.cluster.edit(&run.job(), json!({"suspend": false})),
            // a third replica waits for quota
            end: {
                let mut end = trains(1, 2, json!([["1", [2], ["Finished"]], ["2", [4], HOLDS], ["3", [6], []]]));
                let pods = ["job-0-0-1", "job-0-1-1", "job-1-0-1", "job-1-1-1"];
                merge(&mut end, json!({"stages": [4, 4], "pods": pods}));
                end
            },
        },
        Scenario {
            name: "shrink",
            spec: in_queue(true, json!({})),
            setup: admitted,
            action: |run| run.cluster.edit(&run.job(), json!({"stages": 1})),
            end: trains(2, 1, json!([["1", [1], HOLDS]])),
        },
        Scenario {
            name: "requeue",
            spec: in_queue(false, json!({})),
            setup: admitted,
            action: |run| run.cluster.edit(&run.job(), json!({"stages": 3})),
            end: trains(2, 3, json!([["1", [3], HOLDS]])),
        },
        Scenario {
            name: "leave",
            spec: in_queue(false, json!({})),
            setup: admitted,
            action: |run| run.cluster.edit(&run.job(), json!({"suspend": true})),
            end: {
                let mut end =
                    end_without_pods("Suspended", &["Accepted", "ObjectsInSync", "Suspended", "Ready"], json!([]));
                end["pods"] = json!([]);
                end
            },
        },
        Scenario {
            name: "finish",
            spec: in_queue(false, json!({})),
            setup: admitted,
            action: |run| (0..2).for_each(|stage| run.exit(stage, 1, 0)),
            end: end_without_pods(
                "Complete",
                &["Accepted", "ObjectsInSync", "Complete", "Ready"],
                json!([["1", [2], ["Finished"]]]),
            ),
        },
    ]
}

#[test]
fn a_crash_between_any_two_writes_changes_nothing_in_a_queue() {
    let site =
        ScenarioCluster { cluster: &queued().cluster, env: &[("STAGECOACH_KUEUE", "true")], add_to_end: add_workloads };
    crash_after_each_write(&site, &scenarios());
}
