//! Tests of transitions: restarts and their limits, drains, and the end of the job.

use stagecoach_api::contract::{FailureKind, Mesh};
use stagecoach_api::job::{ExitAction, ExitCodeRule, JobPhase};
use stagecoach_lifecycle::*;

use super::{NOW, exited, exited_by_external_cause, exited_with_report, instance, ready, running, start};

/// Returns the state after stage 1 has exited with this code.
fn state_after_exit(code: i32, rules: Vec<ExitCodeRule>) -> JobState {
    let mut observed = running(vec![exited(0, 75, 990), exited(1, code, 995), exited(2, 75, 990)]);
    observed.policy.restart.exit_codes = rules;
    decide(&observed, NOW).state
}

#[test]
fn exit_codes_decide_what_follows() {
    for code in [1, 3, 74, 137, 139] {
        let state = state_after_exit(code, vec![]);
        assert_eq!((state.outcome(), state.budget.counted, state.attempt.number), (None, 1, 2), "{code}");
    }
    assert_eq!(state_after_exit(78, vec![]).outcome(), Some(&JobOutcome::Failed(JobFailureReason::InvalidConfig)));
    let rule = |codes: &[i32], action| ExitCodeRule { codes: codes.to_vec(), action };
    let rules = vec![
        rule(&[3], ExitAction::Fail),
        rule(&[3, 4], ExitAction::RestartUncounted),
        rule(&[78, 137], ExitAction::Restart),
    ];
    assert_eq!(
        state_after_exit(3, rules.clone()).outcome(),
        Some(&JobOutcome::Failed(JobFailureReason::PodFailurePolicy))
    );
    assert_eq!(
        (state_after_exit(4, rules.clone()).budget.total, state_after_exit(4, rules.clone()).budget.counted),
        (1, 0)
    );
    assert_eq!(
        (state_after_exit(78, rules.clone()).outcome(), state_after_exit(78, rules.clone()).budget.counted),
        (None, 1)
    );
    // restarts after external causes do not count, whatever the rules say about the exit code
    let mut observed =
        running(vec![exited_by_external_cause(0, ExternalCause::Evicted), exited(1, 75, 996), exited(2, 75, 996)]);
    observed.policy.restart.exit_codes = vec![rule(&[137], ExitAction::Fail)];
    assert_eq!(decide(&observed, NOW).state.outcome(), None);
}

#[test]
fn a_deterministic_failure_repeated_at_the_same_step_is_final() {
    let failing = |kind, step| running(vec![exited(0, 75, 991), exited_with_report(1, kind, step), exited(2, 75, 991)]);
    let first = decide(&failing(FailureKind::NonFinite, Some(7)), NOW).state;
    assert_eq!(first.attempt.number, 2);
    let again = |kind, step, before: &JobState| {
        let mut observed = failing(kind, step);
        observed.instances.iter_mut().for_each(|instance| instance.attempt = before.attempt.number);
        observed.state = JobState {
            attempt_phase: AttemptPhase::Running { not_before: UnixMillis(0), all_created: true },
            ..before.clone()
        };
        decide(&observed, NOW).state
    };
    assert_eq!(
        again(FailureKind::NonFinite, Some(7), &first).outcome(),
        Some(&JobOutcome::Failed(JobFailureReason::Deterministic))
    );
    assert_eq!(again(FailureKind::NonFinite, Some(8), &first).outcome(), None);
    // another failure in between changes nothing
    let other = again(FailureKind::OutOfMemory, Some(7), &first);
    assert_eq!(other.outcome(), None);
    assert_eq!(
        again(FailureKind::NonFinite, Some(7), &other).outcome(),
        Some(&JobOutcome::Failed(JobFailureReason::Deterministic))
    );
    // a failure that is not deterministic may recur
    assert_eq!(again(FailureKind::OutOfMemory, Some(7), &other).outcome(), None);
}

#[test]
fn the_back_off_doubles_until_training_progresses() {
    let mut observed = running(vec![exited(0, 1, 995), exited(1, 75, 996), exited(2, 75, 996)]);
    let fail = |observed: &mut Observed| {
        observed.instances.iter_mut().for_each(|instance| instance.attempt = observed.state.attempt.number);
        observed.state.attempt_phase = AttemptPhase::Running { not_before: UnixMillis(0), all_created: true };
        observed.state = decide(observed, NOW).state;
        let AttemptPhase::Running { not_before, all_created: false } = observed.state.attempt_phase else {
            return None;
        };
        Some((not_before.0 - NOW.0) / 1000)
    };
    observed.progress.finished_steps = Some(5);
    assert_eq!([(); 5].map(|()| fail(&mut observed)), [0, 2, 4, 8, 10].map(Some));
    observed.progress.finished_steps = Some(6);
    assert_eq!(fail(&mut observed), Some(0));
    // Six of ten restarts were used. A checkpoint resets the budget, so ten more restarts are allowed, but not an
    // eleventh.
    assert_eq!(observed.state.budget, RestartBudget { total: 6, counted: 6, replaced: 0, counted_since_checkpoint: 6 });
    observed.progress.checkpoint_step = Some(6);
    assert_eq!((0..11).filter_map(|_| fail(&mut observed)).count(), 10);
    assert_eq!(observed.state.outcome(), Some(&JobOutcome::Failed(JobFailureReason::BudgetExhausted)));
    assert_eq!(
        observed.state.budget,
        RestartBudget { total: 16, counted: 16, replaced: 0, counted_since_checkpoint: 10 }
    );
}

