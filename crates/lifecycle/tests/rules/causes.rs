//! Which failure an attempt's end, or its silence, is put down to.

use stagecoach_api::contract::FailureKind;
use stagecoach_api::job::Phase;
use stagecoach_lifecycle::*;

use super::{NOW, exited, member, outside, ready, running, told};

/// The failure's stage, its label, and whether the restart counts. None while the attempt goes on.
fn cause(members: Vec<Member>) -> Option<(Option<u32>, String, bool)> {
    let state = decide(&running(members), NOW).state;
    state.last_failure.map(|failure| (failure.stage, failure.label(), state.budget.counted > 0))
}

#[test]
fn the_root_cause_is_picked_out_of_many_ends() {
    let starting = |stage, seconds| member(stage, MemberState::Starting, seconds);
    let killed = |stage, signal, seconds| member(stage, MemberState::Exited(Exit::with_signal(signal)), seconds);
    let leaving = |stage, seconds| member(stage, MemberState::Terminating, seconds);
    let rows = [
        ("all is well", vec![ready(0), ready(1), ready(2)], None),
        (
            "the culprit, not the earlier collateral",
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
            "all collateral",
            vec![exited(0, 75, 992), exited(1, 75, 991), exited(2, 75, 993)],
            Some((1, "PeerLost", true)),
        ),
        ("collateral so far: wait", vec![exited(0, 75, 995), ready(1), exited(2, 75, 995)], None),
        (
            "one still runs though the others lost it",
            vec![exited(0, 75, 989), ready(1), exited(2, 75, 989)],
            Some((1, "NodeLost", false)),
        ),
        (
            "the stage's own word",
            vec![told(0, FailureKind::PeerLost, None), told(1, FailureKind::OutOfMemory, Some(5)), ready(2)],
            Some((1, "OutOfMemory", true)),
        ),
        ("vanished", vec![ready(0), exited(2, 75, 995)], Some((1, "Unknown", true))),
        ("a known end says more than a missing one", vec![ready(0), exited(2, 1, 995)], Some((2, "Error", true))),
        (
            "preempted",
            vec![outside(0, External::Preempted), exited(1, 143, 996), exited(2, 143, 996)],
            Some((0, "Preempted", false)),
        ),
        (
            "evicted",
            vec![outside(0, External::Evicted), exited(1, 75, 996), exited(2, 75, 996)],
            Some((0, "Evicted", false)),
        ),
        ("asked to leave by someone: the others save", vec![leaving(0, 990), ready(1), exited(2, 143, 995)], None),
        (
            "all saved and left",
            vec![exited(0, 143, 991), exited(1, 143, 990), exited(2, 143, 992)],
            Some((1, "Drained", false)),
        ),
        ("never leaves", vec![leaving(0, 860), ready(1), ready(2)], Some((0, "NodeLost", false))),
        ("not ready in time", vec![ready(0), starting(1, 400), starting(2, 300)], Some((1, "StartupTimeout", true))),
        ("still time to get ready", vec![ready(0), starting(1, 401), starting(2, 300)], None),
        ("some are done", vec![exited(0, 0, 950), ready(1), ready(2)], None),
        ("some are done, one never will be", vec![exited(0, 0, 300), ready(1), exited(2, 0, 300)], None),
    ];
    for (name, members, expected) in rows {
        let expected = expected.map(|(stage, label, counted)| (Some(stage), label.to_owned(), counted));
        assert_eq!(cause(members), expected, "{name}");
    }
    let done = |at| vec![exited(0, 0, at), member(1, MemberState::Ready, 100), exited(2, 0, at)];
    assert_eq!(cause(done(400)), Some((Some(1), "Stalled".into(), true)));
    assert_eq!(cause(done(401)), None);
}

#[test]
fn a_place_is_waited_for_longer_than_a_start() {
    let mut observed = running(vec![member(0, MemberState::Pending, 0), ready(1), ready(2)]);
    assert_eq!(decide(&observed, Time::from_seconds(3599)).wake, Some(Time::from_seconds(3600)));
    let state = decide(&observed, Time::from_seconds(3600)).state;
    assert_eq!(state.last_failure.unwrap().reason, Reason::Unschedulable);
    assert_eq!((state.budget.total, state.budget.counted), (1, 0));
    // Stage 0 could not be created at all.
    observed.members.remove(0);
    observed.state.doing = Doing::Running { not_before: Time(0), created: false };
    let decision = decide(&observed, Time::from_seconds(3599));
    assert_eq!(decision.actions, [Action::StartAttempt { number: 1, stages: 3 }]);
    assert_eq!(decision.state, observed.state);
}

#[test]
fn preparation_extends_the_start() {
    let mut observed = running((0..3).map(|stage| member(stage, MemberState::Starting, 0)).collect());
    observed.seen.prepared = Some(Time::from_seconds(900));
    let decision = decide(&observed, NOW);
    assert_eq!((decision.phase, decision.wake), (Phase::Starting, Some(Time::from_seconds(1500))));
    assert_eq!(decide(&observed, Time::from_seconds(1500)).state.attempt.number, 2);
}

#[test]
fn a_stall_is_only_seen_if_progress_is_known() {
    let mut observed = running((0..3).map(ready).collect());
    assert_eq!(decide(&observed, Time::from_seconds(9999)).state, observed.state);
    observed.seen.progressed = Some(Time::from_seconds(950));
    assert_eq!(decide(&observed, NOW).wake, Some(Time::from_seconds(1550)));
    assert_eq!(decide(&observed, Time::from_seconds(1550)).state.last_failure.unwrap().reason, Reason::Stalled);
}
