//! Tests of an elastic job whose number of replicas follows its admission by Kueue.

use serde_json::{Value, json};
use stagecoach_cluster::until;

use super::{message, queued};
use crate::support::has_condition;

/// Returns the changes that make a job elastic, with one to four replicas of two stages.
fn elastic() -> Value {
    json!({"spec": {
        "elastic": {"minDataParallel": 1, "maxDataParallel": 4, "stabilizationWindowSeconds": 1},
        "training": {"gradientBlocks": 4, "microbatches": 4}, "restart": {"reformTimeoutSeconds": 60},
    }})
}

#[test]
fn an_elastic_job_grows_and_begins_with_its_fewest_replicas_after_an_eviction() {
    let (queues, cluster) = (queued(), &queued().cluster);
    let queue = queues.queue(5, json!({"preemption": {"withinClusterQueue": "LowerPriority"}}));
    let replicas = |count: u32| {
        move |job: &Value| job["status"]["trainingReplicas"] == count && job["status"]["attempt"]["dataParallel"] == 4
    };
    queues.create("growing", &queue, elastic());
    // two replicas use four of the five pods of the quota
    let job = cluster.wait("growing", "two replicas", replicas(2));
    assert_eq!((&job["status"]["attempt"]["number"], &job["status"]["stagesPerReplica"]), (&json!(1), &json!(2)));
    assert!(has_condition(&job, "Admitted", "True", "Admitted"), "{job:#}");
    let uids = || -> Vec<Value> {
        let mut pods = cluster.pods("growing");
        pods.retain(|pod| pod["metadata"]["labels"]["stagecoach.dev/replica"] == "0");
        pods.iter().map(|pod| pod["metadata"]["uid"].clone()).collect()
    };
    let first = uids();
    let job = cluster.wait("growing", "asking for a third", |job| {
        let message = message(job, "Admitted");
        message.contains("the job asks for 3 replicas of 2 stages") && message.contains("insufficient")
    });
    assert_eq!(job["status"]["phase"], "Running");

    // the quota grows, and the pods of the first replica are kept
    let path = format!("/apis/kueue.x-k8s.io/v1beta2/clusterqueues/{queue}");
    until("the larger quota", || {
        let mut quota = cluster.plane.get(&path).unwrap();
        quota["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = json!("9");
        // Kueue also writes to the object, so this write may conflict
        cluster.plane.client().replace(&path, &quota).ok()
    });
    let job = cluster.wait("growing", "four replicas", replicas(4));
    assert_eq!((uids(), &job["status"]["attempt"]["number"]), (first, &json!(1)), "{job:#}");
    assert_eq!(job["status"]["restarts"]["total"], 0);
    assert_eq!(queues.workload("growing").unwrap()["spec"]["podSets"][0]["count"], 8);

    // a job of higher priority needs the quota of all replicas except one
    let urgent = json!({"spec": {"stages": 6, "scheduling": {"kueue": {"priorityClassName": "high"}}}});
    queues.create("pressing", &queue, urgent);
    cluster.wait_running("pressing", 1);
    let job = cluster.wait("growing", "one replica", replicas(1));
    assert_eq!(job["status"]["attempt"]["number"], 2);
    assert_eq!(cluster.pods("growing").len(), 2);
    cluster.finish("pressing", 1, 6);
    cluster.wait("growing", "four replicas again", replicas(4));

    // with a smaller range, the job releases the surplus quota
    cluster.edit("growing", json!({"elastic": {"maxDataParallel": 2}}));
    cluster.wait_running("growing", 3);
    until("the rest to be given back", || {
        (queues.workload("growing")?["spec"]["podSets"][0]["count"] == 4).then_some(())
    });
    for (replica, stage) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        cluster.kubelet.pod(&format!("growing-{replica}-{stage}-3")).exit(0, "");
    }
    cluster.wait_phase("growing", "Complete");
    until("its Workloads to be finished", || queues.workload("growing").is_none().then_some(()));
}
