//! The operator stops, starts again, and is upgraded, without an effect on jobs.

use serde_json::{Value, json};
use stagecoach_e2e::{E2eJob, Product, endless};

#[test]
#[ignore = "needs a node: make e2e"]
fn an_upgrade_changes_no_job_that_runs() {
    let product = Product::take();
    let job = E2eJob::apply(&product, "upgraded", endless());
    job.wait_running(1);
    job.wait("heard", |job| !job["status"]["progress"]["step"].is_null());
    let (pods, image) = (job.pod_uids(), images(&job));
    let other = json!({"repository": "localhost/stagecoach-trainer", "tag": "of-the-next-release"});
    product.helm_install(&json!({"trainerImage": other}));
    job.wait_step(job.step() + 20);
    assert_eq!((job.attempt(), job.pod_uids(), images(&job)), (1, pods, image.clone()));
    // pods that the operator creates later also have the image with which the job trains
    job.trainer(1).kill();
    job.wait("whole again", |job| job["status"]["restarts"]["replaced"] == 1 && job["status"]["phase"] == "Running");
    assert_eq!(images(&job), image);
    // the operator reads the duration of the recovery in its next poll of stage 0
    let reported = job.wait("reported with its duration", |job| job["status"]["lastRecovery"].is_object());
    let recovery = &reported["status"]["lastRecovery"];
    println!("upgraded: {recovery}");
    assert!(recovery["replaced"] == true && recovery["phases"]["firstStep"].is_string(), "{recovery}");
    product.kubectl(&["delete", "pod", &job.pod(2), "--wait=false"]);
    job.wait_running(2);
    assert_eq!(images(&job), image);
    let step = job.step();
    job.wait_step(step + 5);
    drop(job);
    product.helm_install(&json!({}));
}

#[test]
#[ignore = "needs a node: make e2e"]
fn jobs_outlive_the_release_and_the_next_one_adopts_them() {
    let product = Product::take();
    let job = E2eJob::apply(&product, "orphaned", endless());
    job.wait_running(1);
    let pods = job.pod_uids();
    product.helm_uninstall();
    let step = job.step();
    job.wait_step(step + 20);
    assert_eq!(job.pod_uids(), pods);
    product.helm_install(&json!({}));
    job.wait("adopted", |job| job["status"]["progress"]["step"].as_u64() > Some(step));
    job.wait_step(job.step() + 20);
    assert_eq!((job.attempt(), job.restarts(), job.pod_uids()), (1, 0, pods), "{:#}", job.get()["status"]);
}

/// Returns the images of the job's trainers.
fn images(job: &E2eJob) -> Vec<Value> {
    let mut images: Vec<Value> = job.pods().iter().map(|pod| pod["spec"]["containers"][0]["image"].clone()).collect();
    images.dedup();
    images
}
