//! Tests of the root-cause analysis of exits and timeouts.

use stagecoach_api::contract::FailureKind;
use stagecoach_api::job::JobPhase;
use stagecoach_lifecycle::*;

use super::{NOW, exited, exited_by_external_cause, exited_with_report, instance, ready, running, start};

/// Returns the failed stage, the failure's label, and whether the restart counts. `None` while the attempt continues.
fn cause(instances: Vec<StageInstance>) -> Option<(Option<u32>, String, bool)> {
    let state = decide(&running(instances), NOW).state;
    state.last_failure.map(|failure| (failure.rank, failure.label(), state.budget.counted > 0))
}

#[test]
fn the_root_cause_is_found_among_many_exits() {
    let starting = |rank, seconds| instance(rank, InstanceState::Starting, seconds);
    let killed = |rank, signal, seconds| {
        instance(rank, InstanceState::Exited(Exit { signal: Some(signal), ..Exit::default() }), seconds)
    };
    let terminating = |rank, seconds| instance(rank, InstanceState::Terminating, seconds);
    let rows = [
        ("all is well", vec![ready(0), ready(1), ready(2)], None),
        (
            "the root cause, not an earlier secondary exit",
            vec![exited(0, 75, 990), exited(1, 1, 995), exited(2, 75, 991)],
            Some((1, "Error", true)),
        ),
        ("the earlier of two", vec![exited(0, 1, 995), exited(1, 74, 994), ready(2)], Some((1, "Storage", true))),
        (
            "of the same moment, the lower stage",
            vec![ready(0), killed(2, 9, 995), killed(1, 9, 995)],
            Some((1, "Killed", true)),
        ),
        (
            "all secondary",
            vec![exited(0, 75, 992), exited(1, 75, 991), exited(2, 75, 993)],
            Some((1, "PeerLost", true)),
        ),
        ("secondary exits so far: wait", vec![exited(0, 75, 995), ready(1), exited(2, 75, 995)], None),
        (
            "one still runs although its peers lost it",
            vec![exited(0, 75, 989), ready(1), exited(2, 75, 989)],
            Some((1, "NodeLost", false)),
        ),
        (
            "the kind of the termination message",
            vec![
                exited_with_report(0, FailureKind::PeerLost, None),
                exited_with_report(1, FailureKind::OutOfMemory, Some(5)),
                ready(2),
            ],
            Some((1, "OutOfMemory", true)),
        ),
        ("deleted, its exit not observed", vec![ready(0), exited(2, 75, 995)], Some((1, "Unknown", false))),
        ("a known exit comes before a missing one", vec![ready(0), exited(2, 1, 995)], Some((2, "Error", true))),
        (
            "preempted",
            vec![exited_by_external_cause(0, ExternalCause::Preempted), exited(1, 143, 996), exited(2, 143, 996)],
            Some((0, "Preempted", false)),
        ),
        (
            "evicted",
            vec![exited_by_external_cause(0, ExternalCause::Evicted), exited(1, 75, 996), exited(2, 75, 996)],
            Some((0, "Evicted", false)),
        ),
        (
            "not admitted by its node",
            vec![exited_by_external_cause(0, ExternalCause::NotAdmitted), exited(1, 75, 996), exited(2, 75, 996)],
            Some((0, "Unschedulable", false)),
        ),
        (
            "one was deleted by another client: the others save",
            vec![terminating(0, 990), ready(1), exited(2, 143, 995)],
            None,
        ),
        (
            "all saved and exited",
            vec![exited(0, 143, 991), exited(1, 143, 990), exited(2, 143, 992)],
            Some((1, "Drained", false)),
        ),
        ("does not terminate", vec![terminating(0, 860), ready(1), ready(2)], Some((0, "NodeLost", false))),
        ("not ready in time", vec![ready(0), starting(1, 400), starting(2, 300)], Some((1, "StartupTimeout", true))),
        ("still time to get ready", vec![ready(0), starting(1, 401), starting(2, 300)], None),
        ("some are done", vec![exited(0, 0, 950), ready(1), ready(2)], None),
        ("some are done, one never will be", vec![exited(0, 0, 300), ready(1), exited(2, 0, 300)], None),
    ];
    for (name, instances, expected) in rows {
        let expected = expected.map(|(rank, label, counted)| (Some(rank), label.to_owned(), counted));
        assert_eq!(cause(instances), expected, "{name}");
    }
    let done = |at| vec![exited(0, 0, at), instance(1, InstanceState::Ready, 100), exited(2, 0, at)];
    assert_eq!(cause(done(400)), Some((Some(1), "Stalled".into(), true)));
    assert_eq!(cause(done(401)), None);
}

