//! Parts of Kubernetes stop and return, and training continues.

use serde_json::json;
use stagecoach_cluster::{condition_of, until};
use stagecoach_e2e::{E2eJob, Product, endless};

#[test]
#[ignore = "needs a node: make e2e"]
fn training_continues_without_kubelet_containerd_and_api_server() {
    let product = Product::take();
    let job = E2eJob::apply(&product, "unattended", endless());
    job.wait_running(1);
    let pods = job.pod_uids();
    let expect_training = |what: &str| {
        let step = job.step();
        job.wait_step(step + 10);
        assert_eq!((job.attempt(), job.pod_uids()), (1, pods.clone()), "{what}");
    };
    product.node.restart_containerd();
    expect_training("containerd was started again");
    product.node.restart_api_server();
    expect_training("the API server was started again");

    product.node.stop_kubelet();
    let path = format!("/api/v1/nodes/{}", product.node.name());
    until("the node to count as lost", || {
        job.wait_step(job.step() + 5);
        let node = product.node.get(&path)?;
        condition_of(&node, "Ready").is_some_and(|ready| ready["status"] == "Unknown").then_some(())
    });
    expect_training("the node counts as lost");
    product.node.start_kubelet();
    expect_training("the kubelet was away");
    job.wait("running", |job| job["status"]["phase"] == "Running");
    assert_eq!(job.get()["status"]["restarts"]["total"], 0);
    drop(job);

    // the kubelet, containerd and the API server work together again
    E2eJob::apply(&product, "afterwards", json!({"training": {"steps": 20}})).wait_phase("Complete");
}