#[test]
fn restarts_that_are_due_together_are_spread() {
    let mut observed = running(vec![exited(0, 1, 995), exited(1, 75, 996), exited(2, 75, 996)]);
    observed.state.failures_without_progress = 1;
    observed.policy.backoff_jitter_percent = 25;
    let delays: Vec<u64> = (0..50)
        .map(|later| {
            let now = UnixMillis(NOW.0 + later);
            match decide(&observed, now).state.attempt_phase {
                AttemptPhase::Running { not_before, .. } => not_before.0 - now.0,
                other => panic!("{other:?}"),
            }
        })
        .collect();
    assert!(delays.iter().all(|delay| (2000..=2500).contains(delay)), "{delays:?}");
    assert!(delays.iter().max().unwrap() - delays.iter().min().unwrap() > 300, "{delays:?}");
}

#[test]
fn a_failed_attempt_is_removed_before_the_next_starts() {
    let mut observed = running(vec![ready(0), exited(1, 1, 999), ready(2)]);
    observed.state.failures_without_progress = 1;
    let decision = decide(&observed, NOW);
    assert_eq!(
        decision.actions,
        [AttemptAction::DeleteInstances { attempt: 1, grace_seconds: 10, unready_grace_seconds: 1 }]
    );
    assert_eq!((decision.state.attempt.number, decision.wake_at), (2, None));

    // Stage 0 was deleted at 1000 s and does not exit. The stage is killed after its grace period, and the job waits
    // for it for at most 180 s.
    let mut observed = Observed { state: decision.state, ..observed };
    observed.instances = vec![instance(0, InstanceState::Terminating, 1000)];
    let at = |seconds| decide(&observed, UnixMillis::from_seconds(seconds));
    assert_eq!((at(1003).actions, at(1003).wake_at), (vec![], Some(UnixMillis::from_seconds(1010))));
    assert_eq!(at(1010).actions, [AttemptAction::KillInstances { attempt: 1 }]);
    assert_eq!((at(1179).actions.len(), at(1179).wake_at), (1, Some(UnixMillis::from_seconds(1180))));
    assert!(at(1180).actions.contains(&start(2, 3)));

    // all stages exited at once, so the job waits only for the back-off
    observed.instances.clear();
    let at = |seconds| decide(&observed, UnixMillis::from_seconds(seconds));
    assert_eq!(
        (at(1001).actions, at(1001).wake_at, at(1001).job_phase),
        (vec![], Some(UnixMillis::from_seconds(1002)), JobPhase::Restarting)
    );
    assert_eq!(at(1002).actions, [start(2, 3)]);
}

#[test]
fn a_drain_waits_for_all_exits_before_the_next_attempt() {
    let desired = running(vec![]).desired;
    // the same number of processes in another shape
    let replicas = Desired { mesh: Mesh { stages: 1, data_parallel: 3 }, ..desired };
    for changed in [Desired { mesh: Mesh::pipeline(2), ..desired }, replicas, Desired { revision: 8, ..desired }] {
        let mut observed = running((0..3).map(ready).collect());
        observed.desired = changed;
        let decision = decide(&observed, NOW);
        assert_eq!((&decision.state.attempt_phase, decision.state.attempt.number), (&AttemptPhase::Draining, 1));
        assert_eq!(
            decision.actions,
            [AttemptAction::DeleteInstances { attempt: 1, grace_seconds: 120, unready_grace_seconds: 30 }]
        );

        observed.state = decision.state;
        observed.instances = vec![exited(0, 143, 1001), instance(1, InstanceState::Terminating, 1000)];
        let decision = decide(&observed, UnixMillis::from_seconds(1119));
        assert_eq!(
            (decision.state, decision.actions, decision.wake_at),
            (observed.state.clone(), vec![], Some(UnixMillis::from_seconds(1120)))
        );

        observed.instances = vec![exited(0, 143, 1001), exited(1, 143, 1002)];
        let decision = decide(&observed, UnixMillis::from_seconds(1003));
        assert_eq!((decision.state.attempt.number, decision.state.budget), (2, RestartBudget::default()));
        let start = AttemptAction::StartAttempt { number: 2, mesh: changed.mesh, instances: changed.mesh.ranks() };
        assert!(decision.actions.contains(&start));
    }
}

