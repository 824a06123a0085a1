//! The lifecycle of a job: creation, completion, scaling, suspension, deletion. Causes of failures are in `failures.rs`.

use crate::support::{condition_of, has_condition, path, shared};
use serde_json::{Value, json};
use stagecoach_api::contract::{AuditStatus, StageStatus, SuspectedStage};
use stagecoach_api::job::{CheckpointStatus, FloatString, ProgressStatus};
use stagecoach_cluster::until;

fn finish(name: &str, attempt: u64, stages: u32) {
    for stage in 0..stages {
        shared().kubelet.pod(&format!("{name}-{stage}-{attempt}")).exit(0, "");
    }
}

#[test]
fn a_job_runs_and_completes() {
    let cluster = shared();
    cluster.create("plain", json!({}));
    let job = cluster.wait_running("plain", 1);
    assert_eq!(job["status"]["stages"], 2);
    assert_eq!(job["status"]["attempt"]["image"], "example.com/trainer:1");
    assert!(has_condition(&job, "Running", "True", "AllReady"), "{:#}", job["status"]);
    finish("plain", 1, 2);
    let job = cluster.wait_phase("plain", "Complete");
    assert!(has_condition(&job, "Complete", "True", "Complete"));
    assert!(job["status"]["completionTime"].is_string());
    until("its events", 10, || (cluster.events("plain") == ["AttemptStarted", "Running", "Complete"]).then_some(()));
    // its pods are kept for their logs, and deleted with it
    assert_eq!(cluster.pods("plain").len(), 2);
    cluster.plane.client().delete(&path("plain"));
    until("the pods to go with their job", 60, || cluster.pods("plain").is_empty().then_some(()));
}

#[test]
fn the_objects_of_a_job_are_created_before_its_pods_and_owned_by_it() {
    let cluster = shared();
    let job =
        cluster.create("owned", json!({"template": {"metadata": {"labels": {"kueue.x-k8s.io/pod-group-name": "g"}}}}));
    cluster.wait_running("owned", 1);
    let objects = [
        "/api/v1/namespaces/default/services/owned",
        "/api/v1/namespaces/default/configmaps/owned-1",
        "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies/owned",
        "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups/owned-1",
        "/api/v1/namespaces/default/pods/owned-0-1",
        "/api/v1/namespaces/default/pods/owned-1-1",
    ];
    for object in objects {
        let there = cluster.plane.get(object).unwrap_or_else(|| panic!("{object} does not exist"));
        let owner = &there["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["uid"], &owner["controller"]), (&job["metadata"]["uid"], &json!(true)), "{object}");
    }
    let pods = cluster.pods("owned");
    assert!(pods.iter().all(|pod| pod["spec"]["schedulingGroup"]["podGroupName"] == "owned-1"));
    assert!(pods.iter().all(|pod| pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] == "g"));
    let service = cluster.plane.get(objects[0]).unwrap();
    assert_eq!(service["spec"]["selector"]["stagecoach.dev/stage"], "0");
    assert_eq!(service["spec"]["selector"]["stagecoach.dev/attempt"], "1");
}

#[test]
fn a_partition_that_no_longer_fits_is_told() {
    let cluster = shared();
    let partition = json!({"strategy": "Explicit", "layers": [1, 3]});
    cluster.create("divided", json!({"pipeline": {"partition": partition}}));
    cluster.wait("divided", "accepted", |job| has_condition(job, "Accepted", "True", "Valid"));
    cluster.edit("divided", json!({"stages": 3}));
    let job = cluster.wait("divided", "told", |job| has_condition(job, "Accepted", "True", "PartitionComputed"));
    let message = condition_of(&job, "Accepted").unwrap()["message"].to_string();
    assert!(message.contains("has 2 entries and the pipeline 3 chunks"), "{message}");
}

