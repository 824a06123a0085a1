//! A job of four stages, each of which requests a GPU, starts only when the node has four GPUs.

use serde_json::{Value, json};
use stagecoach_cluster::condition_of;
use stagecoach_e2e::{E2eJob, Product};

#[test]
#[ignore = "needs a node: make e2e"]
fn a_gang_waits_until_all_of_it_has_a_gpu() {
    let product = Product::take();
    product.node.set_gpus(Some(3));
    let wish = json!([{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "1Gi"}}}]);
    let job = E2eJob::apply(
        &product,
        "gang",
        json!({"stages": 4, "scheduling": {"gang": "Native"}, "training": {"steps": 20, "device": "Cpu"}, "template": {"spec": {"containers": wish}}}),
    );
    let waiting = job.wait("waiting for GPUs", |job| {
        condition_of(job, "Scheduled")
            .is_some_and(|scheduled| scheduled["reason"] == "Unschedulable" || scheduled["reason"] == "SchedulingGated")
    });
    assert_eq!(job.pods().len(), 4, "{:#}", waiting["status"]);
    let placed = |job: &E2eJob| job.pods().iter().filter(|pod| pod["spec"]["nodeName"].is_string()).count();
    assert_eq!(placed(&job), 0, "three stages would hold GPUs and train nothing");
    let group = |pod: &Value| pod["spec"]["schedulingGroup"]["podGroupName"].clone();
    assert!(job.pods().iter().all(|pod| group(pod) == "gang-1"), "the API server dropped schedulingGroup");

    product.node.set_gpus(Some(4));
    job.complete();
    drop(job);
    product.node.set_gpus(None);
}
