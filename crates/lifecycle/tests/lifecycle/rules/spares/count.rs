//! Tests of the number of spares that are created and removed, and of the actions that wait until the spares are gone.

use std::collections::BTreeMap;

use stagecoach_api::contract::Mesh;
use stagecoach_lifecycle::*;

use super::{actions, all_ready, promoted, remove_spares, spare, start_spares, waits, with_spares};
use crate::rules::{NOW, exited, ready};

#[test]
fn spares_are_made_beside_a_whole_group() {
    let mut observed = with_spares(all_ready(), vec![waits(1)]);
    observed.policy.spares = 3;
    assert_eq!(actions(&observed), [start_spares(&[0, 2])]);
    observed.spares.extend([spare(0, InstanceState::Pending, 990), spare(2, InstanceState::Starting, 990)]);
    assert_eq!(decide(&observed, NOW), Decision { wake_at: None, ..decide(&observed, NOW) });
    assert_eq!(actions(&observed), []);
    // a terminating spare does not count, but its name is in use
    observed.spares[1].state = InstanceState::Terminating;
    assert_eq!(actions(&observed), [start_spares(&[3])]);
    // the name of a spare that has taken a stage's place is in use too
    observed.spares.remove(1);
    observed.instances[1] = promoted(1, 1);
    observed.state.incarnations = BTreeMap::from([(1, 1)]);
    assert_eq!(actions(&observed), [start_spares(&[3])]);
    observed.instances[1] = StageInstance { attempt: 0, ..promoted(1, 1) };
    observed.instances.push(StageInstance { incarnation: 1, ..ready(1) });
    let with_older = actions(&observed);
    assert!(!with_older.contains(&start_spares(&[0])), "an older attempt remains: {with_older:?}");
    observed.instances.remove(1);
    assert_eq!(actions(&observed), [start_spares(&[0])]);
}

#[test]
fn no_spare_is_made_while_stages_are_not_there() {
    let none = |what: &str, change: &dyn Fn(&mut Observed)| {
        let mut observed = with_spares(all_ready(), vec![]);
        observed.policy.spares = 1;
        assert_eq!(actions(&observed), [start_spares(&[0])]);
        change(&mut observed);
        let after = actions(&observed);
        assert!(!after.iter().any(|action| matches!(action, AttemptAction::StartSpares { .. })), "{what}: {after:?}");
    };
    none("a stage waits for room", &|observed| observed.instances[1].state = InstanceState::Pending);
    none("stages are not replaced", &|observed| observed.policy.replaces_stages = false);
    none("a stage is not created", &|observed| {
        let phase = AttemptPhase::Running { not_before: UnixMillis(0), all_created: false };
        observed.state.attempt_phase = phase;
        observed.instances.remove(1);
    });
    none("it drains", &|observed| observed.desired.suspend = true);
    none("it failed", &|observed| {
        let outcome = JobOutcome::Failed(JobFailureReason::DeadlineExceeded);
        observed.state.attempt_phase = AttemptPhase::Finished(outcome);
    });
    none("it is complete", &|observed| {
        observed.state.attempt_phase = AttemptPhase::Finished(JobOutcome::Complete);
    });
}

#[test]
fn surplus_spares_are_removed() {
    let mut observed = with_spares(all_ready(), vec![waits(0), waits(4), spare(2, InstanceState::Pending, 990)]);
    observed.policy.spares = 1;
    assert_eq!(actions(&observed), [remove_spares(&[2, 4])]);
    observed.policy.replaces_stages = false;
    assert_eq!(actions(&observed), [remove_spares(&[0, 2, 4])]);
    observed.spares.iter_mut().for_each(|spare| spare.state = InstanceState::Terminating);
    assert_eq!(actions(&observed), []);
}

#[test]
fn one_that_exited_is_made_again_later_and_is_no_failure() {
    let mut observed = with_spares(all_ready(), vec![waits(0), waits(1)]);
    observed.spares[0] = spare(0, InstanceState::Exited(Exit::with_code(1)), 995);
    let decision = decide(&observed, NOW);
    assert_eq!((&decision.state, decision.actions), (&observed.state, vec![]));
    assert_eq!(decision.wake_at, Some(UnixMillis::from_seconds(1005)));
    let decision = decide(&observed, UnixMillis::from_seconds(1005));
    assert_eq!((&decision.state, decision.actions), (&observed.state, vec![remove_spares(&[0]), start_spares(&[2])]));
    // a spare that never starts is not replaced, and is no failure either
    observed.spares = vec![spare(0, InstanceState::Pending, 0), spare(1, InstanceState::Starting, 0)];
    let decision = decide(&observed, NOW.plus_seconds(1_000_000));
    assert_eq!((decision.state, decision.actions, decision.wake_at), (observed.state, vec![], None));
}

#[test]
fn a_drain_and_the_next_attempt_wait_for_spares() {
    let mut observed = with_spares(vec![exited(0, 143, 995), exited(1, 143, 995), exited(2, 143, 995)], vec![waits(0)]);
    observed.desired.suspend = true;
    let decision = decide(&observed, NOW);
    assert_eq!(decision.state.attempt_phase, AttemptPhase::Draining);
    assert_eq!(
        decision.actions,
        [AttemptAction::DeleteInstances { attempt: 1, grace_seconds: 120, unready_grace_seconds: 30 }]
    );
    observed.state = decision.state;
    observed.spares[0] = spare(0, InstanceState::Terminating, 880);
    let decision = decide(&observed, NOW);
    assert_eq!(decision.state.attempt_phase, AttemptPhase::Draining);
    assert_eq!(decision.actions, [AttemptAction::KillInstances { attempt: 1 }]);
    observed.spares.clear();
    assert_eq!(decide(&observed, NOW).state.attempt_phase, AttemptPhase::Idle);

    // the spares of an older attempt are deleted first
    let mut observed = with_spares(vec![], vec![waits(0)]);
    observed.state.attempt.number = 2;
    observed.state.attempt_phase = AttemptPhase::Running { not_before: UnixMillis(0), all_created: false };
    assert_eq!(
        actions(&observed),
        [AttemptAction::DeleteInstances { attempt: 1, grace_seconds: 10, unready_grace_seconds: 1 }]
    );
    observed.spares.clear();
    assert_eq!(actions(&observed), [crate::rules::start(2, 3)]);
    // the attempt number of the remaining spare is not reused
    observed.state = JobState::default();
    observed.spares = vec![SpareInstance { attempt: 4, ..waits(0) }];
    assert_eq!(decide(&observed, NOW).state.attempt.number, 5);
    observed.state.attempt_phase = AttemptPhase::Running { not_before: UnixMillis(0), all_created: false };
    observed.state.attempt =
        Attempt { number: 3, mesh: Mesh::pipeline(3), revision: 7, admission: 0, admitted_replicas: None };
    assert_eq!(decide(&observed, NOW).state.attempt.number, 5);

    let mut observed = with_spares(vec![exited(0, 78, 990)], vec![waits(0)]);
    let outcome = JobOutcome::Failed(JobFailureReason::InvalidConfig);
    observed.state.attempt_phase = AttemptPhase::Finished(outcome);
    assert_eq!(
        actions(&observed),
        [AttemptAction::DeleteInstances { attempt: 1, grace_seconds: 120, unready_grace_seconds: 30 }]
    );
    observed.spares[0].state = InstanceState::Exited(Exit::with_code(143));
    assert_eq!(actions(&observed), []);
}
