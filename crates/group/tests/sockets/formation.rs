//! From the first hello to a formed group.

use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use stagecoach_group::{FailureKind, GroupError, Member, Refusal, Rules, Timing};

use crate::support::{PATIENCE, Proxy, coordinator, form, formed, hello, join, join_at, leave, timing};

#[test]
fn groups_of_one_three_and_eight_form_and_leave() {
    for world in [1, 3, 8] {
        let (coordinator, stages) = formed(world, timing(), Rules::default());
        for stage in &stages {
            assert_eq!(stage.plan, b"the plan");
            let ranks: Vec<usize> = stage.roster.members.iter().map(|member| member.rank).collect();
            assert_eq!(ranks, (0..world).collect::<Vec<_>>());
            assert_eq!(stage.roster.members[world - 1], hello(world - 1, world));
        }
        assert!(leave(stages, 0).into_iter().all(|left| left.is_ok()));
        assert_eq!(coordinator.failure(), None);
    }
}

#[test]
fn members_may_come_before_their_coordinator() {
    let reserved = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let early = thread::spawn(move || join(&format!("localhost:{}", address.port()), hello(1, 2), timing()));
    let listener = TcpListener::bind(address).unwrap();
    let coordinator = stagecoach_group::Coordinator::start(listener, hello(0, 2), timing()).unwrap();
    coordinator.release(Vec::new(), Rules::default());
    let zero = join(&address.to_string(), hello(0, 2), timing()).unwrap();
    form(&[zero, early.join().unwrap().unwrap()]);
}

#[test]
fn preparing_extends_the_deadline_of_those_who_wait() {
    let timing =
        Timing { startup: Duration::from_millis(600), heartbeat_timeout: Duration::from_millis(600), ..timing() };
    let (coordinator, address) = coordinator(2, timing);
    let (heard, hearing) = channel();
    let waiting = {
        let address = address.clone();
        let on_preparing = move |progress: &str| drop(heard.send(progress.to_owned()));
        thread::spawn(move || Member::join(&address, hello(1, 2), timing, on_preparing, |_| {}))
    };
    assert_eq!(hearing.recv_timeout(PATIENCE).unwrap(), "starting");
    let start = Instant::now();
    let mut part = 0;
    while start.elapsed() < timing.startup * 4 {
        part += 1;
        let progress = format!("tokenising, part {part}");
        coordinator.preparing(&progress);
        assert_eq!(hearing.recv_timeout(PATIENCE).unwrap(), progress);
    }
    coordinator.release(b"late".to_vec(), Rules::default());
    let zero = join(&address, hello(0, 2), timing).unwrap();
    let (_, roster, plan) = waiting.join().unwrap().unwrap();
    assert_eq!((roster, plan), (zero.roster, b"late".to_vec()));
}

#[test]
fn without_progress_the_start_up_ends() {
    let timing = Timing { startup: Duration::from_millis(300), ..timing() };
    let (coordinator, address) = coordinator(2, timing);
    coordinator.preparing("counting the plays");
    let Err(GroupError::Lost(failure)) = join(&address, hello(1, 2), timing) else { panic!("it waited on") };
    assert_eq!((failure.kind, failure.culprit), (FailureKind::StartupTimedOut, Some(0)));
    assert!(failure.to_string().contains("the last was: counting the plays"), "{failure}");
    assert!(!failure.is_culprit());
    assert!(coordinator.failure().unwrap().is_culprit());
}

#[test]
fn a_stage_that_never_comes_is_named() {
    let timing = Timing { startup: Duration::from_millis(500), ..timing() };
    let (coordinator, address) = coordinator(3, timing);
    coordinator.release(Vec::new(), Rules::default());
    let one = thread::spawn({
        let address = address.clone();
        move || join(&address, hello(1, 3), timing).unwrap_err()
    });
    for error in [join(&address, hello(0, 3), timing).unwrap_err(), one.join().unwrap()] {
        assert!(error.to_string().starts_with("stage 2 did not join within"), "{error}");
    }
}

#[test]
fn a_stage_that_never_loads_is_named() {
    let timing = Timing { startup: Duration::from_millis(700), ..timing() };
    let (coordinator, address) = coordinator(3, timing);
    coordinator.release(Vec::new(), Rules::default());
    let stages = join_at(&vec![address; 3], timing);
    stages[1].member.activity().set("loading weights", None);
    let told: Vec<String> = thread::scope(|scope| {
        let forming = [&stages[0].member, &stages[2].member].map(|member| scope.spawn(move || member.form()));
        forming.map(|forming| forming.join().unwrap().unwrap_err().to_string()).into()
    });
    for told in told {
        assert!(told.starts_with("the group did not form for"), "{told}");
        assert!(told.contains("from stage 1, which has been in loading weights for"), "{told}");
    }
    assert!(stages.into_iter().nth(1).unwrap().the_failure().is_culprit());
}

#[test]
fn the_same_pod_may_come_back_before_formation() {
    let (coordinator, address) = coordinator(2, timing());
    let proxy = Proxy::start(&address);
    let (heard, hearing) = channel();
    let joining = {
        let address = proxy.address.clone();
        let on_preparing = move |progress: &str| drop(heard.send(progress.to_owned()));
        thread::spawn(move || Member::join(&address, hello(1, 2), timing(), on_preparing, |_| {}))
    };
    for _ in 0..3 {
        hearing.recv_timeout(PATIENCE).unwrap();
        proxy.cut();
    }
    hearing.recv_timeout(PATIENCE).unwrap();
    coordinator.release(Vec::new(), Rules::default());
    let zero = join(&address, hello(0, 2), timing()).unwrap();
    let (one, ..) = joining.join().unwrap().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| one.form().unwrap());
        zero.member.form().unwrap();
    });
    // Its place is its own: the same pod can't have it twice once the group has formed.
    let again = join(&address, hello(1, 2), timing()).unwrap_err();
    assert!(matches!(again, GroupError::Refused { refusal: Refusal::Formed { rank: 1 }, .. }), "{again}");
    assert_eq!(coordinator.failure(), None);
}

#[test]
fn a_stage_that_dies_while_others_wait_ends_the_group() {
    let timing = || Timing { heartbeat_timeout: Duration::from_millis(1500), ..timing() };
    let (coordinator, address) = coordinator(3, timing());
    let proxy = Proxy::start(&address);
    let (heard, hearing) = channel();
    let dying = {
        let (address, heard) = (proxy.address.clone(), heard.clone());
        let short = Timing { startup: Duration::from_millis(100), ..timing() };
        let on_preparing = move |progress: &str| drop(heard.send(progress.to_owned()));
        thread::spawn(move || drop(Member::join(&address, hello(2, 3), short, on_preparing, |_| {})))
    };
    hearing.recv_timeout(PATIENCE).unwrap();
    let waiting = {
        let address = address.clone();
        let on_preparing = move |progress: &str| drop(heard.send(progress.to_owned()));
        thread::spawn(move || Member::join(&address, hello(1, 3), timing(), on_preparing, |_| {}).unwrap_err())
    };
    hearing.recv_timeout(PATIENCE).unwrap();
    // From here on nothing passes: it can't come back.
    proxy.close();
    let error = waiting.join().unwrap();
    assert!(error.to_string().starts_with("stage 2 closed its control connection"), "{error}");
    assert_eq!(coordinator.failure().unwrap().culprit, Some(2));
    dying.join().unwrap();
}
