//! Tests of failures after which only the lost stages are replaced, and of failures after which a new attempt starts.

use std::collections::{BTreeMap, BTreeSet};

use stagecoach_api::contract::FailureKind;
use stagecoach_api::job::{ExitAction, ExitCodeRule, JobPhase, PodFailurePolicySpec};
use stagecoach_lifecycle::*;

use super::{NOW, exited, exited_by_external_cause, exited_with_report, instance, ready, running};

/// Like [`running`], with a policy that replaces stages.
fn replacing(instances: Vec<StageInstance>) -> Observed {
    let mut observed = running(instances);
    observed.policy.replaces_stages = true;
    observed
}

/// Returns the stages that the decision replaces.
fn replaced(observed: &Observed) -> Vec<u32> {
    let after = decide(observed, NOW).state;
    let same_attempt = after.attempt == observed.state.attempt;
    let newer = |rank: &u32| after.incarnation(*rank) > observed.state.incarnation(*rank);
    let stages: Vec<u32> = (0..after.attempt.mesh.ranks()).filter(newer).collect();
    assert_eq!(after.budget.replaced > observed.state.budget.replaced, !stages.is_empty(), "{after:?}");
    assert!(same_attempt || stages.is_empty() && after.incarnations.is_empty(), "{after:?}");
    stages
}

#[test]
fn a_lost_stage_is_replaced_while_others_stay() {
    assert_eq!(replaced(&replacing(vec![ready(0), exited(1, 137, 995), ready(2)])), [1]);
    assert_eq!(replaced(&replacing(vec![exited(0, 1, 995), exited(1, 137, 995), ready(2)])), [0, 1]);
    let evicted = exited_by_external_cause(2, ExternalCause::Evicted);
    assert_eq!(replaced(&replacing(vec![ready(0), ready(1), evicted])), [2]);
    // a stage that was deleted by force, so that its exit was not observed
    let deleted = replacing(vec![ready(0), ready(2)]);
    assert_eq!(replaced(&deleted), [1]);
    assert_eq!(decide(&deleted, NOW).state.budget.counted, 0);
    let starting = instance(0, InstanceState::Starting, 990);
    assert_eq!(replaced(&replacing(vec![starting, exited(1, 137, 995), ready(2)])), [1], "also while it forms again");
}

#[test]
fn the_whole_group_restarts_where_a_replacement_would_not_help() {
    let lost = || exited(1, 137, 995);
    let terminating = instance(2, InstanceState::Terminating, 990);
    for (why, instances) in [
        ("nobody stays", vec![exited(0, 75, 996), lost(), exited(2, 75, 996)]),
        ("one gave up waiting", vec![exited(0, 75, 996), lost(), ready(2)]),
        ("one was drained", vec![exited(0, 143, 996), lost(), ready(2)]),
        ("one is being deleted", vec![ready(0), lost(), terminating]),
        ("one is done", vec![exited(0, 0, 996), lost(), ready(2)]),
        ("the others have not started", vec![instance(0, InstanceState::Pending, 990), lost()]),
        ("it would fail again", vec![ready(0), exited_with_report(1, FailureKind::NonFinite, Some(3)), ready(2)]),
        ("it computed wrong", vec![ready(0), exited_with_report(1, FailureKind::WrongResult, Some(3)), ready(2)]),
    ] {
        let mut observed = replacing(instances);
        assert_eq!(replaced(&observed), [0; 0], "{why}");
        observed.policy.replaces_stages = false;
        assert_eq!(decide(&observed, NOW).state, decide(&replacing(observed.instances.clone()), NOW).state, "{why}");
    }
    let mut not_whole = replacing(vec![ready(0), lost(), ready(2)]);
    not_whole.state.attempt_phase = AttemptPhase::Running { not_before: UnixMillis(0), all_created: false };
    assert_eq!(replaced(&not_whole), [0; 0], "the attempt was never whole");
    let mut unwanted = replacing(vec![ready(0), lost(), ready(2)]);
    unwanted.policy.replaces_stages = false;
    assert_eq!(replaced(&unwanted), [0; 0], "by the policy");
}

