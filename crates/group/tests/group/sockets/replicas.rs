//! Tests a group of two replicas, each with two stages. The group continues to train without one replica, and readmits
//! the replica.

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use stagecoach_api::contract::Mesh;
use stagecoach_group::{
    BlockLosses, Coordinator, GroupError, GroupTimeouts, Hello, Member, Quorum, Rendezvous, StepRules, StepVote,
    Verdict,
};

use super::support::{
    ControlProxy, SHORT_TIMEOUT, TestStage, find, form, hello, join_found, on_all, rendezvous, secret, timeouts,
};

const MESH: Mesh = Mesh { stages: 2, data_parallel: 2 };
const WORLD_SIZE: usize = 4;

fn join(address: &str, hello: Hello, timeouts: GroupTimeouts) -> Result<TestStage, GroupError> {
    join_found(find(address), hello, MESH, timeouts)
}

fn coordinator(timeouts: GroupTimeouts, lost: &[usize]) -> (Coordinator, String) {
    coordinator_of(0, timeouts, lost)
}

/// Starts the coordinator of rank `leader`, whose last group lost the ranks `lost`.
fn coordinator_of(leader: usize, timeouts: GroupTimeouts, lost: &[usize]) -> (Coordinator, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let hello = Hello { lost_ranks: Some(lost.to_vec()), ..hello(leader, WORLD_SIZE) };
    (Coordinator::start(listener, hello, timeouts, secret(), Quorum::new(MESH, 1), || {}).unwrap(), address)
}

/// Lets the ranks `others` join, and rank 0 once the members are decided.
fn join_ranks(coordinator: &Coordinator, address: &str, others: &[usize]) -> Vec<TestStage> {
    join_leader(0, coordinator, address, others)
}

fn join_leader(leader: usize, coordinator: &Coordinator, address: &str, others: &[usize]) -> Vec<TestStage> {
    thread::scope(|scope| {
        let join = |rank| join(address, hello(rank, WORLD_SIZE), timeouts()).unwrap();
        let others: Vec<_> = others.iter().map(|&rank| scope.spawn(move || join(rank))).collect();
        coordinator.wait_for_members().unwrap();
        coordinator.release(b"plan".to_vec(), StepRules::default());
        std::iter::once(join(leader)).chain(others.into_iter().map(|other| other.join().unwrap())).collect()
    })
}

fn ranks(stage: &TestStage) -> Vec<usize> {
    stage.roster.ranks()
}

fn vote(stages: &[TestStage], step: u64) -> Vec<Verdict> {
    let losses = |rank| (rank == 0).then(|| BlockLosses { blocks: 1, target_count: 1, sums: vec![(0, 1.0)] });
    let vote = |rank| StepVote { step, losses: losses(rank), all_finite: true, ..StepVote::default() };
    on_all(stages, |rank, member| member.vote(vote(rank)).unwrap())
}

/// Timeouts that are longer than the time that a leader may take from one group to the next.
fn patient_timeouts() -> GroupTimeouts {
    GroupTimeouts { startup_timeout: Duration::from_secs(8), ..timeouts() }
}

/// Timeouts that expire soon if a stage finds no group.
fn short_timeouts() -> GroupTimeouts {
    GroupTimeouts { startup_timeout: SHORT_TIMEOUT, ..timeouts() }
}

fn leave_all(stages: Vec<TestStage>, leave: impl Fn(Member) -> Result<(), GroupError> + Sync) {
    thread::scope(|scope| {
        let leave = &leave;
        let leaving: Vec<_> = stages.into_iter().map(|stage| scope.spawn(move || leave(stage.member))).collect();
        assert!(leaving.into_iter().all(|left| left.join().unwrap().is_ok()));
    });
}

#[test]
fn a_group_continues_without_a_lost_replica_and_readmits_it() {
    let (coordinator, address) = coordinator(timeouts(), &[3]);
    let wait = |rank| join(&address, hello(rank, WORLD_SIZE), short_timeouts());
    thread::scope(|scope| {
        // rank 2 has lost the other stage of its replica, and waits
        let third = scope.spawn(move || wait(2));
        let stages = join_ranks(&coordinator, &address, &[1]);
        assert!(stages.iter().all(|stage| ranks(stage) == [0, 1]), "{:?}", stages[0].roster);
        assert_eq!(stages[1].roster.incarnations(), [Some(0), Some(0), None, None]);
        form(&stages);
        let gathered = on_all(&stages, |rank, member| member.all_gather(7, vec![rank as u8]).unwrap());
        assert_eq!(gathered, [[[0], [1]], [[0], [1]]]);
        assert!(vote(&stages, 1).iter().all(|verdict| !verdict.regroup));
        let fourth = scope.spawn(move || wait(3));
        let mut step = 1;
        loop {
            let is_back = coordinator.waiting_ranks() == [2, 3];
            step += 1;
            let verdicts = vote(&stages, step);
            if verdicts.iter().all(|verdict| verdict.regroup) {
                break;
            }
            assert!(!is_back, "replica 1 is back, and step {step} does not say so: {verdicts:?}");
            thread::yield_now();
        }
        leave_all(stages, Member::leave_for_next_group);
        assert_eq!((coordinator.failure(), coordinator.waiting_ranks()), (None, vec![2, 3]));
        drop(coordinator);
        // both stages look for the next group, which this test does not start
        for waited in [third, fourth] {
            let error = waited.join().unwrap().unwrap_err();
            assert!(matches!(error, GroupError::Unreachable { .. }), "{error}");
        }
    });
}