#[test]
fn the_scheduling_timeout_is_not_the_start_up_timeout() {
    let mut observed = running(vec![instance(0, InstanceState::Pending, 0), ready(1), ready(2)]);
    assert_eq!(decide(&observed, UnixMillis::from_seconds(3599)).wake_at, Some(UnixMillis::from_seconds(3600)));
    let state = decide(&observed, UnixMillis::from_seconds(3600)).state;
    assert_eq!(state.last_failure.unwrap().reason, FailureReason::Unschedulable);
    let missing = incomplete(vec![instance(0, InstanceState::Starting, 0), ready(1)]);
    let failure = decide(&missing, UnixMillis::from_seconds(100_000)).state.last_failure.unwrap();
    assert_eq!((failure.reason, failure.rank), (FailureReason::Unschedulable, Some(2)), "not one that was created");
    assert_eq!((state.budget.total, state.budget.counted), (1, 0));
    // stage 0 could not even be created
    observed.instances.remove(0);
    observed.state.attempt_phase = AttemptPhase::Running { not_before: UnixMillis(0), all_created: false };
    let decision = decide(&observed, UnixMillis::from_seconds(3599));
    assert_eq!(decision.actions, [start(1, 3)]);
    assert_eq!(decision.state, observed.state);
}

#[test]
fn no_timeout_counts_the_time_in_which_a_stage_is_gated() {
    for others in [ready(1), instance(1, InstanceState::Pending, 0), instance(1, InstanceState::Starting, 0)] {
        let mut observed = running(vec![instance(0, InstanceState::SchedulingGated, 0), others, ready(2)]);
        let long_after = UnixMillis::from_seconds(1_000_000);
        let decision = decide(&observed, long_after);
        assert_eq!((&decision.state, decision.wake_at), (&observed.state, None));
        assert!(decision.actions.is_empty());
        // the timeout starts when the queue removes the scheduling gate of the pod
        observed.instances[0] = instance(0, InstanceState::Pending, 1_000_000);
        observed.instances[1] = ready(1);
        assert_eq!(decide(&observed, long_after).wake_at, Some(UnixMillis::from_seconds(1_003_600)));
    }
}

#[test]
fn a_long_grace_period_is_honoured_to_its_end() {
    let mut observed = running(vec![instance(0, InstanceState::Terminating, 900), ready(1), ready(2)]);
    observed.policy.grace_seconds = 3600;
    let at = |seconds| decide(&observed, UnixMillis::from_seconds(seconds)).state.last_failure;
    assert_eq!(at(4509), None);
    assert_eq!(at(4510).unwrap().reason, FailureReason::NodeLost);
}

/// Returns attempt 1, in which one stage could not be created yet.
fn incomplete(instances: Vec<StageInstance>) -> Observed {
    let mut observed = running(instances);
    observed.state.attempt_phase = AttemptPhase::Running { not_before: UnixMillis(0), all_created: false };
    observed
}

