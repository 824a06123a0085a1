//! The stored form of the state: `status.record` of a PipelineJob and the launcher's `state.json`. An operator or a
//! launcher of another version reads it, so that keys and values never change.

use serde_json::{Value, json};
use stagecoach_api::contract::FailureKind;
use stagecoach_lifecycle::*;

/// Every field, none at its default.
fn running() -> (State, Value) {
    let failure = Failure {
        attempt: 1,
        stage: Some(1),
        reason: Reason::Error,
        code: Some(1),
        kind: Some(FailureKind::Data),
        step: Some(7),
        action: Some("1F3".into()),
        message: "m".into(),
        at: Time(9),
    };
    let state = State {
        doing: Doing::Running { not_before: Time(5), created: true },
        attempt: Attempt { number: 2, stages: 3, revision: 7 },
        budget: Budget { total: 4, counted: 3, spent: 1 },
        failures: 2,
        best_step: Some(40),
        checkpoint: Some(30),
        last_failure: Some(failure),
        deterministic: Some((FailureKind::Data, Some(7))),
        started: Some(Time(3)),
    };
    let stored = json!({
        "doing": {"running": {"not_before": 5, "created": true}},
        "attempt": {"number": 2, "stages": 3, "revision": 7},
        "budget": {"total": 4, "counted": 3, "spent": 1},
        "failures": 2,
        "bestStep": 40,
        "checkpoint": 30,
        "lastFailure": {"attempt": 1, "stage": 1, "reason": "Error", "code": 1, "kind": "Data", "step": 7,
                        "action": "1F3", "message": "m", "at": 9},
        "deterministic": ["Data", 7],
        "started": 3,
    });
    (state, stored)
}

#[test]
fn the_stored_form_of_a_state_never_changes() {
    let (state, stored) = running();
    let phases = [
        (state.doing.clone(), stored["doing"].clone()),
        (Doing::Idle, json!("idle")),
        (Doing::Draining, json!("draining")),
        (Doing::Finished(Outcome::Complete), json!({"finished": "complete"})),
        (
            Doing::Finished(Outcome::Failed(FailReason::BudgetExhausted)),
            json!({"finished": {"failed": "BudgetExhausted"}}),
        ),
    ];
    for (phase, stored_phase) in phases {
        let state = State { doing: phase, ..state.clone() };
        let mut stored = stored.clone();
        stored["doing"] = stored_phase;
        assert_eq!(serde_json::to_value(&state).unwrap(), stored);
        assert_eq!(serde_json::from_value::<State>(stored).unwrap(), state);
    }
}

#[test]
fn fields_that_an_older_version_did_not_store_have_their_defaults() {
    let attempt = json!({"number": 2, "stages": 3, "revision": 7});
    let state: State = serde_json::from_value(json!({"doing": "draining", "attempt": attempt})).unwrap();
    let attempt = Attempt { number: 2, stages: 3, revision: 7 };
    assert_eq!(state, State { doing: Doing::Draining, attempt, ..State::default() });
}

/// Reasons are shown to the user: in `status.lastFailure.reason`, in events, and as a label of metrics.
#[test]
fn reasons_are_stored_and_shown_by_the_same_word() {
    use Reason::*;
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
    for (reason, word) in reasons {
        assert_eq!((serde_json::to_value(reason).unwrap(), format!("{reason:?}")), (json!(word), word.to_owned()));
    }
    let ends = [
        (FailReason::InvalidConfig, "InvalidConfig"),
        (FailReason::ExitCodeRule, "ExitCodeRule"),
        (FailReason::Deterministic, "Deterministic"),
        (FailReason::BudgetExhausted, "BudgetExhausted"),
        (FailReason::DeadlineExceeded, "DeadlineExceeded"),
    ];
    for (reason, word) in ends {
        assert_eq!((serde_json::to_value(reason).unwrap(), format!("{reason:?}")), (json!(word), word.to_owned()));
    }
}
