//! Tests the failures of a group. The death of any stage ends the whole group, and each survivor gets one report. In a
//! hang, all stages are alive, but none makes progress.

use stagecoach_group::{GroupTimeouts, StepRules, StepVote};

use super::support::{
    SHORT_TIMEOUT, TEST_TIMEOUT, TestStage, coordinator, formed_group, formed_group_through_proxy, hello, join,
    join_on_thread, timeouts,
};

/// Checks that each of `stages` reports one failure, with the given root cause and the text `expected`.
fn assert_all_report(stages: Vec<TestStage>, root_cause_rank: usize, expected: &str) {
    for stage in stages {
        let failure = stage.only_failure();
        assert_eq!(failure.root_cause_rank, Some(root_cause_rank), "{failure}");
        assert!(failure.to_string().contains(expected), "{failure}");
        assert_eq!(failure.is_root_cause(), failure.rank == root_cause_rank);
    }
}

#[test]
fn a_member_that_dies_takes_the_group_with_it() {
    for victim in [0, 1, 3] {
        let (coordinator, mut stages) = formed_group(4, timeouts(), StepRules::default());
        drop(stages.remove(victim));
        let expected = format!("stage {victim} closed its control connection");
        assert_all_report(stages, victim, &expected);
        assert_eq!(coordinator.failure().unwrap().root_cause_rank, Some(victim));
    }
}

#[test]
fn stage_zero_that_dies_takes_the_group_with_it() {
    let (coordinator, mut stages) = formed_group(4, timeouts(), StepRules::default());
    // if a process is killed, its coordinator and its member end at once; in this test the coordinator ends first
    drop(coordinator);
    drop(stages.remove(0));
    assert_all_report(stages, 0, "stage 0");
}

#[test]
fn a_closed_connection_is_a_failure_for_both_ends() {
    let (_coordinator, mut stages, proxy) = formed_group_through_proxy(3, 2, timeouts());
    proxy.disconnect();
    let failure = stages.remove(2).only_failure();
    // a member can't distinguish a failure of its network from the death of stage 0
    assert_eq!(failure.root_cause_rank, Some(0));
    assert!(failure.to_string().starts_with("stage 0 closed its control connection"), "{failure}");
    assert_all_report(stages, 2, "stage 2");
}

#[test]
fn a_frozen_member_times_out() {
    let timeouts = GroupTimeouts { heartbeat_timeout: SHORT_TIMEOUT, ..timeouts() };
    let (_coordinator, mut stages, proxy) = formed_group_through_proxy(3, 1, timeouts);
    stages[1].member.activity().set("F 5", None);
    proxy.freeze();
    let frozen = stages.remove(1);
    assert_all_report(stages, 1, "stage 1 has sent no heartbeat for 2");
    // the frozen stage also receives nothing, so it reports that stage 0 has timed out
    let failure = frozen.only_failure();
    assert_eq!(failure.root_cause_rank, Some(0));
    assert!(failure.to_string().starts_with("stage 0 has sent no heartbeat for 2"), "{failure}");
}

#[test]
fn a_member_that_does_not_read_does_not_block_the_others() {
    const MESSAGES: usize = 60;
    let (_coordinator, stages, proxy) = formed_group_through_proxy(3, 2, timeouts());
    proxy.freeze();
    // the data is much larger than the socket buffers
    let sent = vec![7; 1 << 20];
    (0..MESSAGES).for_each(|_| stages[0].member.broadcast(1, sent.clone()).unwrap());
    (0..MESSAGES).for_each(|_| assert!(stages[1].member.receive_broadcast(1).unwrap() == sent));
}

#[test]
fn waiting_calls_return_and_later_ones_fail_at_once() {
    let (_coordinator, mut stages) = formed_group(2, timeouts(), StepRules::default());
    let dying = stages.remove(1);
    let zero = stages.remove(0);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| zero.member.receive_broadcast(1).unwrap_err());
        drop(dying);
        assert!(waiting.join().unwrap().to_string().contains("stage 1"));
    });
    // the callback runs before the calls return
    assert_eq!(zero.failures.try_recv().unwrap().root_cause_rank, Some(1));
    for error in [
        zero.member.all_gather(1, vec![]).unwrap_err(),
        zero.member.form().err().unwrap_or_else(|| zero.member.receive_broadcast(2).unwrap_err()),
    ] {
        assert!(error.to_string().contains("stage 1 closed its control connection"), "{error}");
    }
}

#[test]
fn a_rejection_by_stage_zero_is_reported_with_its_reason() {
    let (coordinator, address) = coordinator(2, timeouts());
    let (waiting, reports) = join_on_thread(&address, hello(1, 2), timeouts());
    reports.recv_timeout(TEST_TIMEOUT).unwrap();
    coordinator.reject("the corpus is empty");
    let error = waiting.join().unwrap().err().unwrap();
    assert!(error.to_string().contains("stage 0 gave up: the corpus is empty"), "{error}");
    assert!(coordinator.failure().unwrap().is_root_cause());
    // a later member waits for another group until its timeout, and reports the same reason
    let short = GroupTimeouts { startup_timeout: SHORT_TIMEOUT, ..timeouts() };
    let late = join(&address, hello(1, 2), short).unwrap_err().to_string();
    assert!(late.contains("the group has ended: stage 0 gave up: the corpus is empty"), "{late}");
}

#[test]
fn a_plan_above_the_frame_limit_ends_the_group() {
    let (coordinator, address) = coordinator(1, timeouts());
    coordinator.release(vec![0; 65 << 20], StepRules::default());
    let error = join(&address, hello(0, 1), GroupTimeouts { startup_timeout: TEST_TIMEOUT, ..timeouts() }).unwrap_err();
    assert!(error.to_string().contains("too large for the control connection"), "{error}");
}

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