/// Stage 0 of replica 0 and stage 1 of replica 1 are lost. The remaining stages form one replica.
#[test]
fn stages_of_two_replicas_train_led_by_the_second_stage_0() {
    let (coordinator, address) = coordinator_of(2, timeouts(), &[0, 3]);
    let mut stages = join_leader(2, &coordinator, &address, &[1]);
    assert!(stages.iter().all(|stage| ranks(stage) == [2, 1] && stage.roster.leader() == 2));
    assert_eq!(stages[0].roster.incarnations(), [None, Some(0), Some(0), None]);
    form(&stages);
    let gathered = on_all(&stages, |rank, member| member.all_gather(7, vec![rank as u8]).unwrap());
    assert_eq!(gathered, [[[0], [1]], [[0], [1]]]);
    stages[0].member.broadcast(3, vec![5]).unwrap();
    assert_eq!(on_all(&stages, |_, member| member.receive_broadcast(3).unwrap()), [[5], [5]]);
    let refused = stages[1].member.broadcast(3, vec![5]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "stage 1 of replica 0 tried to broadcast: only the leader, stage 0 of replica 1, may broadcast"
    );
    assert!(vote(&stages, 1).iter().all(|verdict| !verdict.regroup));
    // the leader's process ends
    let follower = stages.remove(1);
    drop((stages, coordinator));
    let failure = follower.only_failure();
    assert_eq!((failure.root_cause_rank, failure.has_ended), (Some(2), true), "{failure}");
    assert!(failure.message.starts_with("stage 0 of replica 1 closed its control connection"), "{failure}");
}

#[test]
fn a_stage_beside_a_drained_group_does_not_hear_that_it_is_done() {
    let (coordinator, address) = coordinator(timeouts(), &[3]);
    thread::scope(|scope| {
        let third = scope.spawn(|| join(&address, hello(2, WORLD_SIZE), short_timeouts()));
        let stages = join_ranks(&coordinator, &address, &[1]);
        form(&stages);
        while coordinator.waiting_ranks() != [2] {
            thread::yield_now();
        }
        leave_all(stages, |member| member.leave(143));
        drop(coordinator);
        let error = third.join().unwrap().unwrap_err();
        assert!(matches!(error, GroupError::Unreachable { .. }), "{error}");
    });
}

#[test]
fn a_stage_without_a_group_is_not_needed_when_the_others_are_done() {
    let (coordinator, address) = coordinator(timeouts(), &[3]);
    thread::scope(|scope| {
        let third = scope.spawn(|| join(&address, hello(2, WORLD_SIZE), timeouts()));
        let stages = join_ranks(&coordinator, &address, &[1]);
        form(&stages);
        leave_all(stages, |member| member.leave(0));
        let error = third.join().unwrap().unwrap_err();
        assert!(matches!(error, GroupError::AllLeft { .. }), "{error}");
        assert_eq!(error.to_string(), "stage 0 of replica 1 is not needed: all stages of its group have left");
    });
}

#[test]
fn the_loss_of_a_stage_without_a_group_ends_nothing() {
    let (coordinator, address) = coordinator(timeouts(), &[3]);
    let proxy = ControlProxy::start(&address);
    thread::scope(|scope| {
        let third = scope.spawn(|| join(&address, hello(2, WORLD_SIZE), timeouts()));
        let stages = join_ranks(&coordinator, &address, &[1]);
        form(&stages);
        // a process that was started for rank 3 connects, then dies
        let fourth = scope.spawn(|| join(&proxy.address, hello(3, WORLD_SIZE), short_timeouts()));
        while coordinator.waiting_ranks() != [2, 3] {
            thread::yield_now();
        }
        proxy.disconnect_for_good();
        while coordinator.waiting_ranks().contains(&3) {
            thread::yield_now();
        }
        assert!(vote(&stages, 1).iter().all(|verdict| !verdict.regroup));
        assert_eq!(coordinator.failure(), None);
        leave_all(stages, |member| member.leave(0));
        assert!(third.join().unwrap().is_err() && fourth.join().unwrap().is_err());
    });
}

