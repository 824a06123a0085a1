//! Leaving together, and leaving others behind.

use std::thread;

use stagecoach_group::{FailureKind, GroupError, Rules, StepVote};

use crate::support::{formed, leave, timing};

#[test]
fn a_goodbye_waits_for_the_last_and_is_no_failure() {
    for code in [0, 143] {
        let (coordinator, mut stages) = formed(3, timing(), Rules::default());
        let last = stages.remove(1);
        let leaving = thread::spawn(move || leave(stages, code));
        assert!(last.member.leave(code).is_ok());
        assert!(last.failures.recv().is_err());
        assert!(leaving.join().unwrap().into_iter().all(|left| left.is_ok()));
        assert_eq!(coordinator.failure(), None);
    }
}

#[test]
fn to_leave_while_others_vote_is_a_failure_for_all() {
    let (_coordinator, mut stages) = formed(3, timing(), Rules::default());
    let voting = stages.remove(2);
    let leaver = stages.remove(1);
    let zero = stages.remove(0);
    thread::scope(|scope| {
        let left = scope.spawn(move || leaver.member.leave(0));
        let voted = scope.spawn(|| voting.member.vote(StepVote { step: 7, ..StepVote::default() }));
        let Err(GroupError::Lost(failure)) = voted.join().unwrap() else { panic!("the vote was answered") };
        assert_eq!((failure.kind, failure.culprit, failure.rank), (FailureKind::Left, Some(1), 2));
        assert!(failure.to_string().starts_with("stage 1 left with exit code 0"), "{failure}");
        let Err(GroupError::Lost(own)) = left.join().unwrap() else { panic!("the goodbye was acknowledged") };
        assert!(own.is_culprit());
    });
    assert_eq!(zero.the_failure().kind, FailureKind::Left);
}

#[test]
fn a_stage_that_leaves_with_an_error_is_let_go_and_named() {
    let (_coordinator, mut stages) = formed(3, timing(), Rules::default());
    let failing = stages.remove(1);
    failing.member.activity().set("UPDATE", None);
    assert!(failing.member.leave(74).is_ok());
    for stage in stages {
        let failure = stage.the_failure();
        assert_eq!((failure.kind, failure.culprit), (FailureKind::Left, Some(1)));
        assert!(failure.to_string().contains("left with exit code 74"), "{failure}");
    }
    assert!(failing.failures.recv().is_err());
}

#[test]
fn stage_zero_that_leaves_with_an_error_is_let_go_last() {
    let (coordinator, mut stages) = formed(3, timing(), Rules::default());
    assert!(stages.remove(0).member.leave(1).is_ok());
    // Its process may end now: all others know already.
    drop(coordinator);
    for stage in stages {
        let failure = stage.the_failure();
        assert_eq!((failure.kind, failure.culprit), (FailureKind::Left, Some(0)));
    }
}

#[test]
fn who_leaves_as_collateral_is_not_the_culprit() {
    let (_coordinator, mut stages) = formed(2, timing(), Rules::default());
    assert!(stages.remove(1).member.leave(75).is_ok());
    assert_eq!(stages.remove(0).the_failure().culprit, None);
}

#[test]
fn who_hangs_up_is_told_nothing_of_its_own_doing() {
    let (_coordinator, mut stages) = formed(2, timing(), Rules::default());
    let leaver = stages.remove(1);
    drop(leaver.member);
    assert!(leaver.failures.recv().is_err());
    assert_eq!(stages.remove(0).the_failure().culprit, Some(1));
}
