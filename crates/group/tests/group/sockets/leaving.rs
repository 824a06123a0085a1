//! Tests how members leave a group: all members together, or some while other members continue.

use std::thread;

use stagecoach_group::{GroupError, StepRules, StepVote};

use super::support::{formed_group, leave, timeouts};

#[test]
fn leave_waits_for_all_members_and_is_no_failure() {
    for code in [0, 143] {
        let (coordinator, mut stages) = formed_group(3, timeouts(), StepRules::default());
        let last = stages.remove(1);
        let leaving = thread::spawn(move || leave(stages, code));
        assert!(last.member.leave(code).is_ok());
        assert!(last.failures.recv().is_err());
        assert!(leaving.join().unwrap().into_iter().all(|left| left.is_ok()));
        assert_eq!(coordinator.failure(), None);
    }
}

#[test]
fn leaving_while_others_vote_fails_the_group() {
    let (_coordinator, mut stages) = formed_group(3, timeouts(), StepRules::default());
    let voting = stages.remove(2);
    let leaver = stages.remove(1);
    let zero = stages.remove(0);
    thread::scope(|scope| {
        let left = scope.spawn(move || leaver.member.leave(0));
        let voted = scope.spawn(|| voting.member.vote(StepVote { step: 7, ..StepVote::default() }));
        let Err(GroupError::GroupFailed(failure)) = voted.join().unwrap() else { panic!("the vote was answered") };
        assert_eq!((failure.root_cause_rank, failure.rank), (Some(1), 2));
        assert!(failure.to_string().starts_with("stage 1 left with exit code 0"), "{failure}");
        let Err(GroupError::GroupFailed(own)) = left.join().unwrap() else { panic!("the leave was acknowledged") };
        assert!(own.is_root_cause());
    });
    assert!(zero.only_failure().to_string().starts_with("stage 1 left with exit code 0"));
}

#[test]
fn a_stage_that_leaves_with_an_error_is_acknowledged_and_named() {
    let (_coordinator, mut stages) = formed_group(3, timeouts(), StepRules::default());
    let failing = stages.remove(1);
    failing.member.activity().set("UPDATE", None);
    assert!(failing.member.leave(74).is_ok());
    for stage in stages {
        let failure = stage.only_failure();
        assert_eq!(failure.root_cause_rank, Some(1));
        assert!(failure.to_string().contains("left with exit code 74"), "{failure}");
    }
    assert!(failing.failures.recv().is_err());
}

#[test]
fn stage_zero_that_leaves_with_an_error_is_acknowledged_last() {
    let (coordinator, mut stages) = formed_group(3, timeouts(), StepRules::default());
    assert!(stages.remove(0).member.leave(1).is_ok());
    // stage 0's process may end now, because all other stages have been notified
    drop(coordinator);
    for stage in stages {
        let failure = stage.only_failure();
        assert_eq!(failure.root_cause_rank, Some(0));
        assert!(failure.to_string().starts_with("stage 0 left with exit code 1"), "{failure}");
    }
}

#[test]
fn a_stage_that_lost_a_peer_is_not_the_root_cause() {
    let (_coordinator, mut stages) = formed_group(2, timeouts(), StepRules::default());
    assert!(stages.remove(1).member.leave(75).is_ok());
    assert_eq!(stages.remove(0).only_failure().root_cause_rank, None);
}

#[test]
fn a_member_that_disconnects_gets_no_failure_callback() {
    let (_coordinator, mut stages) = formed_group(2, timeouts(), StepRules::default());
    let leaver = stages.remove(1);
    drop(leaver.member);
    assert!(leaver.failures.recv().is_err());
    assert_eq!(stages.remove(0).only_failure().root_cause_rank, Some(1));
}
