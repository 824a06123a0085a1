//! Tests of changes of a job's number of pods while the job is admitted.

use serde_json::json;
use stagecoach_cluster::until;

use super::{message, queued, without_slices};
use crate::support::has_condition;

fn elastic() -> serde_json::Value {
    json!({"metadata": {"annotations": {"kueue.x-k8s.io/elastic-job": "true"}}})
}

#[test]
fn an_elastic_job_scales_by_slices_and_runs_meanwhile() {
    let (queues, cluster) = (queued(), &queued().cluster);
    let queue = queues.queue(3, json!({}));
    queues.create("elastic", &queue, elastic());
    cluster.wait_running("elastic", 1);

    // Kueue calls the Workload for the new number of pods a slice; the slice waits for quota, and meanwhile the job
    // runs with two stages
    cluster.edit("elastic", json!({"stages": 4}));
    let job = cluster.wait("elastic", "waiting for four stages", |job| {
        let message = message(job, "Admitted");
        message.contains("the job asks for 4 stages") && message.contains("insufficient")
    });
    assert_eq!((&job["status"]["phase"], &job["status"]["attempt"]["number"]), (&json!("Running"), &json!(1)));
    assert!(has_condition(&job, "Admitted", "True", "Admitted"));

    // the quota has room for three stages
    cluster.edit("elastic", json!({"stages": 3}));
    let job = cluster.wait_running("elastic", 2);
    assert_eq!(job["status"]["attempt"]["stages"], 3);
    let first = &queues.workloads("elastic")[0];
    assert!(has_condition(first, "Finished", "True", "WorkloadSliceReplaced"), "{:#}", first["status"]);

    // with fewer stages, the operator lowers the count in the existing Workload after the surplus stages have stopped
    cluster.edit("elastic", json!({"stages": 1}));
    let job = cluster.wait_running("elastic", 3);
    assert_eq!(job["status"]["attempt"]["stages"], 1);
    until("the quota to be given back", || {
        let workload = queues.workload("elastic")?;
        (workload["spec"]["podSets"][0]["count"] == 1).then_some(())
    });
    queues.create("beside", &queue, json!({}));
    cluster.wait_running("beside", 1);
    cluster.finish("elastic", 3, 1);
    cluster.wait_phase("elastic", "Complete");
    until("its Workloads to be finished", || queues.workload("elastic").is_none().then_some(()));
}

#[test]
fn an_elastic_job_gets_more_spares_while_it_runs() {
    let (queues, cluster) = (queued(), &queued().cluster);
    let queue = queues.queue(4, json!({}));
    let mut job = elastic();
    job["spec"] = json!({"spares": 1, "restart": {"reformTimeoutSeconds": 60}});
    queues.create("spared", &queue, job);
    let stand_by = |spares: &str| {
        cluster.wait("spared", &format!("training with spares: {spares}"), |job| {
            message(job, "Running") == format!("all 2 stages are ready; {spares} stand by")
        })
    };
    stand_by("1 of 1 spares");

    // a slice asks for the second spare, for which the quota has room
    cluster.edit("spared", json!({"spares": 2}));
    let job = stand_by("2 of 2 spares");
    assert_eq!(job["status"]["attempt"]["number"], 1);

    // no quota is left for a third spare
    cluster.edit("spared", json!({"spares": 3}));
    let job = cluster.wait("spared", "waiting for a spare", |job| {
        let message = message(job, "Admitted");
        message.contains("with 2 spares; the job asks for 3") && message.contains("insufficient")
    });
    assert_eq!((&job["status"]["phase"], &job["status"]["attempt"]["number"]), (&json!("Running"), &json!(1)));
    assert!(has_condition(&job, "Admitted", "True", "Admitted"));

    cluster.edit("spared", json!({"spares": 1}));
    until("the quota to be given back", || {
        let workload = queues.workload("spared")?;
        let counts: Vec<_> = workload["spec"]["podSets"].as_array()?.iter().map(|set| set["count"].clone()).collect();
        (counts == [2, 1]).then_some(())
    });
    assert_eq!(cluster.job("spared").unwrap()["status"]["attempt"]["number"], 1);
}

