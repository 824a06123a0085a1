//! Tests of the status of a running job, of an invalid spec, and of a `status.record` that the operator can't read.

use serde_json::{Value, json};
use stagecoach_api::contract::{AuditStatus, GroupStatus, StagePhase, StageStatus, SuspectedStage};
use stagecoach_api::job::{CheckpointStatus, FloatString, ProgressStatus};
use stagecoach_cluster::until;

use crate::support::{condition_of, has_condition, shared};

#[test]
fn a_partition_that_no_longer_fits_is_reported() {
    let cluster = shared();
    let partition = json!({"strategy": "Explicit", "layers": [1, 3]});
    cluster.create("divided", json!({"pipeline": {"partition": partition}}));
    cluster.wait("divided", "accepted", |job| has_condition(job, "Accepted", "True", "Valid"));
    cluster.edit("divided", json!({"stages": 3}));
    let job = cluster.wait("divided", "reported", |job| has_condition(job, "Accepted", "True", "PartitionComputed"));
    let message = condition_of(&job, "Accepted").unwrap()["message"].to_string();
    assert!(message.contains("has 2 entries, but the pipeline has 3 chunks"), "{message}");
}

#[test]
fn gpus_that_no_stage_uses_are_reported() {
    let cluster = shared();
    let container = json!({"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 2}}});
    cluster.create("surplus", json!({"template": {"spec": {"containers": [container]}}}));
    let job = cluster.wait("surplus", "reported", |job| has_condition(job, "Accepted", "True", "SurplusGpus"));
    let message = condition_of(&job, "Accepted").unwrap()["message"].to_string();
    assert!(message.contains("asks for 2 GPUs (nvidia.com/gpu), and a stage uses only one"), "{message}");
    cluster.wait_running("surplus", 1);
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
    // the operator writes a new checkpoint to the status at once, together with the newest step; without a new
    // checkpoint, it writes the step only every 15 s
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

/// The kubelet of a node may be unreachable, or may not have probed a pod yet. The operator then relies on stage 0,
/// which reports the state of its group.
#[test]
fn a_job_is_running_while_its_group_trains_and_a_pod_is_not_ready() {
    let cluster = shared();
    cluster.create("away", json!({"stages": 2}));
    cluster.wait_running("away", 1);
    let at = 1_700_000_000_000;
    let group = GroupStatus {
        incarnations: vec![Some(0), Some(0)],
        joined_at: at,
        loaded_at: at + 20,
        first_step_at: at + 50,
        ..GroupStatus::default()
    };
    let progress = ProgressStatus { step: 3, ..ProgressStatus::default() };
    let status = StageStatus { phase: StagePhase::Training, progress, group: Some(group), ..StageStatus::default() };
    cluster.kubelet.pod("away-0-1").set_status(status);
    cluster.wait("away", "at step 3", |job| job["status"]["progress"]["step"] == 3);
    cluster.kubelet.pod("away-1-1").set_ready(false);
    let is_unready = |pod: Value| (condition_of(&pod, "Ready")?["status"] == "False").then_some(());
    let pod = "/api/v1/namespaces/default/pods/away-1-1";
    until("the pod to be unready", || cluster.plane.get(pod).and_then(is_unready));
    let job = cluster.edit_and_wait("away", json!({"ttlSecondsAfterFinished": 3600}));
    assert_eq!((&job["status"]["phase"], &job["status"]["readyStages"]), (&json!("Running"), &json!(2)));
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
    let is_reported = |job: &Value| has_condition(job, "Reproducible", "False", "EnvironmentChanged");
    let job = cluster.wait("mixed", "not reproducible", is_reported);
    let message = condition_of(&job, "Reproducible").unwrap()["message"].to_string();
    assert!(message.contains("threads 2 instead of 1"), "{message}");
    // the condition stays while stage 0 of the next attempt has not answered yet
    cluster.kubelet.pod("mixed-1-1").exit(1, "");
    assert!(is_reported(&cluster.wait_running("mixed", 2)));
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
    let is_reported = |job: &Value| has_condition(job, "AuditsEqual", "False", "StageDiffers");
    let job = cluster.wait("suspected", "a difference", is_reported);
    let message = condition_of(&job, "AuditsEqual").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("audit of step 20: they differ; pod suspected-1-1 is on node "), "{message}");
    // the condition stays although stage 0 of the next attempt has audited nothing
    cluster.kubelet.pod("suspected-1-1").exit(1, "");
    let job = cluster.wait_running("suspected", 2);
    assert_eq!(condition_of(&job, "AuditsEqual").unwrap()["message"], message);
}

#[test]
fn failing_saves_are_reported_and_restart_nothing() {
    let cluster = shared();
    cluster.create("unsaved", json!({}));
    cluster.wait_running("unsaved", 1);
    let training = |step| StageStatus {
        phase: StagePhase::Training,
        progress: ProgressStatus { step, ..ProgressStatus::default() },
        ..StageStatus::default()
    };
    let stage_0 = cluster.kubelet.pod("unsaved-0-1");
    let message = Some("the checkpoint of step 4 failed: no space left on device".to_owned());
    stage_0.set_status(StageStatus { save_failure: message, ..training(5) });
    let job =
        cluster.wait("unsaved", "unhealthy", |job| has_condition(job, "CheckpointsHealthy", "False", "SavingFails"));
    let condition = condition_of(&job, "CheckpointsHealthy").unwrap();
    assert_eq!(condition["message"], "the checkpoint of step 4 failed: no space left on device");
    let committed = CheckpointStatus { step: 8, ..CheckpointStatus::default() };
    stage_0.set_status(StageStatus { checkpoint: Some(committed), ..training(9) });
    let job =
        cluster.wait("unsaved", "healthy again", |job| has_condition(job, "CheckpointsHealthy", "True", "Committed"));
    assert_eq!(job["status"]["attempt"]["number"], 1);
    until("both events", || {
        let events = cluster.events("unsaved");
        ["SavingFails", "SavingWorksAgain"].iter().all(|reason| events.iter().any(|e| e == reason)).then_some(())
    });
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

#[test]
fn an_unreadable_record_stops_only_this_job() {
    let cluster = shared();
    cluster.create("garbled", json!({"suspend": true}));
    cluster.wait_phase("garbled", "Suspended");
    let garbage = json!({"status": {"record": r#"{"doing": 7}"#}});
    cluster.plane.client().patch(&format!("{}/status", crate::support::path("garbled")), &garbage).unwrap();
    cluster.edit("garbled", json!({"suspend": false}));
    let job = cluster.wait("garbled", "refused", |job| has_condition(job, "Accepted", "False", "UnknownRecord"));
    assert!(condition_of(&job, "Accepted").unwrap()["message"].to_string().contains("status.record"));
    assert!(cluster.pods("garbled").is_empty());
    cluster.create("after-it", json!({}));
    cluster.wait_running("after-it", 1);
}