#[test]
fn the_whole_group_restarts_where_the_others_would_not_wait_for_the_back_off() {
    // the third consecutive failure, after which the job waits 4 seconds
    let mut observed = replacing(vec![ready(0), exited(1, 137, 995), ready(2)]);
    observed.state.failures_without_progress = 2;
    for (reform_timeout_seconds, stages) in [(5, &[1][..]), (4, &[]), (3, &[])] {
        observed.policy.restart.reform_timeout_seconds = reform_timeout_seconds;
        assert_eq!(replaced(&observed), stages, "{reform_timeout_seconds}");
    }
    let after = decide(&observed, NOW).state;
    let not_before = NOW.plus_seconds(4);
    assert_eq!(after.attempt.number, 2);
    assert_eq!(after.attempt_phase, AttemptPhase::Running { not_before, all_created: false });
}

#[test]
fn the_replacement_is_created_and_what_it_replaces_removed() {
    let mut observed = replacing(vec![ready(0), exited(1, 137, 995), ready(2)]);
    let decision = decide(&observed, NOW);
    let incarnations = BTreeMap::from([(1, 1)]);
    let start = AttemptAction::ReplaceStages { attempt: 1, incarnations: incarnations.clone() };
    assert_eq!(decision.actions, [AttemptAction::RemoveReplaced { attempt: 1, incarnations }, start.clone()]);
    assert_eq!(decision.job_phase, JobPhase::Starting);
    // after a crash of the caller, the decision is the same again
    observed.state = decision.state.clone();
    let again = decide(&observed, NOW);
    assert_eq!((&again.state, &again.actions), (&decision.state, &decision.actions));
    observed.instances.remove(1);
    assert_eq!(decide(&observed, NOW).actions, [start]);
    observed.instances.push(StageInstance { incarnation: 1, ..instance(1, InstanceState::Starting, 1000) });
    let created = decide(&observed, NOW);
    assert_eq!(created.actions, []);
    assert!(matches!(created.state.attempt_phase, AttemptPhase::Running { all_created: true, .. }));
    // a replaced instance that still exists has no effect
    observed.state = created.state;
    observed.instances.push(exited(1, 137, 995));
    assert_eq!(decide(&observed, NOW).state, observed.state);
    assert_eq!(replaced(&observed), [0; 0]);
}

#[test]
fn only_what_was_lost_is_created_again() {
    let mut observed = replacing(vec![ready(0), exited(1, 137, 995), ready(2)]);
    observed.state = decide(&observed, NOW).state;
    // another pod is deleted by force before the replacement exists, and the replacement of that pod also gets a new
    // name
    observed.instances = vec![ready(0)];
    let decision = decide(&observed, NOW);
    assert_eq!(decision.state.incarnations, BTreeMap::from([(1, 1), (2, 1)]));
    observed.state = decision.state;
    // the back-off of the second failure has passed
    let actions = decide(&observed, NOW.plus_seconds(10)).actions;
    let incarnations = BTreeMap::from([(1, 1), (2, 1)]);
    assert_eq!(actions, [AttemptAction::ReplaceStages { attempt: 1, incarnations }]);
}