#[test]
fn progress_and_checkpoints_are_in_the_status() {
    let cluster = shared();
    cluster.create("shown", json!({}));
    cluster.wait_running("shown", 1);
    let progress = |step| ProgressStatus {
        step,
        steps: Some(100),
        loss: Some(FloatString(f64::NAN)),
        ..ProgressStatus::default()
    };
    let status = |step, checkpoint| StageStatus {
        progress: progress(step),
        checkpoint: Some(CheckpointStatus { step: checkpoint, attempt: Some(1), ..CheckpointStatus::default() }),
        phase: stagecoach_api::contract::StagePhase::Training,
        ..StageStatus::default()
    };
    let stage_0 = cluster.kubelet.pod("shown-0-1");
    stage_0.set_status(status(7, 5));
    let job = cluster.wait("shown", "at step 7", |job| job["status"]["progress"]["step"] == 7);
    assert_eq!(job["status"]["progress"]["loss"], "NaN");
    assert_eq!(job["status"]["checkpoint"]["step"], 5);
    assert!(has_condition(&job, "Progressing", "True", "Training"));
    assert!(has_condition(&job, "CheckpointsHealthy", "True", "Committed"));
    // a new checkpoint is written at once, steps every 15 s: the step that is written with it is the newest
    stage_0.set_status(status(8, 5));
    stage_0.set_status(status(12, 10));
    let job = cluster.wait("shown", "checkpointed", |job| job["status"]["checkpoint"]["step"] == 10);
    assert_eq!(job["status"]["progress"]["step"], 12);
    cluster.kubelet.pod("shown-1-1").exit(1, "");
    let job = cluster.wait_running("shown", 2);
    assert_eq!(job["status"]["checkpoint"]["step"], 10);
    assert_eq!(job["status"]["restarts"], json!({"total": 1, "counted": 1, "replaced": 0, "budgetLeft": 2}));
    // a newer checkpoint resets the restart budget
    cluster.kubelet.pod("shown-0-2").set_status(status(22, 20));
    let refilled = |job: &Value| job["status"]["restarts"]["budgetLeft"] == 3;
    cluster.wait("shown", "refilled", refilled);
}

#[test]
fn another_environment_is_a_condition_that_stays() {
    let cluster = shared();
    cluster.create("mixed", json!({}));
    cluster.wait_running("mixed", 1);
    let status = |differences: &[&str]| StageStatus {
        phase: stagecoach_api::contract::StagePhase::Training,
        environment_differences: Some(differences.iter().map(|&text| text.to_owned()).collect()),
        ..StageStatus::default()
    };
    let stage_0 = cluster.kubelet.pod("mixed-0-1");
    stage_0.set_status(status(&[]));
    cluster.wait("mixed", "reproducible", |job| has_condition(job, "Reproducible", "True", "OneEnvironment"));
    stage_0.set_status(status(&["threads 2 instead of 1"]));
    let is_told = |job: &Value| has_condition(job, "Reproducible", "False", "EnvironmentChanged");
    let job = cluster.wait("mixed", "not reproducible", is_told);
    let message = condition_of(&job, "Reproducible").unwrap()["message"].to_string();
    assert!(message.contains("threads 2 instead of 1"), "{message}");
    // the next stage 0 has not answered yet
    cluster.kubelet.pod("mixed-1-1").exit(1, "");
    assert!(is_told(&cluster.wait_running("mixed", 2)));
}

