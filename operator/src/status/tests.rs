//! Tests of the status of a job that ends, and of its events.

use serde_json::json;
use stagecoach_api::contract::{FailureKind, Mesh, StageStatus, TerminationMessage};
use stagecoach_api::job::{FloatString, JobPhase, condition_type};
use stagecoach_lifecycle::{Attempt, decide};

use super::*;

const SAMPLE_JOB: &str = include_str!("../../../manifests/samples/shakespeare.yaml");

/// The time 2026-01-01T00:00:12Z.
const NOW: UnixMillis = UnixMillis(1_767_225_612_000);

/// Returns a job of two stages whose first attempt runs, with the progress that stage 0 reported last.
fn running_job() -> ParsedJob {
    let state = JobState {
        attempt_phase: AttemptPhase::Running { not_before: UnixMillis(0), all_created: true },
        attempt: Attempt { number: 1, mesh: Mesh::pipeline(2), revision: 7, admission: 0, admitted_replicas: None },
        ..JobState::default()
    };
    let overrides = [("stages".to_owned(), "2".to_owned())];
    let spec = stagecoach_api::parse_with(SAMPLE_JOB, "shakespeare.yaml", &overrides).unwrap().spec;
    let status = PipelineJobStatus {
        attempt: Some(AttemptStatus { number: 1, generation: Some(1), stages: 2, ..AttemptStatus::default() }),
        progress: Some(ProgressStatus { step: 700, steps: Some(1000), ..ProgressStatus::default() }),
        record: serde_json::to_string(&state).ok(),
        ..PipelineJobStatus::default()
    };
    let metadata = json!({"name": "a", "namespace": "ml", "uid": "job", "generation": 1});
    let object = json!({"metadata": metadata, "spec": spec, "status": status}).to_string();
    crate::job::parse(&serde_json::from_str(&object).unwrap()).unwrap()
}

fn ended_pod(stage: u32, progress: Option<ProgressStatus>) -> ObservedPod {
    let message = TerminationMessage { progress, ..TerminationMessage::new(FailureKind::Done, stage, "done") };
    let owner = json!({"apiVersion": "stagecoach.dev/v1alpha1", "kind": "PipelineJob", "name": "a", "uid": "job", "controller": true});
    let labels = json!({"stagecoach.dev/stage": stage.to_string(), "stagecoach.dev/attempt": "1"});
    let terminated = json!({"exitCode": 0, "finishedAt": "2026-01-01T00:00:09Z", "message": message.to_json()});
    let object = json!({
        "metadata": {"uid": stage.to_string(), "labels": labels, "ownerReferences": [owner]},
        "status": {"containerStatuses": [{"name": "trainer", "state": {"terminated": terminated}}]},
    });
    ObservedPod::from_partial(&serde_json::from_value(object).unwrap(), "job").unwrap()
}

fn pods(all: Vec<ObservedPod>) -> ObservedPods {
    ObservedPods { all, observed_at: NOW, leader_status: None, leader_is_silent: false, awaits_spare_status: false }
}

/// Returns the status after both stages have ended with exit code 0, and the events. `last` is the progress in
/// stage 0's termination message.
fn ended(last: ProgressStatus) -> (PipelineJobStatus, Vec<events::JobEvent>) {
    let mut job = running_job();
    let pods = pods(vec![ended_pod(0, Some(last)), ended_pod(1, None)]);
    let decision = loop {
        let decision = decide(&pods.decision_input(&job, None), pods.observed_at);
        if decision.state == job.state {
            break decision;
        }
        job.state = decision.state;
    };
    let inputs = StatusInputs {
        job: &job,
        pods: &pods,
        decision: &decision,
        rejections: &Rejections::default(),
        log_tail: None,
        recovery: None,
        contested: Vec::new(),
        queue: None,
        other_operators: Vec::new(),
        field_manager: "test",
        since_last_write: None,
    };
    let status = next_status(&inputs).status;
    let events = events(&inputs, &status);
    (status, events)
}

fn reason_and_message<'a>(status: &'a PipelineJobStatus, kind: &str) -> (&'a str, &'a str) {
    let condition = status.condition(kind).unwrap();
    assert_eq!(condition.status, "True", "{kind}");
    (&condition.reason, &condition.message)
}

#[test]
fn a_job_that_ended_early_is_complete_and_says_why() {
    let why = "the held-out loss was not lower than 4.5 of step 600 in 3 evaluations in a row";
    let last = ProgressStatus {
        step: 900,
        steps: Some(1000),
        loss: Some(FloatString(4.25)),
        evaluation_loss: Some(FloatString(4.75)),
        best_evaluation_loss: Some(FloatString(4.5)),
        best_evaluation_step: Some(600),
        ended_early: Some(why.into()),
        ..ProgressStatus::default()
    };
    let (status, events) = ended(last.clone());
    assert_eq!(status.phase, Some(JobPhase::Complete));
    let updated_at = Some("2026-01-01T00:00:09Z".to_owned());
    assert_eq!(status.progress, Some(ProgressStatus { updated_at, ..last }));
    assert_eq!(reason_and_message(&status, condition_type::COMPLETE), ("NoImprovement", why));
    assert_eq!(reason_and_message(&status, condition_type::READY), ("Complete", why));
    let reasons_and_notes: Vec<(&str, &str)> = events.iter().map(|event| (event.reason, event.note.as_str())).collect();
    assert_eq!(reasons_and_notes, [("NoImprovement", why)]);
}

#[test]
fn an_exited_pod_raises_the_step_while_another_stage_answers() {
    let trained = |step: u64, loss: f64| {
        let loss = Some(FloatString(loss));
        ProgressStatus { step, loss, ..ProgressStatus::default() }
    };
    let pods = pods(vec![ended_pod(0, Some(trained(7, 2.5)))]);
    let status = StageStatus { attempt: 1, progress: trained(5, 3.5), ..StageStatus::default() };
    let polled = PolledStatus { status, changed_at: NOW, polled_at: NOW, is_reachable: true };
    let current = |polled| progress(None, polled, &pods, 1).map(|now| (now.step, now.loss));
    assert_eq!(current(Some(&polled)), Some((7, Some(FloatString(3.5)))));
    assert_eq!(current(None), Some((7, Some(FloatString(2.5)))));
}

#[test]
fn a_job_that_trained_all_steps_is_complete() {
    let (status, events) = ended(ProgressStatus { step: 1000, ..ProgressStatus::default() });
    for kind in [condition_type::COMPLETE, condition_type::READY] {
        assert_eq!(reason_and_message(&status, kind), ("Complete", "training is complete"));
    }
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].reason, events[0].note.as_str()), ("Complete", "training is complete"));
}
