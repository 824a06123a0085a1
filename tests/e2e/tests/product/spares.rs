//! A spare replaces a lost stage.

use serde_json::{Value, json};
use stagecoach_e2e::{E2eJob, Product, on_this_machine};

#[test]
#[ignore = "needs a node: make e2e"]
fn a_spare_takes_the_place_of_a_lost_stage() {
    let product = Product::take();
    let job = E2eJob::apply(&product, "spared", json!({"spares": 1}));
    job.wait_phase("Running");
    let first = job.wait_spare(&[]);
    job.wait_step(job.step() + 10);
    let before = job.pod_uids();
    job.trainer(1).kill();
    reported_of(&job, 1);
    let second = job.wait_spare(std::slice::from_ref(&first));
    // three of the job's four pods remain: the operator has deleted the lost pod, and the spare has become a stage
    job.wait("of three pods of before and the next spare", |_| {
        let now = job.pod_uids();
        let stayed: Vec<&String> = before.iter().filter(|uid| now.contains(uid)).collect();
        stayed.len() == 3 && stayed.contains(&&first) && now.len() == 4 && now.contains(&second)
    });
    job.wait_step(job.step() + 10);
    job.trainer(0).kill();
    reported_of(&job, 2);
    assert_eq!(job.complete(), *on_this_machine(product.node.folder()));
    assert_eq!(job.attempt(), 1);
    // both former spares have trained until the end of the job
    job.wait("with both spares done", |_| {
        let pods = job.pods();
        let is_done = |uid: &String| {
            let has_uid = |pod: &&Value| pod["metadata"]["uid"].as_str() == Some(uid);
            pods.iter().find(has_uid).is_some_and(|pod| pod["status"]["phase"] == "Succeeded")
        };
        [&first, &second].into_iter().all(is_done)
    });
}

/// Waits until the job has `replaced` replacements, and prints the last recovery if it is in the status already.
fn reported_of(job: &E2eJob, replaced: u64) {
    let reported =
        job.wait("reported as replaced", |job| job["status"]["restarts"]["replaced"].as_u64() == Some(replaced));
    println!("spared: {}", reported["status"]["lastRecovery"]);
}
