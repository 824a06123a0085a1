//! Tests of an elastic job, which trains with the replicas that the cluster can run, and gets more replicas when its
//! queue admits them.

use stagecoach_api::job::JobPhase;

use super::*;

const MESH: Mesh = Mesh { stages: 2, data_parallel: 3 };

/// Returns attempt 1 of an elastic job with one to three replicas of two stages each.
fn elastic(instances: Vec<StageInstance>) -> Observed {
    let mut observed = running(instances);
    (observed.desired.mesh, observed.state.attempt.mesh) = (MESH, MESH);
    (observed.policy.replaces_stages, observed.policy.is_elastic) = (true, true);
    observed
}

fn starting(rank: u32) -> StageInstance {
    instance(rank, InstanceState::Starting, 900)
}

fn pending(rank: u32) -> StageInstance {
    instance(rank, InstanceState::Pending, 900)
}

#[test]
fn the_first_replicas_start_while_the_others_have_no_room() {
    let now = UnixMillis::from_seconds(900 + 2 * policy().scheduling_timeout_seconds);
    let at = |instances: Vec<StageInstance>, is_elastic| {
        let mut observed = elastic(instances);
        observed.policy.is_elastic = is_elastic;
        // the preparation takes long
        observed.progress.last_preparation_at = Some(now);
        decide(&observed, now).state.last_failure.map(|failure| failure.reason)
    };
    let two_of_three = || vec![starting(0), starting(1), pending(2), starting(3), pending(4), pending(5)];
    assert_eq!(at(two_of_three(), true), None);
    assert_eq!(at(two_of_three(), false), Some(FailureReason::Unschedulable));
    let none_complete = vec![starting(0), pending(1), starting(2), pending(3), starting(4), pending(5)];
    assert_eq!(at(none_complete, true), Some(FailureReason::Unschedulable));
}

/// Returns attempt 1 of an elastic job. A quota refuses the instances of the third replica.
fn refused(instances: Vec<StageInstance>) -> Observed {
    let mut observed = elastic(instances);
    observed.state.attempt_phase = AttemptPhase::Running { not_before: UnixMillis(0), all_created: false };
    observed.refusal = Some(CreationRefusal { since: UnixMillis::from_seconds(900), message: "full".into() });
    observed
}

#[test]
fn a_quota_for_fewer_replicas_ends_no_attempt_and_lost_stages_are_replaced_meanwhile() {
    let decision = decide(&refused((0..4).map(starting).collect()), NOW);
    assert_eq!((decision.state.last_failure, decision.state.attempt.number), (None, 1));
    assert_eq!(
        decision.actions,
        [AttemptAction::StartAttempt { number: 1, mesh: MESH, instances: 6 }],
        "the others are tried again"
    );
    let lost = refused(vec![ready(0), ready(1), ready(2), exited(3, 137, 990)]);
    let decision = decide(&lost, NOW);
    assert_eq!((decision.state.attempt.number, &decision.state.incarnations), (1, &[(3, 1)].into()));
    assert_eq!(decision.state.ranks_to_create, [3, 4, 5].into());
    // The replacement exists. The refused replica still does not count as lost.
    let mut replaced = refused(vec![ready(0), ready(1), ready(2)]);
    replaced.instances.push(StageInstance { incarnation: 1, ..starting(3) });
    replaced.state = decision.state;
    let decision = decide(&replaced, NOW);
    assert_eq!((decision.state.attempt.number, &decision.state.incarnations), (1, &[(3, 1)].into()));
}

/// Returns the decision after the queue changes the number of admitted replicas.
fn admitted(mut observed: Observed, before: u32, after: u32) -> Decision {
    observed.state.attempt.admitted_replicas = Some(before);
    observed.desired.admitted_replicas = Some(after);
    decide(&observed, NOW)
}

#[test]
fn an_attempt_gets_the_instances_of_the_replicas_that_are_admitted_later() {
    let grown = admitted(elastic((0..2).map(ready).collect()), 1, 3);
    assert_eq!((grown.state.attempt.number, grown.state.attempt.instances()), (1, 6));
    let added = AttemptAction::ReplaceStages { attempt: 1, incarnations: (2..6).map(|rank| (rank, 0)).collect() };
    assert_eq!((&grown.actions, grown.job_phase), (&vec![added], JobPhase::Running));
    // an instance that is not created yet does not count as lost
    let next = Observed { state: grown.state, ..elastic((0..3).map(ready).collect()) };
    let mut next = Observed { desired: Desired { admitted_replicas: Some(3), ..next.desired }, ..next };
    assert_eq!(decide(&next, NOW).state, next.state);
    next.instances = (0..6).map(ready).collect();
    let whole = decide(&next, NOW).state;
    assert_eq!(whole.attempt_phase, AttemptPhase::Running { not_before: UnixMillis(0), all_created: true });
    assert!(whole.ranks_to_create.is_empty());

    // an attempt that has not started creates the instances of all admitted replicas
    let mut new = elastic(vec![]);
    new.state.attempt_phase = AttemptPhase::Running { not_before: UnixMillis(0), all_created: false };
    let start = AttemptAction::StartAttempt { number: 1, mesh: MESH, instances: 4 };
    assert_eq!(admitted(new, 1, 2).actions, [start]);
    // fewer admitted replicas require another attempt
    assert_eq!(admitted(elastic((0..4).map(ready).collect()), 2, 1).state.attempt_phase, AttemptPhase::Draining);
}
