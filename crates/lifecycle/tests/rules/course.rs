//! What follows: restarts and their limits, drains, the end.

use stagecoach_api::contract::FailureKind;
use stagecoach_api::job::{ExitAction, ExitCodeRule, Phase};
use stagecoach_lifecycle::*;

use super::{NOW, exited, member, outside, ready, running, told};

/// What a failure of stage 1 with a code leads to.
fn after(code: i32, rules: Vec<ExitCodeRule>) -> State {
    let mut observed = running(vec![exited(0, 75, 990), exited(1, code, 995), exited(2, 75, 990)]);
    observed.policy.restart.exit_codes = rules;
    decide(&observed, NOW).state
}

#[test]
fn exit_codes_decide_what_follows() {
    for code in [1, 3, 74, 137, 139] {
        let state = after(code, vec![]);
        assert_eq!((state.outcome(), state.budget.counted, state.attempt.number), (None, 1, 2), "{code}");
    }
    assert_eq!(after(78, vec![]).outcome(), Some(&Outcome::Failed(FailReason::InvalidConfig)));
    let rule = |codes: &[i32], action| ExitCodeRule { codes: codes.to_vec(), action };
    let rules = vec![
        rule(&[3], ExitAction::Fail),
        rule(&[3, 4], ExitAction::RestartUncounted),
        rule(&[78, 137], ExitAction::Restart),
    ];
    assert_eq!(after(3, rules.clone()).outcome(), Some(&Outcome::Failed(FailReason::ExitCodeRule)));
    assert_eq!((after(4, rules.clone()).budget.total, after(4, rules.clone()).budget.counted), (1, 0));
    assert_eq!((after(78, rules.clone()).outcome(), after(78, rules.clone()).budget.counted), (None, 1));
    // What came from outside is nobody's fault, whatever the rules say of its code.
    let mut observed = running(vec![outside(0, External::Evicted), exited(1, 75, 996), exited(2, 75, 996)]);
    observed.policy.restart.exit_codes = vec![rule(&[137], ExitAction::Fail)];
    assert_eq!(decide(&observed, NOW).state.outcome(), None);
}

#[test]
fn a_failure_that_comes_again_at_the_same_step_is_final() {
    let failing = |kind, step| running(vec![exited(0, 75, 991), told(1, kind, step), exited(2, 75, 991)]);
    let first = decide(&failing(FailureKind::NonFinite, Some(7)), NOW).state;
    assert_eq!(first.attempt.number, 2);
    let again = |kind, step, before: &State| {
        let mut observed = failing(kind, step);
        observed.members.iter_mut().for_each(|member| member.attempt = before.attempt.number);
        observed.state = State { doing: Doing::Running { not_before: Time(0), created: true }, ..before.clone() };
        decide(&observed, NOW).state
    };
    assert_eq!(
        again(FailureKind::NonFinite, Some(7), &first).outcome(),
        Some(&Outcome::Failed(FailReason::Deterministic))
    );
    assert_eq!(again(FailureKind::NonFinite, Some(8), &first).outcome(), None);
    // Another failure in between changes nothing.
    let other = again(FailureKind::OutOfMemory, Some(7), &first);
    assert_eq!(other.outcome(), None);
    assert_eq!(
        again(FailureKind::NonFinite, Some(7), &other).outcome(),
        Some(&Outcome::Failed(FailReason::Deterministic))
    );
    // What need not come again may come any number of times.
    assert_eq!(again(FailureKind::OutOfMemory, Some(7), &other).outcome(), None);
}

#[test]
fn the_wait_doubles_until_training_gets_further() {
    let mut observed = running(vec![exited(0, 1, 995), exited(1, 75, 996), exited(2, 75, 996)]);
    let fail = |observed: &mut Observed| {
        observed.members.iter_mut().for_each(|member| member.attempt = observed.state.attempt.number);
        observed.state.doing = Doing::Running { not_before: Time(0), created: true };
        observed.state = decide(observed, NOW).state;
        let Doing::Running { not_before, created: false } = observed.state.doing else { return None };
        Some((not_before.0 - NOW.0) / 1000)
    };
    observed.seen.step = Some(5);
    assert_eq!([(); 4].map(|()| fail(&mut observed)), [Some(2), Some(4), Some(8), Some(10)]);
    observed.seen.step = Some(6);
    assert_eq!(fail(&mut observed), Some(2));
    // Five of ten restarts are spent; a checkpoint refills the budget, then ten more are allowed and no eleventh.
    assert_eq!(observed.state.budget, Budget { total: 5, counted: 5, spent: 5 });
    observed.seen.checkpoint = Some(6);
    assert_eq!((0..11).filter_map(|_| fail(&mut observed)).count(), 10);
    assert_eq!(observed.state.outcome(), Some(&Outcome::Failed(FailReason::BudgetExhausted)));
    assert_eq!(observed.state.budget, Budget { total: 15, counted: 15, spent: 10 });
}