#[test]
fn an_elastic_job_is_queued_again_whole_if_kueue_has_no_slices() {
    let (queues, cluster) = (without_slices(), &without_slices().cluster);
    // the quota has no room for a second Workload, of three pods, beside the first Workload
    let queue = queues.queue(3, json!({}));
    queues.create("whole", &queue, elastic());
    cluster.wait_running("whole", 1);
    cluster.edit("whole", json!({"stages": 3}));
    let job = cluster.wait_running("whole", 2);
    assert_eq!(job["status"]["attempt"]["stages"], 3);
    assert_eq!(queues.workloads("whole").len(), 1);
    let printed =
        until("the event", || cluster.event_notes("whole").into_iter().find(|note| note.contains("is queued again")));
    assert!(printed.contains("the feature gate ElasticJobsViaWorkloadSlices of Kueue is off"), "{printed}");

    // the job asks for more than the quota, and the condition shows why no stage runs
    cluster.edit("whole", json!({"stages": 4}));
    cluster.wait("whole", "waiting for four stages", |job| {
        job["status"]["phase"] == "Pending" && message(job, "Admitted").contains("insufficient")
    });
    cluster.edit("whole", json!({"stages": 2}));
    cluster.wait_running("whole", 3);
    cluster.edit("whole", json!({"stages": 1}));
    cluster.wait_running("whole", 4);
    until("the rest to be given back", || {
        let workload = queues.workload("whole")?;
        (workload["status"]["reclaimablePods"] == json!([{"name": "stages", "count": 1}])).then_some(())
    });
}

#[test]
fn another_job_is_queued_again_for_more_and_gives_back_what_it_no_longer_needs() {
    let (queues, cluster) = (queued(), &queued().cluster);
    let queue = queues.queue(4, json!({}));
    queues.create("rigid", &queue, json!({}));
    cluster.wait_running("rigid", 1);
    cluster.edit("rigid", json!({"stages": 4}));
    let job = cluster.wait_running("rigid", 2);
    assert_eq!(job["status"]["attempt"]["stages"], 4);
    let seen = until("the event", || {
        let notes = cluster.event_notes("rigid");
        notes.into_iter().find(|note| note.contains("is queued again"))
    });
    assert!(seen.contains("elastic-job"), "{seen}");

    cluster.edit("rigid", json!({"stages": 2}));
    cluster.wait_running("rigid", 3);
    until("the rest to be given back", || {
        let workload = queues.workload("rigid")?;
        (workload["status"]["reclaimablePods"] == json!([{"name": "stages", "count": 2}])).then_some(())
    });
    queues.create("successor", &queue, json!({}));
    cluster.wait_running("successor", 1);
}

#[test]
fn a_job_that_allows_fewer_replicas_is_admitted_with_fewer() {
    let (queues, cluster) = (queued(), &queued().cluster);
    let queue = queues.queue(5, json!({}));
    let replicas = json!({
        "dataParallel": 4, "training": {"gradientBlocks": 4, "microbatches": 4},
        "restart": {"minDataParallel": 1, "reformTimeoutSeconds": 60},
    });
    queues.create("partial", &queue, json!({"spec": replicas}));
    let job = cluster.wait("partial", "started", |job| job["status"]["attempt"]["number"] == 1);
    assert_eq!(
        (&job["status"]["attempt"]["stages"], &job["status"]["attempt"]["dataParallel"]),
        (&json!(2), &json!(2))
    );
    let pods = until("its pods", || Some(cluster.pods("partial")).filter(|pods| pods.len() == 4));
    assert_eq!(pods.len(), 4);
    // two replicas use four pods, so the job releases the quota of the fifth pod
    until("the rest to be given back", || {
        let workload = queues.workload("partial")?;
        (workload["status"]["reclaimablePods"] == json!([{"name": "stages", "count": 1}])).then_some(())
    });
}
