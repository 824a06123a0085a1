//! Tests of two jobs that name the same folder of one claim: one job holds the folder, and the other job waits.

use serde_json::{Value, json};

use crate::support::{condition_of, has_condition, path, shared};

fn in_folder(folder: &str) -> Value {
    json!({"storage": {"path": folder}})
}

#[test]
fn a_second_job_of_a_folder_waits_until_the_first_is_over() {
    let cluster = shared();
    let refused = |name: &str| {
        let job = cluster.wait(name, "refused", |job| has_condition(job, "Accepted", "False", "FolderTaken"));
        condition_of(&job, "Accepted").unwrap()["message"].as_str().unwrap().to_owned()
    };
    cluster.create("first-there", in_folder("one-folder"));
    cluster.wait_running("first-there", 1);
    cluster.create("second-there", in_folder("./one-folder//"));
    let message = refused("second-there");
    assert!(message.starts_with("the job first-there has the folder \"one-folder\" of claim training"), "{message}");
    assert!(cluster.pods("second-there").is_empty());
    // the pods of a running job are kept when the operator rejects the job's new folder
    cluster.create("moved-there", json!({}));
    cluster.wait_running("moved-there", 1);
    cluster.edit("moved-there", in_folder("one-folder"));
    assert!(refused("moved-there").contains("job first-there"));
    cluster.plane.client().delete(&path("moved-there"));

    cluster.finish("first-there", 1, 2);
    cluster.wait_phase("first-there", "Complete");
    let job = cluster.wait_running("second-there", 1);
    assert!(has_condition(&job, "Accepted", "True", "Valid"), "{:#}", job["status"]);
    cluster.create("third-there", in_folder("one-folder"));
    assert!(refused("third-there").contains("job second-there"));
    cluster.plane.client().delete(&path("second-there"));
    cluster.wait_running("third-there", 1);
    assert_eq!(cluster.job("first-there").unwrap()["status"]["restarts"]["total"], 0);
}
