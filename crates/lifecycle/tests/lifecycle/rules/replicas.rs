//! Tests of a job that may train without some of its replicas: its completion, and the instances that take no part in
//! the training.

use std::collections::BTreeMap;

use stagecoach_api::job::JobPhase;

use super::*;

/// Returns attempt 1 of a job with two replicas of two stages each. One replica may be missing.
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
fn a_replica_that_is_done_completes_the_job_and_what_has_no_group_is_removed() {
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
    // the instances of a complete job that are about to exit are not removed
    let ending = replicated(first().into_iter().chain([ready(2), ready(3)]).collect());
    let complete = Observed { state: decide(&ending, NOW).state, ..ending };
    assert_eq!(decide(&complete, NOW).actions, []);
    let not_all = replicated(vec![exited(0, 0, 990), ready(1), exited(2, 0, 990), ready(3)]);
    assert!(!completes(&not_all));
    // stage 0 of the second replica and stage 1 of the first replica are done
    assert!(completes(&replicated(vec![
        instance(0, InstanceState::Starting, 900),
        exited(1, 0, 990),
        exited(2, 0, 990)
    ])));
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

/// Returns the failure that `observed` leads to, and the incarnations after it.
fn failure(observed: &Observed, now: UnixMillis) -> Option<(FailureReason, Option<u32>, BTreeMap<u32, u32>)> {
    let state = decide(observed, now).state;
    let incarnations = state.incarnations;
    state.last_failure.map(|failure| (failure.reason, failure.rank, incarnations))
}

#[test]
fn a_replica_without_a_node_ends_no_group_that_trains_without_it() {
    let seconds = policy().scheduling_timeout_seconds;
    let now = UnixMillis::from_seconds(900 + 2 * seconds);
    let pending = vec![ready(0), ready(1), ready(2), instance(3, InstanceState::Pending, 900)];
    let progress = |last_step_at| ObservedProgress { last_step_at, ..ObservedProgress::default() };
    let trains = Observed { progress: progress(Some(now)), ..replicated(pending.clone()) };
    assert_eq!(failure(&trains, now), None);
    let stands_still = Observed { progress: progress(None), ..replicated(pending) };
    assert_eq!(failure(&stands_still, now).map(|(reason, ..)| reason), Some(FailureReason::Unschedulable));

    // an instance that can't be created
    let refused = |instances, min_data_parallel| {
        let mut observed = replicated(instances);
        observed.policy.min_data_parallel = min_data_parallel;
        observed.state.incarnations = [(3, 1)].into();
        observed.state.ranks_to_create = [3].into();
        observed.state.attempt_phase = AttemptPhase::Running { not_before: UnixMillis(0), all_created: false };
        observed.refusal = Some(CreationRefusal { since: UnixMillis::from_seconds(900), message: "full".into() });
        observed
    };
    let others = || vec![ready(0), ready(1), ready(2)];
    assert_eq!(failure(&refused(others(), 1), NOW), None);
    assert_eq!(decide(&refused(others(), 1), NOW).job_phase, JobPhase::Running);
    let ended = failure(&refused(others(), 2), NOW);
    assert_eq!(ended.map(|(reason, ..)| reason), Some(FailureReason::Unschedulable));
}

#[test]
fn what_leaves_a_group_that_trains_without_it_is_replaced_by_itself() {
    // at this time, no stage can still be saving a checkpoint
    let now = UnixMillis::from_seconds(900 + policy().grace_seconds + 11);
    for (state, reason) in [
        (InstanceState::Exited(Exit::with_code(143)), FailureReason::Drained),
        (InstanceState::Exited(Exit::with_code(75)), FailureReason::PeerLost),
        (InstanceState::Terminating, FailureReason::NodeLost),
    ] {
        let beside = vec![ready(0), ready(1), instance(2, InstanceState::Starting, 900), instance(3, state, 900)];
        assert_eq!(failure(&replicated(beside.clone()), now), Some((reason, Some(3), [(3, 1)].into())));
        assert_eq!(decide(&replicated(beside.clone()), now).state.budget.counted, 0, "it is nobody's fault");
        assert_eq!(failure(&replicated(beside), UnixMillis::from_seconds(905)), None, "it may be the first of all");
    }
}

#[test]
fn a_job_runs_while_enough_replicas_train() {
    let decision = |instances, min_data_parallel| {
        let mut observed = replicated(instances);
        observed.policy.min_data_parallel = min_data_parallel;
        let decision = decide(&observed, NOW);
        (decision.job_phase, decision.training_replicas)
    };
    let all = || (0..4).map(ready).collect::<Vec<_>>();
    let without = |rank: u32| {
        let starting = |other| if other == rank { instance(rank, InstanceState::Starting, 990) } else { ready(other) };
        (0..4).map(starting).collect::<Vec<_>>()
    };
    assert_eq!(decision(all(), 2), (JobPhase::Running, 2));
    assert_eq!(decision(without(2), 1), (JobPhase::Running, 1));
    assert_eq!(decision(without(2), 2), (JobPhase::Starting, 0));
    assert_eq!(decision(without(0), 1), (JobPhase::Running, 1));
    let stages_of_two =
        |rank| if [0, 3].contains(&rank) { instance(rank, InstanceState::Starting, 990) } else { ready(rank) };
    assert_eq!(decision((0..4).map(stages_of_two).collect(), 1), (JobPhase::Running, 1));
    let no_stage_1 = |rank| if rank % 2 == 1 { instance(rank, InstanceState::Starting, 990) } else { ready(rank) };
    assert_eq!(decision((0..4).map(no_stage_1).collect(), 1), (JobPhase::Starting, 0));
}
