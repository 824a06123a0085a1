//! Any stage's death ends the whole group, and each is told once why.

use std::time::Duration;

use stagecoach_group::{FailureKind, Rules, Timing};

use crate::support::{PATIENCE, Stage, coordinator, formed, formed_through, hello, join, timing};

/// Checks what every survivor is told.
fn all_are_told(stages: Vec<Stage>, kind: FailureKind, culprit: usize, says: &str) {
    for stage in stages {
        let failure = stage.the_failure();
        assert_eq!((failure.kind, failure.culprit), (kind, Some(culprit)), "{failure}");
        assert!(failure.to_string().contains(says), "{failure}");
        assert_eq!(failure.is_culprit(), failure.rank == culprit);
    }
}

#[test]
fn a_member_that_dies_takes_the_group_with_it() {
    for victim in [1, 3] {
        let (coordinator, mut stages) = formed(4, timing(), Rules::default());
        drop(stages.remove(victim));
        let says = format!("stage {victim} closed its control connection");
        all_are_told(stages, FailureKind::ConnectionClosed, victim, &says);
        assert_eq!(coordinator.failure().unwrap().culprit, Some(victim));
    }
}

#[test]
fn stage_zero_that_dies_takes_the_group_with_it() {
    let (coordinator, mut stages) = formed(4, timing(), Rules::default());
    // A killed process loses both at once; here the coordinator goes first.
    drop(coordinator);
    drop(stages.remove(0));
    all_are_told(stages, FailureKind::ConnectionClosed, 0, "stage 0");
}

#[test]
fn a_member_of_stage_zero_that_ends_before_its_coordinator() {
    let (_coordinator, mut stages) = formed(3, timing(), Rules::default());
    drop(stages.remove(0));
    all_are_told(stages, FailureKind::ConnectionClosed, 0, "stage 0 closed");
}

#[test]
fn a_cut_connection_is_a_death_for_both_ends() {
    let (_coordinator, mut stages, proxy) = formed_through(3, 2, timing());
    proxy.cut();
    let cut = stages.remove(2).the_failure();
    // It can't tell its own network from stage 0's death.
    assert_eq!((cut.kind, cut.culprit), (FailureKind::ConnectionClosed, Some(0)));
    all_are_told(stages, FailureKind::ConnectionClosed, 2, "stage 2");
}

#[test]
fn a_silent_member_is_noticed() {
    let timing = Timing { heartbeat_timeout: Duration::from_millis(1500), ..timing() };
    let (_coordinator, mut stages, proxy) = formed_through(3, 1, timing);
    stages[1].member.activity().set("F 5", None);
    proxy.freeze();
    let frozen = stages.remove(1);
    all_are_told(stages, FailureKind::HeartbeatsMissed, 1, "stage 1 has not been heard for 1.5 s");
    // Nor does it hear anything: it ends by itself.
    let failure = frozen.the_failure();
    assert_eq!((failure.kind, failure.culprit), (FailureKind::HeartbeatsMissed, Some(0)));
}

#[test]
fn a_member_that_does_not_read_holds_up_nobody() {
    const MESSAGES: usize = 60;
    let (_coordinator, stages, proxy) = formed_through(3, 2, timing());
    proxy.freeze();
    // Far more than the buffers between here and there hold.
    let sent = vec![7; 1 << 20];
    (0..MESSAGES).for_each(|_| stages[0].member.tell(1, sent.clone()).unwrap());
    (0..MESSAGES).for_each(|_| assert!(stages[1].member.told(1).unwrap() == sent));
}

#[test]
fn calls_that_wait_return_and_later_ones_fail_at_once() {
    let (_coordinator, mut stages) = formed(2, timing(), Rules::default());
    let dying = stages.remove(1);
    let zero = stages.remove(0);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| zero.member.told(1).unwrap_err());
        drop(dying);
        assert!(waiting.join().unwrap().to_string().contains("stage 1"));
    });
    // By now the callback has run: it goes before the calls return.
    assert_eq!(zero.failures.try_recv().unwrap().culprit, Some(1));
    for error in [
        zero.member.gather(1, vec![]).unwrap_err(),
        zero.member.form().err().unwrap_or_else(|| zero.member.told(2).unwrap_err()),
    ] {
        assert!(error.to_string().contains("stage 1 closed its control connection"), "{error}");
    }
}

#[test]
fn stage_zero_that_gives_up_says_why() {
    let (coordinator, address) = coordinator(2, timing());
    let waiting = std::thread::spawn({
        let address = address.clone();
        move || join(&address, hello(1, 2), timing()).unwrap_err()
    });
    coordinator.reject("the corpus is empty");
    let error = waiting.join().unwrap();
    assert!(error.to_string().contains("stage 0 gave up: the corpus is empty"), "{error}");
    assert!(coordinator.failure().unwrap().is_culprit());
    // Whoever comes later hears the same.
    let late = join(&address, hello(1, 2), timing()).unwrap_err();
    assert_eq!(late.to_string(), error.to_string());
}

#[test]
fn a_plan_that_is_too_large_ends_the_group_with_a_sentence() {
    let (coordinator, address) = coordinator(1, timing());
    coordinator.release(vec![0; 65 << 20], Rules::default());
    let error = join(&address, hello(0, 1), Timing { startup: PATIENCE, ..timing() }).unwrap_err();
    assert!(error.to_string().contains("too large for the control connection"), "{error}");
}
