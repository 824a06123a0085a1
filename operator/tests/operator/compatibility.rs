//! Tests of operators, CRDs and trainers of other versions. The operator writes the job file of a running job in the
//! form that the job's trainer understands.

use std::path::PathBuf;

use serde_json::{Value, json};
use stagecoach_cluster::until;

use crate::support::{TestCluster, condition_of, config_map, exclusive, has_condition, path, shared};

/// Returns the job file that the stages of an attempt read.
fn job_file(cluster: &TestCluster, job: &str, attempt: u64) -> Value {
    let found = cluster.plane.get(&config_map(job, attempt)).unwrap();
    serde_json::from_str(found["data"]["job.yaml"].as_str().unwrap()).unwrap()
}

#[test]
fn a_newer_crd_stops_no_older_operator() {
    let cluster = exclusive();
    let client = cluster.plane.client();
    cluster.create("before", json!({}));
    cluster.wait_running("before", 1);

    let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pipelinejobs.stagecoach.dev";
    let at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/pipeline/properties/ofANewerVersion";
    let newer = json!({"type": "integer", "default": 7});
    client.patch(crd, &json!([{"op": "add", "path": at, "value": newer}])).unwrap();
    let is_newer = |job: &Value| job["spec"]["pipeline"]["ofANewerVersion"] == 7;
    until("the newer CRD to be served", || cluster.job("before").filter(is_newer));
    // the operator handles a failure of a job from before the change; a change of the spec that needs no new attempt
    // starts no attempt
    cluster.kubelet.pod("before-1-1").exit(1, "");
    cluster.wait_running("before", 2);
    cluster.edit("before", json!({"restart": {"maxRestarts": 7}}));
    let job = cluster.wait("before", "left running", |job| job["status"]["restarts"]["budgetLeft"] == 6);
    assert_eq!((&job["status"]["attempt"]["number"], &job["status"]["phase"]), (&json!(2), &json!("Running")));
    // a new job runs, and its status names the unknown fields, which have no effect
    cluster.create("after", json!({}));
    cluster.wait_running("after", 1);
    // a watch that was opened before the CRD changed delivers each object in the older form until the object changes; a
    // new watch delivers the present form
    cluster.kill_operator();
    cluster.run_operator(&[]);
    let job = cluster.wait("after", "reported", |job| has_condition(job, "Accepted", "True", "UnknownFields"));
    let message = condition_of(&job, "Accepted").unwrap()["message"].to_string();
    assert!(message.contains("spec.pipeline.ofANewerVersion"), "{message}");
    assert_eq!(job_file(&cluster, "after", 1)["spec"]["pipeline"], Value::Null);

    client.patch(crd, &json!([{"op": "remove", "path": at}])).unwrap();
    until("the CRD of before to be served", || cluster.job("before").filter(|job| !is_newer(job)));
    cluster.kubelet.pod("before-1-2").exit(1, "");
    cluster.wait_running("before", 3);
    for job in ["before", "after"] {
        client.delete(&path(job));
    }
}

#[test]
fn a_job_that_trains_keeps_its_config_in_the_form_of_its_image() {
    let (cluster, job) = (shared(), "forms/job");
    cluster.create_namespace("forms");
    let _operator = cluster.operator(cluster.kubeconfig(), &[("STAGECOACH_NAMESPACES", "forms")]);
    cluster.create(job, json!({}));
    cluster.wait_running(job, 1);
    cluster.train_to(job, 1, 1);
    // write the file as an operator of another version would write it for its trainer
    let written = config_map(job, 1);
    let mut config_map = cluster.plane.get(&written).unwrap();
    let mut file = job_file(cluster, job, 1);
    file["spec"]["pipeline"]["ofAnotherVersion"] = json!(7);
    config_map["data"]["job.yaml"] = file.to_string().into();
    config_map["metadata"].as_object_mut().unwrap().retain(|name, _| name != "resourceVersion" && name != "uid");
    cluster.plane.client().delete(&written);
    cluster.plane.client().create("/api/v1/namespaces/forms/configmaps", &config_map).unwrap();

    cluster.kubelet.pod(&format!("{job}-1-1")).exit(1, "");
    cluster.wait_running(job, 2);
    assert_eq!(job_file(cluster, job, 2)["spec"]["pipeline"]["ofAnotherVersion"], 7);
    cluster.edit(job, json!({"stages": 3, "restart": {"stallTimeoutSeconds": 77}}));
    cluster.wait_running(job, 3);
    let file = job_file(cluster, job, 3);
    assert_eq!((&file["spec"]["stages"], &file["spec"]["pipeline"]["ofAnotherVersion"]), (&json!(3), &json!(7)));
    assert_eq!(file["spec"]["restart"]["stallTimeoutSeconds"], 77);
    // unlike the changes above, this change makes the operator use its own trainer image, and write the job file in the
    // form of this version
    cluster.edit(job, json!({"checkpoint": {"everySteps": 7}}));
    cluster.wait_running(job, 4);
    let file = job_file(cluster, job, 4);
    assert_eq!((&file["spec"]["pipeline"], &file["spec"]["checkpoint"]["everySteps"]), (&Value::Null, &json!(7)));
}

/// Returns the path of the next version's operator or CRD, which `make test-kubernetes` builds from this tree with the
/// feature `next-version`.
fn next_version(file: &str) -> PathBuf {
    let folder =
        std::env::var_os("STAGECOACH_NEXT_VERSION").expect("STAGECOACH_NEXT_VERSION: see `make test-kubernetes`");
    PathBuf::from(folder).join(file)
}