#[test]
fn a_stage_that_an_audit_suspects_is_named_with_its_node_in_a_condition_that_stays() {
    let cluster = shared();
    cluster.create("suspected", json!({"training": {"audit": {"everySteps": 10}}}));
    cluster.wait_running("suspected", 1);
    let status = |audit: AuditStatus| StageStatus {
        phase: stagecoach_api::contract::StagePhase::Training,
        audit: Some(audit),
        ..StageStatus::default()
    };
    cluster.wait("suspected", "nothing was audited", |job| has_condition(job, "AuditsEqual", "Unknown", "NoneYet"));
    let stage_0 = cluster.kubelet.pod("suspected-0-1");
    stage_0.set_status(status(AuditStatus::default()));
    cluster.wait("suspected", "equal", |job| has_condition(job, "AuditsEqual", "True", "Equal"));
    let suspects = vec![SuspectedStage { stage: 1, incarnation: 0 }];
    stage_0.set_status(status(AuditStatus { differences: vec!["audit of step 20: they differ".into()], suspects }));
    let is_told = |job: &Value| has_condition(job, "AuditsEqual", "False", "StageDiffers");
    let job = cluster.wait("suspected", "a difference", is_told);
    let message = condition_of(&job, "AuditsEqual").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("audit of step 20: they differ; pod suspected-1-1 is on node "), "{message}");
    // the next stage 0 has audited nothing
    cluster.kubelet.pod("suspected-1-1").exit(1, "");
    let job = cluster.wait_running("suspected", 2);
    assert_eq!(condition_of(&job, "AuditsEqual").unwrap()["message"], message);
}

#[test]
fn scaling_drains_the_job_and_starts_an_attempt_with_the_new_stages() {
    let cluster = shared();
    cluster.create("scaled", json!({}));
    cluster.wait_running("scaled", 1);
    let scale = json!({"spec": {"replicas": 3}});
    let scaled = format!("{}/scale", path("scaled"));
    cluster.plane.client().patch(&scaled, &scale).unwrap_or_else(|e| panic!("{e}"));
    let job = cluster.wait_running("scaled", 2);
    assert_eq!(job["status"]["attempt"]["stages"], 3);
    assert_eq!(job["status"]["restarts"]["total"], 0, "a wish is no failure");
    let pods: Vec<Value> = cluster.pods("scaled").iter().map(|pod| pod["metadata"]["name"].clone()).collect();
    assert_eq!(pods, ["scaled-0-2", "scaled-1-2", "scaled-2-2"]);
    // only the newest blueprint is kept
    until("the old ConfigMap to go", 30, || {
        cluster.plane.get("/api/v1/namespaces/default/configmaps/scaled-1").is_none().then_some(())
    });
    assert!(cluster.plane.get("/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups/scaled-1").is_none());
    let service = cluster.plane.get("/api/v1/namespaces/default/services/scaled").unwrap();
    assert_eq!(service["spec"]["selector"]["stagecoach.dev/attempt"], "2");
}

#[test]
fn a_stage_that_was_still_starting_holds_up_no_restart() {
    let cluster = shared();
    let slow = json!({
        "metadata": {"annotations": {"stagecoach.test/behaviour": "run 3600000"}},
        "spec": {"terminationGracePeriodSeconds": 99},
    });
    cluster.create("starting", json!({"template": slow, "stages": 3}));
    cluster.wait_running("starting", 1);
    cluster.kubelet.pod("starting-1-1").set_ready(false);
    cluster.wait("starting", "with a stage that is not ready", |job| job["status"]["readyStages"] == 2);
    cluster.kubelet.pod("starting-0-1").exit(1, "");
    // the other is given time to write down how it ends
    for (name, grace_seconds) in [("starting-1-1", 1), ("starting-2-1", 10)] {
        let pod = cluster.kubelet.pod(name);
        assert_eq!(until("its end to be asked for", 30, || pod.grace_seconds()), grace_seconds, "{name}");
        pod.exit(143, "");
    }
    cluster.wait_running("starting", 2);
}

#[test]
fn a_drain_has_the_grace_period_that_its_attempt_was_started_with() {
    let cluster = shared();
    let slow = json!({"metadata": {"annotations": {"stagecoach.test/behaviour": "run 3600000"}}});
    cluster.create("graceful", json!({"template": slow, "stages": 1}));
    cluster.edit("graceful", json!({"template": {"spec": {"terminationGracePeriodSeconds": 777}}}));
    let grace = |pod: &Value| pod["spec"]["terminationGracePeriodSeconds"] == 777;
    cluster.wait("graceful", "running with its grace", |job| {
        job["status"]["phase"] == "Running" && cluster.pods("graceful").iter().all(grace)
    });
    cluster.edit("graceful", json!({"template": {"spec": {"terminationGracePeriodSeconds": 1}}}));
    cluster.wait_phase("graceful", "Draining");
    let pod = until("its pod to terminate", 30, || {
        cluster.pods("graceful").into_iter().find(|pod| pod["metadata"]["deletionTimestamp"].is_string())
    });
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 777);
    cluster.kubelet.pod(pod["metadata"]["name"].as_str().unwrap()).exit(143, "");
    let pods = |job: &Value| job["status"]["phase"] == "Running" && !cluster.pods("graceful").iter().any(grace);
    cluster.wait("graceful", "running with the new grace", pods);
}

