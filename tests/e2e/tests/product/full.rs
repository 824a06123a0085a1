//! A full volume: training continues, and the status, the events and the logs report that saving fails.

use std::fs::File;
use std::io::Write;

use serde_json::{Value, json};
use stagecoach_cluster::condition_of;
use stagecoach_e2e::{E2eJob, NAMESPACE, Product};

#[test]
#[ignore = "needs a node: make e2e"]
fn a_full_volume_stops_no_training_and_heals_by_itself() {
    let product = Product::take();
    let disk = product.node.small_disk("small", 96);
    product.node.claim(NAMESPACE, "small", disk.path());
    std::fs::create_dir_all(disk.path().join("corpus/shakespeare")).unwrap();
    std::fs::copy(
        product.volume.join("corpus/shakespeare/hamlet.txt"),
        disk.path().join("corpus/shakespeare/hamlet.txt"),
    )
    .unwrap();
    let mut job = E2eJob::apply(
        &product,
        "full",
        json!({"training": {"steps": 4000}, "storage": {"persistentVolumeClaim": {"claimName": "small"}}}),
    );
    job.folder = disk.path().join("full");
    job.wait_step(25);
    let filler = disk.path().join("filler");
    let mut file = File::create(&filler).unwrap();

    let healthy = |job: &Value| condition_of(job, "CheckpointsHealthy").unwrap_or_default();
    let reported = job.wait("reported as full", |job| {
        // the loop also fills the space that the removal of old checkpoints frees
        while file.write_all(&[0; 64 << 10]).and_then(|()| file.sync_data()).is_ok() {}
        healthy(job)["reason"] == "SavingFails"
    });
    drop(file); // the volume frees the space of a removed file when the file is closed
    assert!(healthy(&reported)["message"].as_str().unwrap().contains("No space left"), "{:#}", reported["status"]);
    let progress = |job: &Value| job["status"]["progress"]["step"].as_u64().unwrap_or_default();
    let step = progress(&reported);
    job.wait("further", |job| progress(job) > step + 5);

    std::fs::remove_file(&filler).unwrap();
    let healed = job.wait("saved again", |job| healthy(job)["status"] == "True");
    assert_eq!(healed["status"]["attempt"]["number"], 1);
    assert!(healed["status"]["checkpoint"]["step"].as_u64() > Some(step), "{:#}", healed["status"]);
    // the operator writes events after the status
    job.wait("reported by events", |_| {
        let events = job.events();
        ["SavingFails", "SavingWorksAgain"].iter().all(|reason| events.iter().any(|event| event == reason))
    });
}
