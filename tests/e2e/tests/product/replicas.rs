//! A job continues to train without a replica whose pod the scheduler can't place.

use serde_json::json;
use stagecoach_e2e::{Cordoned, E2eJob, Product, run_on_this_machine};

#[test]
#[ignore = "needs a node: make e2e"]
fn a_replica_that_finds_no_node_is_not_waited_for() {
    let product = Product::take();
    // the job trains until the node has room again and the test sets an end
    let training = |steps: u64| json!({"steps": steps, "gradientBlocks": 4, "learningRate": {"decaySteps": 4000}});
    let replicas = json!({"stages": 1, "dataParallel": 2, "training": training(1_000_000)});
    let job = E2eJob::apply(&product, "bereft", replicas);
    job.wait_running(1);
    job.wait_step(10);
    let first = job.pod(0);
    let no_room = Cordoned::new(&product.node);
    job.trainer(1).kill();
    job.wait("reported as lost", |job| job["status"]["restarts"]["replaced"] == 1);
    job.wait("trained by one replica", |job| {
        job["status"]["trainingReplicas"] == 1 && job["status"]["readyStages"] == 1
    });
    // the job passes the step at which it lost the replica
    job.wait_step(job.step() + 40);
    let status = &job.get()["status"];
    assert_eq!((&status["phase"], &status["attempt"]["number"]), (&json!("Running"), &json!(1)), "{status:#}");
    drop(no_room);
    job.wait("whole again", |job| job["status"]["trainingReplicas"] == 2 && job["status"]["readyStages"] == 2);
    assert_eq!((job.attempt(), job.pod(0)), (1, first));
    job.edit(json!({"suspend": true}));
    job.wait_phase("Suspended");
    let steps = job.step() + 50;
    job.edit(json!({"suspend": false, "training": {"steps": steps}}));
    let undisturbed = run_on_this_machine(product.node.folder(), "bereft-here", json!({"training": training(steps)}));
    assert_eq!(job.complete(), undisturbed);
}
