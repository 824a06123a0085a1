//! Everybody lives and nothing moves.

use std::time::Duration;

use stagecoach_group::{FailureKind, Rules, StepVote, Timing};

use crate::support::{formed, timing};

fn impatient() -> Timing {
    Timing { stall: Duration::from_millis(600), ..timing() }
}

#[test]
fn a_hang_is_followed_to_the_stage_that_causes_it() {
    let (_coordinator, stages) = formed(3, impatient(), Rules::default());
    stages[0].member.activity().set("RECV_B of microbatch 4", Some(1));
    stages[1].member.activity().set("RECV_B of microbatch 3", Some(2));
    stages[2].member.activity().set("F 5", None);
    for stage in stages {
        let failure = stage.the_failure();
        assert_eq!((failure.kind, failure.culprit), (FailureKind::Hang, Some(2)));
        let chain = "stage 0 waits for RECV_B of microbatch 4 from stage 1, which waits for RECV_B of microbatch 3 \
                     from stage 2, which has been in F 5 for ";
        assert!(failure.to_string().contains(chain), "{failure}");
        assert_eq!(failure.is_culprit(), failure.rank == 2);
    }
}

#[test]
fn who_has_not_voted_is_waited_for() {
    let (_coordinator, mut stages) = formed(3, impatient(), Rules::default());
    stages[1].member.activity().set("B 2", None);
    let hung = stages.remove(1);
    std::thread::scope(|scope| {
        for stage in &stages {
            let member = &stage.member;
            scope.spawn(move || {
                member.activity().set("EXCHANGE", None);
                let error = member.vote(StepVote { step: 9, ..StepVote::default() }).unwrap_err();
                let chain = "stage 0 waits for the vote on step 9 from stage 1, which has been in B 2 for ";
                assert!(error.to_string().contains(chain), "{error}");
            });
        }
    });
    assert!(hung.the_failure().is_culprit());
}

#[test]
fn new_actions_are_a_sign_of_life() {
    let (coordinator, stages) = formed(2, impatient(), Rules::default());
    let activity = stages[1].member.activity();
    let start = std::time::Instant::now();
    let mut microbatch = 0u64;
    // Paced by the group itself: a gather takes a round trip and would count as movement, so only at the end.
    while start.elapsed() < impatient().stall * 3 {
        activity.set(format!("F {microbatch}"), None);
        microbatch += 1;
        assert!(stages[0].failures.recv_timeout(Duration::from_millis(20)).is_err());
    }
    assert_eq!(coordinator.failure(), None);
}