#[test]
fn a_replacement_counts_and_the_next_one_without_progress_restarts_the_group() {
    let mut observed = replacing(vec![ready(0), exited(1, 137, 995), ready(2)]);
    observed.progress.finished_steps = Some(7);
    let after = decide(&observed, NOW).state;
    assert_eq!(
        (after.budget.total, after.budget.counted, after.budget.replaced, after.failures_without_progress),
        (1, 1, 1, 1)
    );
    assert_eq!(after.replaced_without_progress, BTreeSet::from([1]));
    let replacement = |state: InstanceState| StageInstance { incarnation: 1, ..instance(1, state, 998) };
    let died = || replacement(InstanceState::Exited(Exit::with_code(1)));
    let whole = AttemptPhase::Running { not_before: UnixMillis(0), all_created: true };
    observed.state = JobState { attempt_phase: whole, ..after };
    // another stage may still be replaced
    observed.instances = vec![ready(0), replacement(InstanceState::Starting), exited(2, 1, 999)];
    assert_eq!(replaced(&observed), [2]);
    observed.instances = vec![ready(0), died(), ready(2)];
    let restarted = decide(&observed, NOW).state;
    assert_eq!((restarted.attempt.number, restarted.budget.total, restarted.budget.replaced), (2, 2, 1));
    assert!(restarted.incarnations.is_empty() && restarted.replaced_without_progress.is_empty(), "{restarted:?}");
    // stage 1 may be replaced again once a step beyond all earlier steps is finished
    observed.progress.finished_steps = Some(8);
    assert_eq!(replaced(&observed), [1]);
    // stages that stopped waiting for a replacement do not count as another failure
    observed.progress.finished_steps = Some(7);
    observed.instances = vec![exited(0, 75, 980), replacement(InstanceState::Pending), exited(2, 75, 980)];
    let given_up = decide(&observed, NOW).state;
    assert_eq!((given_up.attempt.number, given_up.budget.total, given_up.budget.counted), (2, 2, 1));
}

#[test]
fn one_that_the_others_lost_is_replaced_if_it_neither_exits_nor_comes_back() {
    let since = UnixMillis::from_seconds(998);
    let lost = |incarnation| Some(LostInstance { rank: 1, incarnation, since, has_ended: false });
    let mut observed = replacing(vec![ready(0), ready(1), ready(2)]);
    observed.progress.lost = lost(0);
    assert_eq!(replaced(&observed), [1]);
    let failure = decide(&observed, NOW).state.last_failure.unwrap();
    assert_eq!((failure.rank, failure.reason), (Some(1), FailureReason::NodeLost));
    observed.progress.lost = lost(1);
    assert_eq!(replaced(&observed), [0; 0], "another one was lost");
    observed.progress.lost = lost(0).map(|lost| LostInstance { since: UnixMillis::from_seconds(999), ..lost });
    assert_eq!(replaced(&observed), [0; 0], "it may still exit");
    assert_eq!(decide(&observed, NOW).wake_at, Some(UnixMillis::from_seconds(1001)));
    // the exit of the stage takes precedence over the report of its loss, because the exit has more information
    observed.instances[1] = exited(1, 3, 999);
    assert_eq!(decide(&observed, NOW).state.last_failure.unwrap().exit_code, Some(3));
}

/// Returns an attempt whose stage 1 has ended, according to the other stages. The exit is not observed yet.
fn ended() -> Observed {
    let mut observed = replacing(vec![ready(0), ready(1), ready(2)]);
    observed.progress.lost = Some(LostInstance { rank: 1, incarnation: 0, since: NOW, has_ended: true });
    observed
}

