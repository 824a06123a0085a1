//! Tests the formation of a group, from the first hello on.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use stagecoach_group::{GroupError, GroupTimeouts, Hello, Member, Quorum, Refusal, StepRules};

use super::support::{
    ControlProxy, SHORT_TIMEOUT, TEST_TIMEOUT, coordinator, form, formed_group, hello, join, join_at, join_on_thread,
    leave, secret, timeouts,
};

#[test]
fn groups_of_one_three_and_eight_form_and_leave() {
    for world_size in [1, 3, 8] {
        let (coordinator, stages) = formed_group(world_size, timeouts(), StepRules::default());
        for stage in &stages {
            assert_eq!(stage.plan, b"the plan");
            let ranks: Vec<usize> = stage.roster.members.iter().map(|member| member.rank).collect();
            assert_eq!(ranks, (0..world_size).collect::<Vec<_>>());
            assert_eq!(stage.roster.members[world_size - 1], hello(world_size - 1, world_size));
        }
        assert!(leave(stages, 0).into_iter().all(|left| left.is_ok()));
        assert_eq!(coordinator.failure(), None);
    }
}

#[test]
fn members_may_start_before_their_coordinator() {
    let reserved = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let early = thread::spawn(move || join(&format!("localhost:{}", address.port()), hello(1, 2), timeouts()));
    let listener = TcpListener::bind(address).unwrap();
    let coordinator =
        stagecoach_group::Coordinator::start(listener, hello(0, 2), timeouts(), secret(), Quorum::all(2), || {})
            .unwrap();
    coordinator.release(Vec::new(), StepRules::default());
    let zero = join(&address.to_string(), hello(0, 2), timeouts()).unwrap();
    form(&[zero, early.join().unwrap().unwrap()]);
}

#[test]
fn progress_reports_extend_the_start_up_timeout() {
    // a busy machine may stall for some seconds, but for less than this limit
    let limit = Duration::from_secs(10);
    let timeouts = GroupTimeouts { startup_timeout: limit, heartbeat_timeout: limit, ..timeouts() };
    let (coordinator, address) = coordinator(2, timeouts);
    let (waiting, reports) = join_on_thread(&address, hello(1, 2), timeouts);
    assert_eq!(reports.recv_timeout(TEST_TIMEOUT).unwrap(), "starting");
    let start = Instant::now();
    let mut part = 0;
    while start.elapsed() < limit + limit / 4 {
        part += 1;
        let progress = format!("tokenising, part {part}");
        coordinator.report_progress(&progress);
        assert_eq!(reports.recv_timeout(TEST_TIMEOUT).unwrap(), progress);
        thread::sleep(limit / 100);
    }
    coordinator.release(b"late".to_vec(), StepRules::default());
    let zero = join(&address, hello(0, 2), timeouts).unwrap();
    let waited = waiting.join().unwrap().unwrap();
    assert_eq!((waited.roster, waited.plan), (zero.roster, b"late".to_vec()));
}

#[test]
fn start_up_times_out_without_progress() {
    let timeouts = GroupTimeouts { startup_timeout: SHORT_TIMEOUT, ..timeouts() };
    let (coordinator, address) = coordinator(2, timeouts);
    coordinator.report_progress("counting the plays");
    let Err(GroupError::GroupFailed(failure)) = join(&address, hello(1, 2), timeouts) else {
        panic!("join did not time out")
    };
    assert_eq!(failure.root_cause_rank, Some(0));
    assert!(failure.to_string().starts_with("stage 0 has shown no progress for "), "{failure}");
    assert!(failure.to_string().contains("the last progress was: counting the plays"), "{failure}");
    assert!(!failure.is_root_cause());
    assert!(coordinator.failure().unwrap().is_root_cause());
}

#[test]
fn a_stage_that_never_joins_is_named() {
    let timeouts = GroupTimeouts { startup_timeout: SHORT_TIMEOUT, ..timeouts() };
    let (coordinator, address) = coordinator(3, timeouts);
    coordinator.release(Vec::new(), StepRules::default());
    let one = thread::spawn({
        let address = address.clone();
        move || join(&address, hello(1, 3), timeouts).unwrap_err()
    });
    for error in [join(&address, hello(0, 3), timeouts).unwrap_err(), one.join().unwrap()] {
        assert!(error.to_string().starts_with("stage 2 did not join within"), "{error}");
    }
}