#[test]
fn a_job_created_suspended_waits_and_its_template_may_be_edited() {
    let cluster = shared();
    cluster.create("queued", json!({"suspend": true}));
    let job = cluster.wait_phase("queued", "Suspended");
    assert!(has_condition(&job, "Suspended", "True", "Suspended"));
    assert!(cluster.pods("queued").is_empty());
    cluster.edit("queued", json!({"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}}}));
    cluster.edit("queued", json!({"suspend": false}));
    cluster.wait_running("queued", 1);
    assert!(cluster.pods("queued").iter().all(|pod| pod["spec"]["nodeName"] == "node-1"));
    // suspended again, it saves and terminates
    cluster.edit("queued", json!({"suspend": true}));
    cluster.wait_phase("queued", "Suspended");
    until("the pods to go", 60, || cluster.pods("queued").is_empty().then_some(()));
    cluster.edit("queued", json!({"suspend": false}));
    let job = cluster.wait_running("queued", 2);
    assert_eq!(job["status"]["restarts"]["total"], 0);
}

#[test]
fn a_finished_job_is_deleted_after_its_ttl() {
    let cluster = shared();
    cluster.create("brief", json!({"ttlSecondsAfterFinished": 3600}));
    cluster.wait_running("brief", 1);
    finish("brief", 1, 2);
    cluster.wait_phase("brief", "Complete");
    // it stays until it has been seen; then it has finished long enough ago
    cluster.edit("brief", json!({"ttlSecondsAfterFinished": 0}));
    until("the job to go", 60, || cluster.job("brief").is_none().then_some(()));
    until("its pods to go", 60, || cluster.pods("brief").is_empty().then_some(()));
}

#[test]
fn a_deadline_ends_a_job() {
    let cluster = shared();
    cluster.create("late", json!({"activeDeadlineSeconds": 3}));
    let job = cluster.wait_phase("late", "Failed");
    assert!(has_condition(&job, "Failed", "True", "DeadlineExceeded"));
    until("the pods to be deleted", 60, || cluster.pods("late").is_empty().then_some(()));
}

#[test]
fn a_job_managed_by_another_controller_is_left_alone() {
    let cluster = shared();
    cluster.create("others", json!({"managedBy": "kueue.x-k8s.io/multikueue"}));
    cluster.create("ours-after-it", json!({}));
    cluster.wait_running("ours-after-it", 1);
    assert_eq!(cluster.job("others").unwrap()["status"], Value::Null);
    assert!(cluster.pods("others").is_empty());
}

#[test]
fn an_object_that_the_job_does_not_own_is_never_modified() {
    let cluster = shared();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "taken"},
        "spec": {"ports": [{"port": 1}], "selector": {"app": "other"}}});
    let services = "/api/v1/namespaces/default/services";
    cluster.plane.client().create(services, &service).unwrap();
    cluster.create("taken", json!({}));
    let job = cluster.wait("taken", "refused", |job| has_condition(job, "Scheduled", "False", "NameTaken"));
    let message = condition_of(&job, "Scheduled").unwrap()["message"].clone();
    assert!(
        message.as_str().unwrap().contains("the Service taken exists and does not belong to this job"),
        "{message}"
    );
    assert!(cluster.pods("taken").is_empty());
    let there = cluster.plane.get(&format!("{services}/taken")).unwrap();
    assert_eq!(there["spec"]["selector"], json!({"app": "other"}));
    cluster.plane.client().delete(&format!("{services}/taken"));
    cluster.wait_running("taken", 1);
}

