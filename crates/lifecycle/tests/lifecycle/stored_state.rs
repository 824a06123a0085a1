//! The stored form of the state: `status.record` of a PipelineJob, and the launcher's `state.json`. Operators and
//! launchers of other versions read this form, so its keys and values must never change.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use stagecoach_api::contract::{FailureKind, Mesh};
use stagecoach_api::job::FailureLabel;
use stagecoach_lifecycle::*;

const MESH: Mesh = Mesh { stages: 3, data_parallel: 2 };

/// Returns a state in which no field of `JobState` has its default value, and the stored form of this state.
fn running() -> (JobState, Value) {
    let failure = AttemptFailure {
        attempt: 1,
        rank: Some(1),
        mesh: Some(MESH),
        incarnation: 2,
        reason: FailureReason::Error,
        exit_code: Some(1),
        kind: Some(FailureKind::Data),
        step: Some(7),
        action: Some("1F3".into()),
        message: "m".into(),
        failed_at: UnixMillis(9),
        uncounted: false,
    };
    let state = JobState {
        attempt_phase: AttemptPhase::Running { not_before: UnixMillis(5), all_created: true },
        attempt: Attempt { number: 2, mesh: MESH, revision: 7, admission: 0, admitted_replicas: None },
        incarnations: BTreeMap::from([(2, 1)]),
        ranks_to_create: BTreeSet::from([2]),
        replaced_without_progress: BTreeSet::from([2]),
        budget: RestartBudget { total: 4, counted: 3, replaced: 1, counted_since_checkpoint: 1 },
        failures_without_progress: 2,
        max_finished_steps: Some(40),
        checkpoint_step: Some(30),
        last_failure: Some(failure),
        last_deterministic_failure: Some((FailureKind::Data, Some(7))),
        excluded_nodes: BTreeSet::from(["node-a".to_owned()]),
        started_at: Some(UnixMillis(3)),
    };
    let stored = json!({
        "doing": {"running": {"not_before": 5, "created": true}},
        "attempt": {"number": 2, "stages": 3, "dataParallel": 2, "revision": 7},
        "incarnations": {"2": 1},
        "starting": [2],
        "replacedWithoutProgress": [2],
        "budget": {"total": 4, "counted": 3, "replaced": 1, "spent": 1},
        "failures": 2,
        "bestStep": 40,
        "checkpoint": 30,
        "lastFailure": {"attempt": 1, "stage": 1, "mesh": {"stages": 3, "dataParallel": 2}, "incarnation": 2, "reason": "Error",
                        "code": 1, "kind": "Data", "step": 7, "action": "1F3", "message": "m", "at": 9},
        "deterministic": ["Data", 7],
        "excludedNodes": ["node-a"],
        "started": 3,
    });
    (state, stored)
}

#[test]
fn the_stored_form_of_a_state_never_changes() {
    let (state, stored) = running();
    let phases = [
        (state.attempt_phase.clone(), stored["doing"].clone()),
        (AttemptPhase::Idle, json!("idle")),
        (AttemptPhase::Draining, json!("draining")),
        (AttemptPhase::Finished(JobOutcome::Complete), json!({"finished": "complete"})),
        (
            AttemptPhase::Finished(JobOutcome::Failed(JobFailureReason::BudgetExhausted)),
            json!({"finished": {"failed": "BudgetExhausted"}}),
        ),
    ];
    for (phase, stored_phase) in phases {
        let state = JobState { attempt_phase: phase, ..state.clone() };
        let mut stored = stored.clone();
        stored["doing"] = stored_phase;
        assert_eq!(serde_json::to_value(&state).unwrap(), stored);
        assert_eq!(serde_json::from_value::<JobState>(stored).unwrap(), state);
    }
}

#[test]
fn fields_that_an_older_version_did_not_store_have_their_defaults() {
    let attempt = json!({"number": 2, "stages": 3, "revision": 7});
    let state: JobState = serde_json::from_value(json!({"doing": "draining", "attempt": attempt})).unwrap();
    let attempt = Attempt { number: 2, mesh: Mesh::pipeline(3), revision: 7, admission: 0, admitted_replicas: None };
    assert_eq!(state, JobState { attempt_phase: AttemptPhase::Draining, attempt, ..JobState::default() });
}

/// Users see the reasons in `status.lastFailure.reason`, in events, and as a label of metrics, and write them in
/// `restart.podFailurePolicy`.
#[test]
fn reasons_are_stored_and_shown_by_the_same_word() {
    use FailureReason::*;
    let reasons = [
        (Error, "Error"),
        (InvalidConfig, "InvalidConfig"),
        (Storage, "Storage"),
        (Killed, "Killed"),
        (PeerLost, "PeerLost"),
        (Unknown, "Unknown"),
        (Stalled, "Stalled"),
        (StartupTimeout, "StartupTimeout"),
        (Drained, "Drained"),
        (Preempted, "Preempted"),
        (Evicted, "Evicted"),
        (NodeLost, "NodeLost"),
        (Unschedulable, "Unschedulable"),
    ];
    let failure = running().0.last_failure.unwrap();
    let can_be_in_a_rule =
        |failure: &AttemptFailure| serde_json::from_value::<FailureLabel>(failure.label().into()).is_ok();
    for (reason, word) in reasons {
        assert_eq!((serde_json::to_value(reason).unwrap(), format!("{reason:?}")), (json!(word), word.to_owned()));
        let failure = AttemptFailure { reason, kind: None, ..failure.clone() };
        assert!(can_be_in_a_rule(&failure), "{}", failure.label());
    }
    // a stage that is done has not failed
    for kind in FailureKind::ALL.iter().copied().filter(|kind| *kind != FailureKind::Done) {
        let failure = AttemptFailure { kind: Some(kind), ..failure.clone() };
        assert!(can_be_in_a_rule(&failure), "{}", failure.label());
    }
    let failures = [
        (JobFailureReason::InvalidConfig, "InvalidConfig"),
        (JobFailureReason::Deterministic, "Deterministic"),
        (JobFailureReason::BudgetExhausted, "BudgetExhausted"),
        (JobFailureReason::DeadlineExceeded, "DeadlineExceeded"),
    ];
    // the stored name comes from a version whose rules covered only exit codes
    assert_eq!(serde_json::to_value(JobFailureReason::PodFailurePolicy).unwrap(), json!("ExitCodeRule"));
    for (reason, word) in failures {
        assert_eq!((serde_json::to_value(reason).unwrap(), format!("{reason:?}")), (json!(word), word.to_owned()));
    }
}

/// Older versions can read a state with promoted spares, because an incarnation that is ahead by more than one is valid
/// for them.
#[test]
fn a_promotion_is_stored_as_a_replacement_is() {
    let state = running().0;
    let taken = JobState {
        incarnations: BTreeMap::from([(1, 1), (2, 3)]),
        ranks_to_create: BTreeSet::new(),
        replaced_without_progress: BTreeSet::from([1, 2]),
        budget: RestartBudget { replaced: 2, ..state.budget },
        ..state
    };
    let mut stored = running().1;
    stored["incarnations"] = json!({"1": 1, "2": 3});
    stored.as_object_mut().unwrap().remove("starting");
    stored["replacedWithoutProgress"] = json!([1, 2]);
    stored["budget"]["replaced"] = json!(2);
    assert_eq!(serde_json::to_value(&taken).unwrap(), stored);
    assert_eq!(serde_json::from_value::<JobState>(stored).unwrap(), taken);
}
