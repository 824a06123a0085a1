//! Parts of Kubernetes stop and return, and training continues.

use std::time::{Duration, Instant};

use serde_json::json;
use stagecoach_e2e::{E2eJob, Product, on_this_machine};

/// The time without a kubelet. It is longer than the time after which the node counts as unhealthy.
const AWAY: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs a node: make e2e"]
fn training_continues_without_kubelet_containerd_and_api_server() {
    let product = Product::take();
    let job = E2eJob::apply(
        &product,
        "unattended",
        json!({"training": {"steps": 4000, "learningRate": {"decaySteps": 300}}}),
    );
    job.wait_running(1);
    let pods = job.pod_uids();
    let goes_on = |what: &str| {
        let step = job.step();
        job.wait_step(step + 10);
        assert_eq!((job.attempt(), job.pod_uids()), (1, pods.clone()), "{what}");
    };
    product.node.restart_containerd();
    goes_on("containerd was started again");
    product.node.restart_api_server();
    goes_on("the API server was started again");

    let gone = Instant::now();
    product.node.stop_kubelet();
    while gone.elapsed() < AWAY {
        job.wait_step(job.step() + 5);
    }
    product.node.start_kubelet();
    goes_on("the kubelet was away");
    job.wait("running", |job| job["status"]["phase"] == "Running");
    assert_eq!(job.get()["status"]["restarts"]["total"], 0);
    drop(job);

    // the kubelet, containerd and the API server work together again
    let job = E2eJob::apply(&product, "afterwards", json!({}));
    assert_eq!(job.complete(), *on_this_machine(product.node.folder()));
}