#[test]
fn a_custom_trainer_gets_the_environment_and_no_config() {
    let cluster = shared();
    let own = json!({"containers": [{"name": "trainer", "image": "torch", "command": ["python", "train.py"]}, {"name": "logs", "image": "tail"}]});
    let spec = json!({"trainer": {"type": "Custom"}, "model": null, "data": null, "training": null, "template": {"spec": own}});
    cluster.create("own", spec);
    cluster.wait_running("own", 1);
    let view = cluster.kubelet.pod("own-1-1").view();
    assert_eq!(view.env["RANK"], "1");
    assert_eq!(view.env["WORLD_SIZE"], "2");
    assert_eq!((view.env["MASTER_ADDR"].as_str(), view.env["MASTER_PORT"].as_str()), ("own", "29500"));
    let pod = &cluster.pods("own")[0];
    assert!(!pod["spec"]["volumes"].to_string().contains("stagecoach-config"));
    finish("own", 1, 2);
    cluster.wait_phase("own", "Complete");
}

#[test]
fn a_sidecar_keeps_no_pod_of_a_finished_job() {
    let cluster = shared();
    let sidecar = json!({"containers": [{"name": "trainer"}, {"name": "mesh", "image": "mesh:1"}]});
    cluster.create("meshed", json!({"template": {"spec": sidecar}}));
    cluster.wait_running("meshed", 1);
    finish("meshed", 1, 2);
    cluster.wait_phase("meshed", "Complete");
    until("the pods to go", 60, || cluster.pods("meshed").is_empty().then_some(()));
    assert_eq!(cluster.job("meshed").unwrap()["status"]["phase"], "Complete");
    // the same after a failure that is final
    cluster.create("broken", json!({"template": {"spec": sidecar}, "restart": {"maxRestarts": 0}}));
    cluster.wait_running("broken", 1);
    cluster.kubelet.pod("broken-0-1").log("the last words");
    cluster.kubelet.pod("broken-0-1").exit(1, "");
    cluster.wait_phase("broken", "Failed");
    let read = |job: &Value| job["status"]["lastFailure"]["logTail"] == "the last words\n";
    cluster.wait("broken", "read", read);
    until("the pods to go", 60, || cluster.pods("broken").is_empty().then_some(()));
}

#[test]
fn a_native_sidecar_ends_by_itself_and_its_pod_stays() {
    let cluster = shared();
    let sidecar = json!([{"name": "logs", "image": "logs:1", "restartPolicy": "Always", "command": ["run", "2000"]}]);
    cluster.create("shipped", json!({"template": {"spec": {"initContainers": sidecar}}}));
    cluster.wait_running("shipped", 1);
    finish("shipped", 1, 2);
    cluster.wait_phase("shipped", "Complete");
    until("the sidecars to end", 60, || {
        let pods = cluster.pods("shipped");
        assert_eq!(pods.len(), 2, "a pod was deleted while its sidecar ended");
        let is_over =
            |pod: &Value| pod["status"]["phase"] == "Succeeded" && pod["metadata"]["deletionTimestamp"].is_null();
        pods.iter().all(is_over).then_some(())
    });
}