#[test]
fn giving_up_on_a_stage_that_the_cluster_has_not_started_does_not_count() {
    let gave_up = || exited_with_report(0, FailureKind::StartupTimeout, None);
    let pending = || instance(2, InstanceState::Pending, 900);
    let rows = [
        ("not created, and the others lost each other", incomplete(vec![exited(0, 75, 980), exited(1, 75, 981)])),
        ("not created, and another still starts", incomplete(vec![exited(0, 75, 980), ready(1)])),
        ("not created, and another gave up", incomplete(vec![gave_up(), exited(1, 75, 980)])),
        ("pending", running(vec![exited(0, 75, 980), exited(1, 75, 980), pending()])),
        ("pending, and another gave up", running(vec![gave_up(), exited(1, 75, 980), pending()])),
    ];
    for (name, observed) in rows {
        let state = decide(&observed, NOW).state;
        let failure = state.last_failure.unwrap_or_else(|| panic!("{name}: no failure"));
        assert_eq!((failure.reason, failure.rank), (FailureReason::Unschedulable, Some(2)), "{name}");
        assert_eq!((state.budget.total, state.budget.counted), (1, 0), "{name}");
    }
    // The error of a stage is a failure even in an incomplete attempt. After an exit with 75, the exit of the root
    // cause may still follow.
    let state = decide(&incomplete(vec![exited(0, 1, 980), ready(1)]), NOW).state;
    assert_eq!((state.last_failure.unwrap().reason, state.budget.counted), (FailureReason::Error, 1));
    let undecided = decide(&incomplete(vec![exited(0, 75, 995), ready(1)]), NOW);
    // no exited stage is replaced alone, because the replacement would start without its peers
    assert_eq!((undecided.state.last_failure, undecided.actions), (None, vec![]));
    // if the cluster has started all stages, the start-up timeout is a failure of the stages
    let state = decide(&running(vec![gave_up(), exited(1, 75, 980), exited(2, 75, 980)]), NOW).state;
    assert_eq!((state.last_failure.unwrap().label(), state.budget.counted), ("StartupTimeout".into(), 1));
}

#[test]
fn an_attempt_that_can_not_be_completed_makes_room_and_waits() {
    let mut observed = incomplete(vec![instance(0, InstanceState::Starting, 990)]);
    observed.refusal =
        Some(CreationRefusal { since: UnixMillis::from_seconds(990), message: "exceeded quota: small".into() });
    let before = decide(&observed, UnixMillis::from_seconds(999));
    assert_eq!((before.state, before.wake_at), (observed.state.clone(), Some(NOW)));
    let decision = decide(&observed, NOW);
    let failure = decision.state.last_failure.clone().unwrap();
    assert_eq!((failure.reason, failure.rank), (FailureReason::Unschedulable, Some(1)));
    assert!(failure.message.contains("exceeded quota: small"), "{}", failure.message);
    assert_eq!((decision.state.budget.total, decision.state.budget.counted), (1, 0));
    assert_eq!(
        decision.actions,
        [AttemptAction::DeleteInstances { attempt: 1, grace_seconds: 10, unready_grace_seconds: 1 }]
    );
    assert_eq!(
        decision.state.attempt_phase,
        AttemptPhase::Running { not_before: NOW.plus_seconds(2), all_created: false },
        "it waits before it tries again"
    );
    // no instance holds resources any more
    observed.instances.clear();
    assert_eq!(decide(&observed, NOW).state, observed.state);
}

/// A drain of the cluster ended the operator together with all stages, so no exit was observed.
#[test]
fn a_drain_that_takes_the_operator_too_is_a_drain() {
    let state = decide(&running(vec![]), NOW).state;
    let failure = state.last_failure.unwrap();
    assert_eq!((failure.reason, failure.rank, state.budget.counted), (FailureReason::Drained, None, 0));
    assert_eq!(state.attempt_phase, AttemptPhase::Running { not_before: NOW, all_created: false });
}

#[test]
fn preparation_extends_the_start_up_timeout() {
    let mut observed = running((0..3).map(|rank| instance(rank, InstanceState::Starting, 0)).collect());
    observed.progress.last_preparation_at = Some(UnixMillis::from_seconds(900));
    let decision = decide(&observed, NOW);
    assert_eq!((decision.job_phase, decision.wake_at), (JobPhase::Starting, Some(UnixMillis::from_seconds(1500))));
    assert_eq!(decide(&observed, UnixMillis::from_seconds(1500)).state.attempt.number, 2);
    // it is unknown whether the preparation continues
    observed.progress.is_unreachable = true;
    assert_eq!(decide(&observed, UnixMillis::from_seconds(9999)).state, observed.state);
}

#[test]
fn a_stall_is_detected_only_if_progress_is_known() {
    let mut observed = running((0..3).map(ready).collect());
    assert_eq!(decide(&observed, UnixMillis::from_seconds(9999)).state, observed.state);
    observed.progress.last_step_at = Some(UnixMillis::from_seconds(950));
    assert_eq!(decide(&observed, NOW).wake_at, Some(UnixMillis::from_seconds(1550)));
    assert_eq!(
        decide(&observed, UnixMillis::from_seconds(1550)).state.last_failure.unwrap().reason,
        FailureReason::Stalled
    );
}
