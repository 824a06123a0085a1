//! A group that may train without some replicas: when the job is complete, and who is waited for.

use super::*;

/// Attempt 1 of two replicas of two stages, of which one may be missing.
fn replicated(instances: Vec<StageInstance>) -> Observed {
    let mut observed = running(instances);
    let mesh = Mesh { stages: 2, data_parallel: 2 };
    (observed.desired.mesh, observed.state.attempt.mesh) = (mesh, mesh);
    observed.policy.replaces_stages = true;
    observed
}

fn completes(observed: &Observed) -> bool {
    decide(observed, NOW).state.attempt_phase == AttemptPhase::Finished(JobOutcome::Complete)
}

#[test]
fn the_first_replica_that_is_done_completes_the_job_and_what_has_no_group_is_removed() {
    let first = || vec![exited(0, 0, 990), exited(1, 0, 990)];
    for state in [InstanceState::Pending, InstanceState::Starting] {
        let others = [exited(2, 0, 990), instance(3, state.clone(), 900)];
        let observed = replicated(first().into_iter().chain(others).collect());
        assert!(completes(&observed), "{state:?}");
        let complete = Observed { state: decide(&observed, NOW).state, ..observed.clone() };
        let removed = AttemptAction::RemoveReplaced { attempt: 1, incarnations: [(3, 1)].into() };
        assert_eq!(decide(&complete, NOW).actions, [removed]);
        let mut needs_all = observed;
        needs_all.policy.min_data_parallel = 2;
        assert!(!completes(&needs_all), "{state:?}");
    }
    // stages that are about to end are left to it
    let ending = replicated(first().into_iter().chain([ready(2), ready(3)]).collect());
    let complete = Observed { state: decide(&ending, NOW).state, ..ending };
    assert_eq!(decide(&complete, NOW).actions, []);
    let not_all = replicated(vec![exited(0, 0, 990), ready(1), exited(2, 0, 990), exited(3, 0, 990)]);
    assert!(!completes(&not_all));
}

#[test]
fn a_stage_that_waits_for_its_replica_does_not_time_out_while_the_others_train() {
    let seconds = u64::from(policy().restart.startup_timeout_seconds);
    let now = UnixMillis::from_seconds(900 + 2 * seconds);
    let waiting = || {
        vec![ready(0), ready(1), instance(2, InstanceState::Starting, 900), instance(3, InstanceState::Starting, 900)]
    };
    let at = |last_step_at| {
        let progress = ObservedProgress { last_step_at, finished_steps: Some(5), ..ObservedProgress::default() };
        decide(&Observed { progress, ..replicated(waiting()) }, now).state.last_failure
    };
    assert_eq!(at(Some(now)), None);
    assert_eq!(at(None).map(|failure| failure.reason), Some(FailureReason::StartupTimeout));
}
