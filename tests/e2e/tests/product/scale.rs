//! A user changes the number of stages and replicas of a running job.

use serde_json::json;
use stagecoach_e2e::{E2eJob, Product, on_this_machine, run_on_this_machine};

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
        // the operator drained the stages, and no stage failed, so the job trains no step twice
        assert!(job.step() >= before + 15);
    }
    assert_eq!(job.complete(), *on_this_machine(product.node.folder()));
    assert_eq!(job.get()["status"]["restarts"]["total"], 0);
}

/// The test kills a pod of the second replica. Then it scales the job to one replica of two stages, and then to four
/// replicas of one stage.
#[test]
#[ignore = "needs a node: make e2e"]
fn a_job_that_has_other_replicas_comes_to_the_same_end() {
    let product = Product::take();
    let blocks = json!({"training": {"gradientBlocks": 4}});
    let job = E2eJob::apply(
        &product,
        "replicated",
        json!({"stages": 1, "dataParallel": 2, "training": {"gradientBlocks": 4}}),
    );
    job.wait_running(1);
    job.wait_step(10);
    assert_eq!([job.pod(0), job.pod(1)], ["replicated-0-0-1", "replicated-1-0-1"]);
    job.trainer(1).kill();
    job.wait("whole again", |job| job["status"]["restarts"]["replaced"] == 1 && job["status"]["phase"] == "Running");
    let failure = &job.get()["status"]["lastFailure"];
    assert_eq!((&failure["stage"], &failure["replica"]), (&json!(0), &json!(1)), "{failure:#}");
    for (attempt, stages, data_parallel) in [(2, 2, 1), (3, 1, 4)] {
        let before = job.step();
        job.wait_step(before + 15);
        job.edit(json!({"stages": stages, "dataParallel": data_parallel}));
        let status = &job.wait_running(attempt)["status"];
        assert_eq!(status["attempt"]["stages"], stages);
        // the job is Running when the first replica is ready; the other replicas are ready a moment later
        job.wait("ready", |job| job["status"]["readyStages"] == stages * data_parallel);
        assert_eq!(job.pods().len(), stages * data_parallel);
        assert!(job.step() >= before + 15);
    }
    let undisturbed = run_on_this_machine(product.node.folder(), "blocks", blocks);
    assert_eq!(job.complete(), undisturbed);
}