#[test]
fn a_failed_attempt_is_removed_before_the_next_starts() {
    let observed = running(vec![ready(0), exited(1, 1, 999), ready(2)]);
    let decision = decide(&observed, NOW);
    assert_eq!(decision.actions, [Action::DeleteMembers { attempt: 1, grace: 10 }]);
    assert_eq!((decision.state.attempt.number, decision.wake), (2, None));

    // Asked at 1000, stage 0 does not go: killed after its grace, given up after the timeout of 180 s.
    let mut observed = Observed { state: decision.state, ..observed };
    observed.members = vec![member(0, MemberState::Terminating, 1000)];
    let at = |seconds| decide(&observed, Time::from_seconds(seconds));
    assert_eq!((at(1003).actions, at(1003).wake), (vec![], Some(Time::from_seconds(1010))));
    assert_eq!(at(1010).actions, [Action::KillMembers { attempt: 1 }]);
    assert_eq!((at(1179).actions.len(), at(1179).wake), (1, Some(Time::from_seconds(1180))));
    assert!(at(1180).actions.contains(&Action::StartAttempt { number: 2, stages: 3 }));

    // Gone at once, only the back-off is waited for.
    observed.members.clear();
    let at = |seconds| decide(&observed, Time::from_seconds(seconds));
    assert_eq!(
        (at(1001).actions, at(1001).wake, at(1001).phase),
        (vec![], Some(Time::from_seconds(1002)), Phase::Restarting)
    );
    assert_eq!(at(1002).actions, [Action::StartAttempt { number: 2, stages: 3 }]);
}

#[test]
fn a_drain_waits_until_all_are_gone_and_then_raises_the_attempt() {
    for change in [|desired: &mut Desired| desired.stages = 2, |desired: &mut Desired| desired.revision = 8] {
        let mut observed = running((0..3).map(ready).collect());
        change(&mut observed.desired);
        let decision = decide(&observed, NOW);
        assert_eq!((&decision.state.doing, decision.state.attempt.number), (&Doing::Draining, 1));
        assert_eq!(decision.actions, [Action::DeleteMembers { attempt: 1, grace: 120 }]);

        observed.state = decision.state;
        observed.members = vec![exited(0, 143, 1001), member(1, MemberState::Terminating, 1000)];
        let decision = decide(&observed, Time::from_seconds(1119));
        assert_eq!(
            (decision.state, decision.actions, decision.wake),
            (observed.state.clone(), vec![], Some(Time::from_seconds(1120)))
        );

        observed.members = vec![exited(0, 143, 1001), exited(1, 143, 1002)];
        let decision = decide(&observed, Time::from_seconds(1003));
        assert_eq!((decision.state.attempt.number, decision.state.budget), (2, Budget::default()));
        let stages = observed.desired.stages;
        assert!(decision.actions.contains(&Action::StartAttempt { number: 2, stages }));
    }
}

#[test]
fn a_suspended_job_stays_away_and_comes_back() {
    let mut observed = running((0..3).map(ready).collect());
    observed.desired.suspend = true;
    observed.state = decide(&observed, NOW).state;
    observed.members = (0..3).map(|stage| exited(stage, 143, 1001)).collect();
    let decision = decide(&observed, NOW);
    assert_eq!((&decision.state.doing, decision.phase), (&Doing::Idle, Phase::Suspended));
    assert_eq!(decision.state.started, None);

    observed.state = decision.state;
    observed.members.clear();
    assert_eq!(decide(&observed, NOW).actions, []);
    observed.desired.suspend = false;
    let decision = decide(&observed, NOW);
    assert_eq!((decision.state.attempt.number, decision.state.started), (2, Some(NOW)));
    assert_eq!(decision.actions, [Action::StartAttempt { number: 2, stages: 3 }]);
}

