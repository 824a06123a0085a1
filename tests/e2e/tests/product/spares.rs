//! A pod that waits takes the place of one that is lost.

use serde_json::json;
use stagecoach_e2e::{E2eJob, Product, on_this_machine};

#[test]
#[ignore = "needs a node: make e2e"]
fn a_spare_takes_the_place_of_a_lost_stage() {
    let product = Product::take();
    let job = E2eJob::apply(&product, "spared", json!({"spares": 1}));
    let mut spares = Vec::new();
    // stage 0 last: until then its pod tells how far the job is
    for (restarts, stage) in (1..).zip([1, 0]) {
        job.wait_phase("Running");
        let spare = job.wait_spare(&spares);
        job.wait_step(job.step() + 10);
        let before = job.pod_uids();
        // before stage 0's own, an operator that starts anew has to find out who is who
        if stage == 0 {
            product.kill_operators();
        }
        job.trainer(stage).kill();
        let whole = job.wait("whole again", |job| {
            job["status"]["restarts"]["total"].as_u64() == Some(restarts) && job["status"]["phase"] == "Running"
        });
        spares.push(spare.clone());
        let status = &whole["status"];
        assert_eq!((&status["restarts"]["replaced"], &status["attempt"]["number"]), (&json!(restarts), &json!(1)));
        let next = job.wait_spare(&spares);
        let now = job.pod_uids();
        // of the four pods the lost one has gone, and the spare is a stage
        let stayed: Vec<&String> = before.iter().filter(|uid| now.contains(uid)).collect();
        assert!(stayed.len() == 3 && stayed.contains(&&spare) && now.len() == 4, "{before:?} became {now:?}, {next}");
        let told =
            job.wait("told how long that took", |job| job["status"]["lastRecovery"]["phases"]["firstStep"].is_string());
        println!("spared: stage {stage}: {}", told["status"]["lastRecovery"]);
    }
    assert_eq!(job.complete(), *on_this_machine(product.node.folder()));
    job.wait("without spares", |_| {
        job.pods().iter().all(|pod| pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed")
    });
}