#[test]
fn a_job_that_completes_while_it_is_drained_is_complete() {
    let mut observed = running((0..3).map(|rank| exited(rank, 0, 995)).collect());
    observed.desired.suspend = true;
    for attempt_phase in
        [AttemptPhase::Draining, AttemptPhase::Running { not_before: UnixMillis(0), all_created: true }]
    {
        observed.state.attempt_phase = attempt_phase;
        let decision = decide(&observed, NOW);
        assert_eq!((decision.state.outcome(), decision.job_phase), (Some(&JobOutcome::Complete), JobPhase::Complete));
        assert_eq!((decision.actions, decision.wake_at), (vec![], None));
    }
}

#[test]
fn the_deadline_ends_the_job_after_a_save() {
    let mut observed = running((0..3).map(ready).collect());
    observed.policy.active_deadline_seconds = Some(1000);
    assert_eq!(decide(&observed, UnixMillis::from_seconds(999)).wake_at, Some(UnixMillis::from_seconds(1000)));
    let decision = decide(&observed, NOW);
    assert_eq!(decision.state.outcome(), Some(&JobOutcome::Failed(JobFailureReason::DeadlineExceeded)));
    assert_eq!(
        decision.actions,
        [AttemptAction::DeleteInstances { attempt: 1, grace_seconds: 120, unready_grace_seconds: 30 }]
    );
    // the record contains the steps that the stages saved before they exited
    observed.state = JobState { checkpoint_step: Some(700), max_finished_steps: Some(1900), ..decision.state };
    observed.progress =
        ObservedProgress { checkpoint_step: Some(2025), finished_steps: Some(2025), ..ObservedProgress::default() };
    let saved = decide(&observed, NOW).state;
    assert_eq!((saved.checkpoint_step, saved.max_finished_steps), (Some(2025), Some(2025)));
    assert_eq!(saved.budget, observed.state.budget);
}

#[test]
fn a_record_older_than_the_instances_never_reuses_their_number() {
    let mut observed = running(vec![StageInstance { attempt: 5, ..ready(0) }]);
    let decision = decide(&observed, NOW);
    assert_eq!(decision.state.attempt.number, 6);
    assert_eq!(
        decision.actions,
        [AttemptAction::DeleteInstances { attempt: 5, grace_seconds: 10, unready_grace_seconds: 1 }]
    );
    observed.state = JobState::default();
    assert_eq!(decide(&observed, NOW).state.attempt.number, 6);
}

#[test]
fn an_instance_missing_after_all_were_created_is_not_created_again() {
    let mut observed = running((0..3).map(ready).collect());
    observed.state.attempt_phase = AttemptPhase::Running { not_before: UnixMillis(0), all_created: false };
    let decision = decide(&observed, NOW);
    assert_eq!(decision.state.attempt_phase, AttemptPhase::Running { not_before: UnixMillis(0), all_created: true });
    assert_eq!(decision.actions, []);

    observed.state = decision.state;
    observed.instances.remove(1);
    let decision = decide(&observed, NOW);
    assert_eq!((decision.state.attempt.number, decision.state.last_failure.unwrap().rank), (2, Some(1)));
    assert_eq!(
        decision.actions,
        [AttemptAction::DeleteInstances { attempt: 1, grace_seconds: 10, unready_grace_seconds: 1 }]
    );
}

#[test]
fn no_pod_is_deleted_without_a_grace_period() {
    let mut observed = running((0..3).map(ready).collect());
    observed.policy.grace_seconds = 0;
    observed.instances.remove(1);
    assert_eq!(
        decide(&observed, NOW).actions,
        [AttemptAction::DeleteInstances { attempt: 1, grace_seconds: 1, unready_grace_seconds: 1 }]
    );
}

#[test]
fn limits_come_from_the_spec() {
    let text = "apiVersion: stagecoach.dev/v1alpha1\nkind: PipelineJob\nmetadata: {name: a}\nspec: {activeDeadlineSeconds: 9, template: {spec: {terminationGracePeriodSeconds: 45}}}";
    let spec = stagecoach_api::parse(text, "a.yaml").unwrap().spec;
    let policy = FailurePolicy::for_pods(&spec);
    assert_eq!(
        (policy.grace_seconds, policy.active_deadline_seconds, policy.scheduling_timeout_seconds),
        (45, Some(9), 3600)
    );
    assert!(policy.nodes_can_be_lost && !FailurePolicy::for_processes(&spec).nodes_can_be_lost);
}

#[test]
fn an_instance_of_an_implausible_attempt_is_ignored() {
    let all = || vec![ready(0), ready(1), ready(2)];
    let ready_in = |attempt| StageInstance { attempt, ..ready(0) };
    for attempt in [u64::MAX, u64::MAX - 1, 1 << 53, 2_000_000] {
        let mut observed = running(all());
        observed.instances.push(ready_in(attempt));
        assert_eq!(decide(&observed, NOW), decide(&running(all()), NOW), "{attempt}");
    }
    // the record was lost: a number that is in use is never reused
    let mut observed = running(all());
    observed.instances.push(ready_in(50));
    assert_eq!(decide(&observed, NOW).state.attempt.number, 51);
}