/// Whether a trainer of this version can read the job file of an attempt.
fn is_read(cluster: &TestCluster, job: &str, attempt: u64) -> bool {
    stagecoach_api::parse(&job_file(cluster, job, attempt).to_string(), "job.yaml").is_ok()
}

#[test]
fn this_version_and_the_next_take_turns_at_jobs_that_train() {
    let cluster = exclusive();
    let image = |job: &str, attempt: u64| {
        let pod = cluster.plane.get(&format!("/api/v1/namespaces/default/pods/{job}-0-{attempt}")).unwrap();
        pod["spec"]["containers"][0]["image"].clone()
    };
    let patient = json!({"restart": {"maxRestarts": 9}});
    cluster.create("rolling", patient.clone());
    cluster.wait_running("rolling", 1);
    cluster.train_to("rolling", 1, 1);

    // an upgrade changes the CRD first
    let own_crd = stagecoach_api::crd::manifest().unwrap();
    cluster.plane.apply(&std::fs::read_to_string(next_version("crd.yaml")).unwrap());
    let is_newer = |job: &Value| job["spec"]["pipeline"]["ofNextVersion"] == 7;
    until("the next version's CRD to be served", || cluster.job("rolling").filter(is_newer));
    cluster.kubelet.pod("rolling-1-1").exit(1, "");
    cluster.wait_running("rolling", 2);
    cluster.train_to("rolling", 2, 2);

    // the operator of the next version takes over in the middle of a restart, and keeps the job's trainer
    cluster.kubelet.pod("rolling-1-2").exit(1, "");
    cluster.wait("rolling", "restarting", |job| job["status"]["attempt"]["number"] == 3);
    cluster.kill_operator();
    let start_next = || {
        let env = [("STAGECOACH_TRAINER_IMAGE", "example.com/trainer:2")];
        cluster.operator_of(&next_version("stagecoach-operator"), cluster.kubeconfig(), &env)
    };
    let next = start_next();
    cluster.wait_running("rolling", 3);
    cluster.train_to("rolling", 3, 3);
    cluster.kubelet.pod("rolling-1-3").exit(1, "");
    cluster.wait_running("rolling", 4);
    assert!(is_read(&cluster, "rolling", 4), "{:#}", job_file(&cluster, "rolling", 4));
    assert_eq!(image("rolling", 4), "example.com/trainer:1");
    // an older trainer also reads the defaults that the next version writes
    cluster.create("defaults", patient.clone());
    let mut newer = patient;
    newer["pipeline"] = json!({"ofNextVersion": 9});
    cluster.create("newer", newer);
    for job in ["defaults", "newer"] {
        cluster.wait_running(job, 1);
        cluster.train_to(job, 1, 1);
    }
    assert!(is_read(&cluster, "defaults", 1) && !is_read(&cluster, "newer", 1));

    // after a rollback in the middle of a restart, each job keeps its trainer and the form of its file
    for job in ["defaults-1-1", "newer-1-1", "rolling-1-4"] {
        cluster.kubelet.pod(job).exit(1, "");
    }
    cluster.wait("newer", "restarting", |job| job["status"]["attempt"]["number"] == 2);
    drop(next);
    cluster.run_operator(&[]);
    for (job, attempt) in [("defaults", 2), ("newer", 2), ("rolling", 5)] {
        cluster.wait_running(job, attempt);
    }
    assert_eq!(job_file(&cluster, "newer", 2)["spec"]["pipeline"]["ofNextVersion"], 9);
    assert_eq!(
        (image("newer", 2), image("rolling", 5)),
        (json!("example.com/trainer:2"), json!("example.com/trainer:1"))
    );

    // upgrade again, while all jobs run
    cluster.train_to("newer", 2, 2);
    cluster.kill_operator();
    let next = start_next();
    cluster.kubelet.pod("newer-1-2").exit(1, "");
    cluster.wait_running("newer", 3);
    assert_eq!(job_file(&cluster, "newer", 3)["spec"]["pipeline"]["ofNextVersion"], 9);
    drop(next);
    cluster.run_operator(&[]);
    for job in ["rolling", "defaults", "newer"] {
        cluster.plane.client().delete(&path(job));
    }
    cluster.plane.apply(&own_crd);
    cluster.create("after", json!({}));
    until("the CRD of before to be served", || cluster.job("after").filter(|job| !is_newer(job)));
    cluster.plane.client().delete(&path("after"));
}

#[test]
fn what_another_version_accepted_is_handled_on() {
    let (cluster, job) = (shared(), "accepted/job");
    cluster.create_namespace("accepted");
    let operator = || cluster.operator(cluster.kubeconfig(), &[("STAGECOACH_NAMESPACES", "accepted")]);
    let first = operator();
    cluster.create("accepted/other", json!({}));
    let status = cluster.wait_running("accepted/other", 1)["status"].clone();
    drop(first);
    // earlier versions accepted the volume's root as a job's folder
    cluster.create(job, json!({"storage": {"path": "."}}));
    cluster.create("accepted/new", json!({"storage": {"path": "."}}));
    cluster.plane.client().patch(&format!("{}/status", path(job)), &json!({ "status": status })).unwrap();
    let _second = operator();
    // no pods exist for the attempt in the copied status, so the operator starts the next attempt
    let job = cluster.wait_running(job, 2);
    assert!(has_condition(&job, "Accepted", "True", "Valid"), "{:#}", job["status"]);
    cluster.wait("accepted/new", "refused", |job| has_condition(job, "Accepted", "False", "InvalidSpec"));
}
