//! Tests of Kueue's choice among the jobs that it may preempt. The operator gives each job a priority boost that grows
//! with the time since the job's last checkpoint.

use serde_json::{Value, json};
use stagecoach_api::contract::{StagePhase, StageStatus};
use stagecoach_api::job::{CheckpointStatus, ProgressStatus};
use stagecoach_cluster::kueue::collection;
use stagecoach_cluster::until;

use super::{QueuedCluster, queued};
use crate::support::condition_of;

const BOOST: &str = "kueue.x-k8s.io/priority-boost";
const LAST_CHECKPOINT: &str = "stagecoach.dev/last-checkpoint-time";

/// Sets the time of a job's admission to ten minutes ago.
fn admitted_long_ago(queues: &QueuedCluster, job: &str) {
    let workload = queues.workload(job).unwrap();
    let mut conditions = workload["status"]["conditions"].as_array().unwrap().clone();
    let then = jiff::Timestamp::now() - jiff::SignedDuration::from_mins(10);
    for condition in conditions.iter_mut().filter(|condition| condition["type"] == "Admitted") {
        condition["lastTransitionTime"] = then.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into();
    }
    let path =
        format!("{}/{}/status", collection("Workload", "default"), workload["metadata"]["name"].as_str().unwrap());
    queues.cluster.plane.client().patch(&path, &json!({"status": {"conditions": conditions}})).unwrap();
}

fn wait_boost(queues: &QueuedCluster, job: &str, boost: &str) -> Value {
    until(&format!("the boost {boost} of {job}"), || {
        let workload = queues.workload(job)?;
        (workload["metadata"]["annotations"][BOOST].as_str().unwrap_or("0") == boost).then_some(workload)
    })
}

#[test]
fn the_job_that_has_just_saved_is_preempted() {
    let (queues, cluster) = (queued(), &queued().cluster);
    let queue = queues.queue(4, json!({"preemption": {"withinClusterQueue": "LowerPriority"}}));
    for job in ["saved", "unsaved"] {
        queues.create(job, &queue, json!({}));
        cluster.wait_running(job, 1);
        admitted_long_ago(queues, job);
        wait_boost(queues, job, "4");
    }
    let committed_at = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let checkpoint =
        CheckpointStatus { step: 5, committed_at: Some(committed_at.clone()), ..CheckpointStatus::default() };
    let progress = ProgressStatus { step: 5, ..ProgressStatus::default() };
    let training =
        StageStatus { phase: StagePhase::Training, progress, checkpoint: Some(checkpoint), ..StageStatus::default() };
    cluster.kubelet.pod("saved-0-1").set_status(training);
    let workload = wait_boost(queues, "saved", "0");
    assert_eq!(workload["metadata"]["annotations"][LAST_CHECKPOINT], committed_at.as_str());

    // without the boost, Kueue would preempt the job that was admitted last
    queues.create("urgent", &queue, json!({"metadata": {"labels": {"kueue.x-k8s.io/priority-class": "high"}}}));
    cluster.wait_running("urgent", 1);
    let unsaved = queues.workload("unsaved").unwrap();
    assert_eq!(condition_of(&unsaved, "Evicted"), None);
    assert_eq!(cluster.job("unsaved").unwrap()["status"]["phase"], "Running");
    let saved = queues.wait_workload("saved", "QuotaReserved", "False");
    assert_eq!(condition_of(&saved, "Evicted").unwrap()["reason"], "Preempted");
}
