//! More stages, and fewer, while a job runs.

use serde_json::json;
use stagecoach_e2e::{E2eJob, Product, on_this_machine};

#[test]
#[ignore = "needs a node: make e2e"]
fn a_job_that_is_scaled_comes_to_the_same_end() {
    let product = Product::take();
    scaled(&product, "scaled", false);
}

#[test]
#[ignore = "needs a node: make e2e"]
fn also_when_the_operator_dies_meanwhile() {
    let product = Product::take();
    scaled(&product, "scaled-blind", true);
}

fn scaled(product: &Product, name: &str, with_operator: bool) {
    let job = E2eJob::apply(product, name, json!({}));
    for (attempt, stages) in [(1, 2), (2, 4)] {
        job.wait_running(attempt);
        let before = job.step();
        job.wait_step(before + 15);
        product.kubectl(&["scale", &format!("pj/{name}"), &format!("--replicas={stages}")]);
        if with_operator {
            product.kill_operators();
        }
        let job_now = job.wait_running(attempt + 1);
        assert_eq!(job_now["status"]["attempt"]["stages"], stages);
        assert_eq!(job.pods().len(), stages);
        // drained, not failed: nothing is done twice
        assert!(job.step() >= before + 15);
    }
    assert_eq!(job.complete(), *on_this_machine(product.node.folder()));
    assert_eq!(job.get()["status"]["restarts"]["total"], 0);
}