#[test]
fn a_replica_of_which_nothing_is_known_is_waited_for_until_the_timeout() {
    let (coordinator, address) = coordinator(short_timeouts(), &[]);
    thread::scope(|scope| {
        let fourth = scope.spawn(|| join(&address, hello(3, WORLD_SIZE), timeouts()));
        let stages = join_ranks(&coordinator, &address, &[1]);
        assert_eq!(ranks(&stages[0]), [0, 1]);
        form(&stages);
        leave_all(stages, |member| member.leave(0));
        assert!(matches!(fourth.join().unwrap(), Err(GroupError::AllLeft { .. })));
    });
}

#[test]
fn too_few_replicas_are_no_group() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let leader = Hello { lost_ranks: Some(vec![2, 3]), ..hello(0, WORLD_SIZE) };
    let coordinator = Coordinator::start(listener, leader, short_timeouts(), secret(), Quorum::new(MESH, 2), || {});
    let error = coordinator.unwrap().wait_for_members().unwrap_err();
    let expected = "stages 1 of replica 0, 0 of replica 1, 1 of replica 1 did not join within ";
    assert!(error.to_string().starts_with(expected), "{error}");
}

/// A stage that waits outside a group of one replica leads the next group if the leader's process has ended.
#[test]
fn a_stage_that_waits_beside_the_only_replica_succeeds_its_leader() {
    let (coordinator, address) = coordinator(timeouts(), &[3]);
    thread::scope(|scope| {
        let wait = |rank| {
            let address = &address;
            scope.spawn(move || join(address, hello(rank, WORLD_SIZE), patient_timeouts()))
        };
        let third = wait(2);
        let stages = join_ranks(&coordinator, &address, &[1]);
        form(&stages);
        // rank 3 starts to wait after the group has formed
        let fourth = wait(3);
        while coordinator.waiting_ranks() != [2, 3] {
            thread::yield_now();
        }
        drop((stages, coordinator));
        let error = third.join().unwrap().unwrap_err();
        assert!(matches!(error, GroupError::LeaderEnded { group: 5, is_member: false, .. }), "{error}");
        assert!(error.to_string().starts_with("stage 0 of replica 1 leads the next group"), "{error}");
        let error = fourth.join().unwrap().unwrap_err();
        assert!(matches!(error, GroupError::Unreachable { .. }), "{error}");
    });
}

/// A leader that closes the connection to a silent stage is still alive, so the stage joins again.
#[test]
fn a_leader_that_hangs_up_is_not_succeeded() {
    let (coordinator, address) = coordinator(timeouts(), &[]);
    let proxy = ControlProxy::start(&address);
    let found = AtomicUsize::new(0);
    let (found, proxied, direct) = (&found, &proxy.address, &address);
    thread::scope(|scope| {
        let silent = scope.spawn(move || {
            let find = || {
                let address = if found.fetch_add(1, Ordering::SeqCst) == 0 { proxied } else { direct };
                Ok(Rendezvous { succeeds_leader: true, ..rendezvous(address) })
            };
            join_found(find, hello(2, WORLD_SIZE), MESH, timeouts())
        });
        while found.load(Ordering::SeqCst) < 2 && !silent.is_finished() {
            proxy.disconnect();
            thread::yield_now();
        }
        let stages = join_ranks(&coordinator, &address, &[1, 3]);
        let joined = silent.join().unwrap().unwrap();
        assert_eq!((ranks(&joined), ranks(&stages[0])), (vec![0, 1, 2, 3], vec![0, 1, 2, 3]));
    });
}

/// A stage with `succeeds_leader` notices the end of the leader's process even before the group is released. Other
/// stages look for the next group.
#[test]
fn a_leader_that_ends_before_its_group_is_released_is_succeeded() {
    let (coordinator, address) = coordinator(timeouts(), &[]);
    // a stage that no group has accepted waits for some seconds before it concludes that the leader has ended
    let succeed = || {
        let find = || Ok(Rendezvous { succeeds_leader: true, ..rendezvous(&address) });
        join_found(find, hello(2, WORLD_SIZE), MESH, patient_timeouts())
    };
    thread::scope(|scope| {
        let second = scope.spawn(succeed);
        let other = scope.spawn(|| join(&address, hello(1, WORLD_SIZE), short_timeouts()));
        drop(coordinator);
        let errors = [second.join().unwrap().unwrap_err(), other.join().unwrap().unwrap_err()];
        assert!(matches!(errors[0], GroupError::LeaderEnded { group: 5, .. }), "{}", errors[0]);
        assert!(matches!(errors[1], GroupError::Unreachable { .. }), "{}", errors[1]);
    });
    // a stage that has never connected finds no process at the address
    let error = succeed().unwrap_err();
    assert!(matches!(error, GroupError::LeaderEnded { .. }), "{error}");
}