#[test]
fn one_that_has_ended_is_replaced_before_its_exit_is_observed() {
    let mut observed = ended();
    assert_eq!(replaced(&observed), [1]);
    let decision = decide(&observed, NOW);
    let failure = decision.state.last_failure.clone().unwrap();
    assert_eq!((failure.rank, failure.reason, failure.exit_code), (Some(1), FailureReason::Killed, None));
    assert_eq!(decision.state.budget.counted, 1);
    // the instance is kept until its exit is known or the timeout passes
    let start = AttemptAction::ReplaceStages { attempt: 1, incarnations: BTreeMap::from([(1, 1)]) };
    let remove = AttemptAction::RemoveReplaced { attempt: 1, incarnations: BTreeMap::from([(1, 1)]) };
    assert_eq!(decision.actions, vec![start.clone()]);
    assert_eq!(decision.wake_at, Some(NOW.plus_seconds(10)));
    observed.state = decision.state;
    let again = decide(&observed, NOW.plus_seconds(9));
    assert_eq!((&again.state, &again.actions), (&observed.state, &vec![start.clone()]));
    assert_eq!(decide(&observed, NOW.plus_seconds(10)).actions, [remove.clone(), start.clone()]);

    let with_exit = |exited: StageInstance| {
        let mut observed = observed.clone();
        observed.instances[1] = exited;
        let decision = decide(&observed, NOW.plus_seconds(1));
        let failure = decision.state.last_failure.clone().unwrap();
        assert!(failure.is_same(observed.state.last_failure.as_ref().unwrap()));
        let repeated = Observed { state: decision.state.clone(), ..observed };
        assert_eq!(decide(&repeated, NOW.plus_seconds(2)).state, decision.state, "it is reported once");
        (decision, failure)
    };
    let (decision, failure) = with_exit(exited(1, 137, 1001));
    assert_eq!((failure.exit_code, decision.state.budget.counted), (Some(137), 1));
    assert_eq!((decision.state.incarnation(1), decision.actions), (1, vec![remove.clone(), start.clone()]));
    let (decision, failure) = with_exit(exited_by_external_cause(1, ExternalCause::Evicted));
    assert_eq!((failure.reason, decision.state.budget.counted), (FailureReason::Evicted, 0));
    assert_eq!((decision.state.budget.total, decision.state.incarnation(1)), (1, 1));
    let (decision, _) = with_exit(exited(1, 78, 1001));
    assert_eq!(decision.state.outcome(), Some(&JobOutcome::Failed(JobFailureReason::InvalidConfig)));
    let (decision, _) = with_exit(exited_with_report(1, FailureKind::NonFinite, Some(3)));
    assert_eq!(decision.state.last_deterministic_failure, Some((FailureKind::NonFinite, Some(3))));
    // the state of a job that has ended does not change any more
    let outcome = AttemptPhase::Finished(JobOutcome::Complete);
    observed.state.attempt_phase = outcome;
    observed.instances[1] = exited(1, 137, 1001);
    assert_eq!(decide(&observed, NOW.plus_seconds(1)).state, observed.state);
}

#[test]
fn how_it_ended_is_waited_for_where_that_decides() {
    assert_eq!(replaced(&ended()), [1]);
    let not_yet = |what: &str, change: &dyn Fn(&mut Observed)| {
        let mut observed = ended();
        change(&mut observed);
        assert_eq!(decide(&observed, NOW).state, observed.state, "{what}");
    };
    not_yet("a rule asks for its exit code", &|observed| {
        let rule = ExitCodeRule { codes: vec![3], action: ExitAction::Fail };
        observed.policy.restart.exit_codes = vec![rule];
    });
    not_yet("a policy does", &|observed| {
        observed.policy.restart.pod_failure_policy = Some(PodFailurePolicySpec { rules: Vec::new() });
    });
    not_yet("no restart is left", &|observed| observed.policy.restart.max_restarts = 0);
    not_yet("it was replaced already", &|observed| {
        observed.state.replaced_without_progress = BTreeSet::from([1]);
    });
    not_yet("nothing is replaced", &|observed| observed.policy.replaces_stages = false);
}

#[test]
fn a_group_that_drains_while_a_stage_is_replaced_restarts_at_once() {
    // the stage that was deleted by force received SIGTERM first, and the other stages saved and exited together with
    // it
    let mut observed = replacing(vec![exited(0, 143, 999), exited(2, 143, 999)]);
    observed.state.incarnations = BTreeMap::from([(1, 1)]);
    observed.instances.push(StageInstance { incarnation: 1, ..instance(1, InstanceState::Starting, 999) });
    let after = decide(&observed, NOW).state;
    assert_eq!((after.attempt.number, after.budget.counted), (2, 0));
    assert_eq!(after.last_failure.unwrap().reason, FailureReason::Drained);
}

#[test]
fn the_budget_bounds_replacements_too() {
    let mut observed = replacing(vec![ready(0), exited(1, 137, 995), ready(2)]);
    observed.policy.restart.max_restarts = 0;
    let outcome = decide(&observed, NOW).state.outcome().cloned();
    assert_eq!(outcome, Some(JobOutcome::Failed(JobFailureReason::BudgetExhausted)));
}

#[test]
fn an_incarnation_ahead_of_the_record_starts_a_new_attempt() {
    let observed = replacing(vec![ready(0), StageInstance { incarnation: 1, ..ready(1) }, ready(2)]);
    assert_eq!(decide(&observed, NOW).state.attempt.number, 2);
}