#[test]
fn a_stage_that_never_loads_is_named() {
    let timeouts = GroupTimeouts { startup_timeout: SHORT_TIMEOUT, ..timeouts() };
    let (coordinator, address) = coordinator(3, timeouts);
    coordinator.release(Vec::new(), StepRules::default());
    let stages = join_at(&vec![address; 3], timeouts);
    stages[1].member.activity().set("loading weights", None);
    let message: Vec<String> = thread::scope(|scope| {
        let forming = [&stages[0].member, &stages[2].member].map(|member| scope.spawn(move || member.form()));
        forming.map(|forming| forming.join().unwrap().unwrap_err().to_string()).into()
    });
    for message in message {
        assert!(message.starts_with("the group did not form for"), "{message}");
        assert!(message.contains("from stage 1, which has been in loading weights for"), "{message}");
    }
    assert!(stages.into_iter().nth(1).unwrap().only_failure().is_root_cause());
}

#[test]
fn the_same_pod_may_reconnect_before_formation() {
    let (coordinator, address) = coordinator(2, timeouts());
    let proxy = ControlProxy::start(&address);
    let (joining, reports) = join_on_thread(&proxy.address, hello(1, 2), timeouts());
    for _ in 0..3 {
        reports.recv_timeout(TEST_TIMEOUT).unwrap();
        proxy.disconnect();
    }
    reports.recv_timeout(TEST_TIMEOUT).unwrap();
    coordinator.release(Vec::new(), StepRules::default());
    let zero = join(&address, hello(0, 2), timeouts()).unwrap();
    let stages = [zero, joining.join().unwrap().unwrap()];
    form(&stages);
    // once the group has formed, even the same pod can't join again
    let short = GroupTimeouts { startup_timeout: SHORT_TIMEOUT, ..timeouts() };
    let again = join(&address, hello(1, 2), short).unwrap_err().to_string();
    assert!(again.contains("the group has formed and has a stage 1"), "{again}");
    assert_eq!(coordinator.failure(), None);
}

#[test]
fn a_stage_that_dies_while_others_wait_can_be_replaced() {
    let timeouts = || GroupTimeouts { heartbeat_timeout: SHORT_TIMEOUT, ..timeouts() };
    let (coordinator, address) = coordinator(3, timeouts());
    let proxy = ControlProxy::start(&address);
    let short = GroupTimeouts { startup_timeout: SHORT_TIMEOUT, ..timeouts() };
    let (dying, reports) = join_on_thread(&proxy.address, hello(2, 3), short);
    reports.recv_timeout(TEST_TIMEOUT).unwrap();
    let (waiting, reports) = join_on_thread(&address, hello(1, 3), timeouts());
    reports.recv_timeout(TEST_TIMEOUT).unwrap();
    // the proxy closes later connections too, so that the stage can't reconnect
    proxy.disconnect_for_good();
    dying.join().unwrap().unwrap_err();
    let replacement = Hello { pod_uid: "pod-9".to_owned(), incarnation: 1, ..hello(2, 3) };
    let (replacement, _) = join_on_thread(&address, replacement, timeouts());
    coordinator.release(Vec::new(), StepRules::default());
    let zero = join(&address, hello(0, 3), timeouts()).unwrap();
    let stages = [zero, waiting.join().unwrap().unwrap(), replacement.join().unwrap().unwrap()];
    form(&stages);
    assert_eq!(coordinator.failure(), None);
}

#[test]
fn one_that_was_replaced_is_kept_out() {
    let (coordinator, address) = coordinator(2, timeouts());
    let joining = |incarnation| {
        let hello = Hello { incarnation, pod_uid: format!("pod-1-{incarnation}"), ..hello(1, 2) };
        let startup_timeout = if incarnation == 2 { SHORT_TIMEOUT } else { timeouts().startup_timeout };
        join_on_thread(&address, hello, GroupTimeouts { startup_timeout, ..timeouts() })
    };
    let replaced = |error: GroupError| {
        assert!(matches!(error, GroupError::Refused { refusal: Refusal::Replaced { rank: 1 }, .. }), "{error}");
    };
    let (first, reports) = joining(0);
    reports.recv_timeout(TEST_TIMEOUT).unwrap();
    let (second, _) = joining(1);
    replaced(first.join().unwrap().unwrap_err());
    replaced(joining(0).0.join().unwrap().unwrap_err());
    coordinator.release(Vec::new(), StepRules::default());
    let zero = join(&address, hello(0, 2), timeouts()).unwrap();
    let second = second.join().unwrap().unwrap();
    // the group has been released, so a third process of the stage ends the group
    let (third, _) = joining(2);
    let failure = |member: &Member| member.wait_for_failure(TEST_TIMEOUT).unwrap();
    assert!(failure(&second.member).is_root_cause());
    let failure = failure(&zero.member);
    assert_eq!((failure.root_cause_rank, failure.message.as_str()), (Some(1), "stage 1 has started again on host-1"));
    drop(coordinator);
    let waited = third.join().unwrap().unwrap_err();
    assert!(matches!(waited, GroupError::Unreachable { .. }), "{waited}");
}