/// A mesh injects by admission. Here the API server does so itself, to pods with a label of these tests.
#[test]
fn a_job_stays_out_of_a_mesh_or_ends_in_spite_of_it() {
    let cluster = shared();
    let api = "/apis/admissionregistration.k8s.io/v1";
    let inject = r#"[JSONPatch{op: "add", path: "/spec/containers/-", value: Object.spec.containers{name: "mesh", image: "mesh:1"}}]"#;
    let label = |name: &str, value: &str| {
        format!(
            "has(object.metadata.labels) && '{name}' in object.metadata.labels && object.metadata.labels['{name}'] == '{value}'"
        )
    };
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": "mesh"},
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]},
            "matchConditions": [
                {"name": "in-the-mesh", "expression": label("mesh", "on")},
                {"name": "not-out", "expression": format!("!({})", label("sidecar.istio.io/inject", "false"))},
            ],
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": inject}}],
        },
    });
    cluster.plane.client().create(&format!("{api}/mutatingadmissionpolicies"), &policy).unwrap();
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "mesh"}, "spec": {"policyName": "mesh"}});
    cluster.plane.client().create(&format!("{api}/mutatingadmissionpolicybindings"), &binding).unwrap();
    let containers = |job: &str| -> Vec<usize> {
        cluster.pods(job).iter().map(|pod| pod["spec"]["containers"].as_array().unwrap().len()).collect()
    };
    let probe = json!({"metadata": {"name": "probe", "labels": {"mesh": "on"}}, "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "nowhere"}});
    until("the policy to hold", 60, || {
        let pods = "/api/v1/namespaces/default/pods?dryRun=All";
        let pod = cluster.plane.client().create(pods, &probe).unwrap();
        (pod["spec"]["containers"].as_array().unwrap().len() == 2).then_some(())
    });

    let labels = |labels: Value| json!({"template": {"metadata": {"labels": labels}}});
    cluster.create("outside", labels(json!({"mesh": "on", "sidecar.istio.io/inject": "false"})));
    cluster.wait_running("outside", 1);
    assert_eq!(containers("outside"), [1, 1]);
    cluster.create("inside", labels(json!({"mesh": "on"})));
    cluster.wait_running("inside", 1);
    assert_eq!(containers("inside"), [2, 2]);
    // a restart does not wait for the sidecars, and in the end they keep no pod
    cluster.kubelet.pod("inside-1-1").exit(1, "");
    cluster.wait_running("inside", 2);
    finish("inside", 2, 2);
    cluster.wait_phase("inside", "Complete");
    until("the pods to go", 60, || cluster.pods("inside").is_empty().then_some(()));
}

#[test]
fn an_exceeded_quota_is_reported_and_retried() {
    let cluster = shared();
    cluster.create_namespace("small");
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}});
    cluster.plane.client().create("/api/v1/namespaces/small/resourcequotas", &quota).unwrap();
    until("the quota to be counted", 60, || {
        let quota = cluster.plane.get("/api/v1/namespaces/small/resourcequotas/none")?;
        quota["status"]["used"]["pods"].is_string().then_some(())
    });
    cluster.create("small/big", json!({}));
    let job = cluster.wait("small/big", "refused", |job| has_condition(job, "Scheduled", "False", "QuotaExceeded"));
    let message = condition_of(&job, "Scheduled").unwrap()["message"].to_string();
    assert!(message.contains("exceeded quota: none"), "{message}");
    // no pod holds its resources in vain, so the attempt lasts until the quota controller has seen the change
    let more = json!({"spec": {"hard": {"pods": "10"}}});
    cluster.plane.client().patch("/api/v1/namespaces/small/resourcequotas/none", &more).unwrap();
    let job = cluster.wait_running("small/big", 1);
    assert_eq!(job["status"]["restarts"]["total"], 0);
}

#[test]
fn what_only_the_operator_can_validate_is_reported_as_invalid() {
    let cluster = shared();
    let env = json!({"containers": [{"name": "trainer", "env": [{"name": "RANK", "value": "7"}]}]});
    let object = crate::support::job("wrong", json!({"template": {"spec": env}}));
    match cluster.plane.client().create("/apis/stagecoach.dev/v1alpha1/namespaces/default/pipelinejobs", &object) {
        Err(refusal) => assert!(refusal.message.contains("RANK"), "{refusal}"),
        Ok(_) => {
            let job = cluster.wait("wrong", "refused", |job| has_condition(job, "Accepted", "False", "InvalidSpec"));
            assert!(condition_of(&job, "Accepted").unwrap()["message"].to_string().contains("RANK"));
        }
    }
    assert!(cluster.pods("wrong").is_empty());
}
