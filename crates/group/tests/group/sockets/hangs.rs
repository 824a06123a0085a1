//! Hang detection: all stages are alive, but none makes progress.

use stagecoach_group::{GroupTimeouts, StepRules, StepVote};

use super::support::{SHORT_TIMEOUT, formed_group, timeouts};

fn short_stall_timeout() -> GroupTimeouts {
    GroupTimeouts { stall_timeout: SHORT_TIMEOUT, ..timeouts() }
}

#[test]
fn a_hang_is_traced_to_its_root_cause() {
    let (_coordinator, stages) = formed_group(3, short_stall_timeout(), StepRules::default());
    stages[0].member.activity().set("RECV_B of microbatch 4", Some(1));
    stages[1].member.activity().set("RECV_B of microbatch 3", Some(2));
    stages[2].member.activity().set("F 5", None);
    for stage in stages {
        let failure = stage.only_failure();
        assert_eq!(failure.root_cause_rank, Some(2));
        assert!(failure.to_string().starts_with("nothing has moved for "), "{failure}");
        let chain = "stage 0 waits for RECV_B of microbatch 4 from stage 1, which waits for RECV_B of microbatch 3 \
                     from stage 2, which has been in F 5 for ";
        assert!(failure.to_string().contains(chain), "{failure}");
        assert_eq!(failure.is_root_cause(), failure.rank == 2);
    }
}

#[test]
fn a_missing_vote_is_traced_to_its_rank() {
    let (_coordinator, mut stages) = formed_group(3, short_stall_timeout(), StepRules::default());
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
    assert!(hung.only_failure().is_root_cause());
}