#[test]
fn a_job_suspended_from_the_start_never_starts() {
    let mut observed = running(vec![]);
    observed.state = State::default();
    observed.desired.suspend = true;
    let decision = decide(&observed, NOW);
    assert_eq!((decision.state, decision.actions, decision.phase), (State::default(), vec![], Phase::Suspended));
}

#[test]
fn done_is_done_even_while_it_is_asked_to_stop() {
    let mut observed = running((0..3).map(|stage| exited(stage, 0, 995)).collect());
    observed.desired.suspend = true;
    for doing in [Doing::Draining, Doing::Running { not_before: Time(0), created: true }] {
        observed.state.doing = doing;
        let decision = decide(&observed, NOW);
        assert_eq!((decision.state.outcome(), decision.phase), (Some(&Outcome::Complete), Phase::Complete));
        assert_eq!((decision.actions, decision.wake), (vec![], None));
    }
}

#[test]
fn the_deadline_ends_the_job_after_a_save() {
    let mut observed = running((0..3).map(ready).collect());
    observed.policy.active_deadline = Some(1000);
    assert_eq!(decide(&observed, Time::from_seconds(999)).wake, Some(Time::from_seconds(1000)));
    let decision = decide(&observed, NOW);
    assert_eq!(decision.state.outcome(), Some(&Outcome::Failed(FailReason::DeadlineExceeded)));
    assert_eq!(decision.actions, [Action::DeleteMembers { attempt: 1, grace: 120 }]);
}

#[test]
fn a_record_older_than_the_members_never_reuses_their_number() {
    let mut observed = running(vec![Member { attempt: 5, ..ready(0) }]);
    let decision = decide(&observed, NOW);
    assert_eq!(decision.state.attempt.number, 6);
    assert_eq!(decision.actions, [Action::DeleteMembers { attempt: 5, grace: 10 }]);
    observed.state = State::default();
    assert_eq!(decide(&observed, NOW).state.attempt.number, 6);
}

#[test]
fn a_member_missing_after_all_were_created_is_not_created_again() {
    let mut observed = running((0..3).map(ready).collect());
    observed.state.doing = Doing::Running { not_before: Time(0), created: false };
    let decision = decide(&observed, NOW);
    assert_eq!(decision.state.doing, Doing::Running { not_before: Time(0), created: true });
    assert_eq!(decision.actions, []);

    observed.state = decision.state;
    observed.members.remove(1);
    let decision = decide(&observed, NOW);
    assert_eq!((decision.state.attempt.number, decision.state.last_failure.unwrap().stage), (2, Some(1)));
    assert_eq!(decision.actions, [Action::DeleteMembers { attempt: 1, grace: 10 }]);
}

#[test]
fn limits_come_from_the_spec() {
    let text = "apiVersion: stagecoach.dev/v1alpha1\nkind: PipelineJob\nmetadata: {name: a}\nspec: {activeDeadlineSeconds: 9, template: {spec: {terminationGracePeriodSeconds: 45}}}";
    let spec = stagecoach_api::parse(text, "a.yaml").unwrap().spec;
    let policy = Policy::for_pods(&spec);
    assert_eq!((policy.grace, policy.active_deadline, policy.scheduling_timeout), (45, Some(9), 3600));
    assert!(policy.nodes_may_vanish && !Policy::for_processes(&spec).nodes_may_vanish);
}

#[test]
fn a_member_of_an_attempt_that_nobody_counted_up_to_is_ignored() {
    let all = || vec![ready(0), ready(1), ready(2)];
    let far = |attempt| Member { attempt, ..ready(0) };
    for attempt in [u64::MAX, u64::MAX - 1, 1 << 53, 2_000_000] {
        let mut observed = running(all());
        observed.members.push(far(attempt));
        assert_eq!(decide(&observed, NOW), decide(&running(all()), NOW), "{attempt}");
    }
    // a lost record: the number that is in use is never used again
    let mut observed = running(all());
    observed.members.push(far(50));
    assert_eq!(decide(&observed, NOW).state.attempt.number, 51);
}
