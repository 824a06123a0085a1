//! Random lives of a group: whatever happens, in whatever order, these hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::activity::Snapshot;
use crate::roster::{Conn, Effect, Event, Gone, Group};
use crate::wire::{Down, Up};
use crate::{Hello, Rules, StepVote, Timing};

const WORLD: usize = 3;

fn hello(rank: usize, attempt: u32, pod: u8) -> Hello {
    Hello {
        job_uid: String::new(),
        attempt,
        rank,
        world: WORLD,
        replica: 0,
        pod_uid: pod.to_string(),
        version: String::new(),
        config: BTreeMap::new(),
        data_address: String::new(),
        host: String::new(),
        device: String::new(),
        isa: String::new(),
    }
}

/// Mostly the things of a normal life, so that groups get far enough to be disturbed.
fn ups() -> impl Strategy<Value = Up> {
    prop_oneof![
        (0..4u64).prop_map(|changes| Up::Heartbeat(Snapshot { changes, ..Snapshot::default() })),
        Just(Up::Formed),
        Just(Up::Formed),
        Just(Up::Gather { topic: 1, bytes: vec![1] }),
        Just(Up::Vote(StepVote::default())),
        Just(Up::Tell { topic: 1, bytes: vec![] }),
        prop_oneof![Just(0), Just(143), Just(1), Just(75)].prop_map(|code| Up::Goodbye { code }),
    ]
}

fn events() -> impl Strategy<Value = Event> {
    let conn = || 0..6u64;
    let gone = prop_oneof![
        Just(Gone::Closed("closed".to_owned())),
        Just(Gone::Silent),
        Just(Gone::Malformed("noise".to_owned()))
    ];
    prop_oneof![
        // A connection's number tells its rank, so that all places are soon taken.
        8 => (conn(), 2..5u32, 0..12u8).prop_map(|(conn, attempt, pod)| {
            let attempt = if attempt == 4 { 3 } else { attempt };
            Event::Hello(conn, hello(conn as usize % WORLD, attempt, u8::from(pod == 0)))
        }),
        12 => (conn(), ups()).prop_map(|(conn, up)| Event::Said(conn, up)),
        1 => (conn(), gone).prop_map(|(conn, gone)| Event::Gone(conn, gone)),
        1 => Just(Event::Preparing("p".to_owned())),
        3 => Just(Event::Release(vec![1], Rules::default())),
        4 => Just(Event::Tick),
    ]
}

fn is_last_word(down: &Down) -> bool {
    matches!(down, Down::Ended(_) | Down::Refused(_) | Down::ComeBack | Down::Acknowledged)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn whatever_happens(script in prop::collection::vec((events(), 0..2000u64), 1..80)) {
        let timing = Timing { startup: Duration::from_secs(9), stall: Duration::from_secs(9), ..Timing::default() };
        let mut now = Instant::now();
        let mut group = Group::new(hello(0, 3, 0), timing, now);
        let mut used: BTreeSet<Conn> = BTreeSet::new();
        let mut open: BTreeSet<Conn> = BTreeSet::new();
        let mut closing: BTreeSet<Conn> = BTreeSet::new();
        let mut last_words: BTreeMap<Conn, Down> = BTreeMap::new();
        let mut ended = None;
        // In the end time passes until nothing is left to wait for.
        let quiet = (0..40).map(|_| (Event::Tick, 2000));
        for (event, millis) in script.into_iter().chain(quiet) {
            match &event {
                // Connection numbers are never used again, and only open ones speak.
                Event::Hello(conn, _) if !used.insert(*conn) => continue,
                Event::Hello(conn, _) => drop(open.insert(*conn)),
                Event::Said(conn, _) if !open.contains(conn) => continue,
                Event::Gone(conn, _) if !open.remove(conn) => continue,
                _ => {}
            }
            now += Duration::from_millis(millis);
            for effect in group.handle(now, event) {
                match effect {
                    Effect::Send(conns, down) => for conn in conns {
                        prop_assert!(used.contains(&conn));
                        prop_assert!(!closing.contains(&conn), "{conn} was closed and then sent {down:?}");
                        prop_assert!(!last_words.contains_key(&conn), "{conn} had its last word before {down:?}");
                        if let Down::Released { roster, plan } = &down {
                            prop_assert_eq!((roster.members.len(), plan.len()), (WORLD, 1));
                        }
                        if is_last_word(&down) {
                            last_words.insert(conn, down.clone());
                        }
                    },
                    Effect::Close(conn) => {
                        prop_assert!(closing.insert(conn), "{} was closed twice", conn);
                    }
                }
            }
            // The first reason is the reason.
            if let Some(first) = &ended {
                prop_assert_eq!(group.failure(), Some(first));
            }
            ended = group.failure().cloned();
        }
        // Nobody who is still connected is left waiting for ever.
        prop_assert!(group.is_over(), "the group lives on in silence");
        for conn in &open {
            prop_assert!(closing.contains(conn), "{conn} hangs on the line");
        }
        for (conn, down) in &last_words {
            if let Down::Ended(told) = down {
                prop_assert_eq!(told.rank, *conn as usize % WORLD);
                prop_assert_eq!(Some(&told.message), ended.as_ref().map(|failure| &failure.message));
            }
        }
    }
}

/// A formed group whose stage `n` speaks on connection `n`.
fn running(now: Instant) -> Group {
    let mut group = Group::new(hello(0, 3, 0), Timing::default(), now);
    group.handle(now, Event::Release(vec![], Rules::default()));
    for rank in 0..WORLD {
        group.handle(now, Event::Hello(rank as Conn, hello(rank, 3, 0)));
    }
    for rank in 0..WORLD {
        group.handle(now, Event::Said(rank as Conn, Up::Formed));
    }
    group
}

/// Who is told that the group has ended.
fn told_the_end(effects: &[Effect]) -> Vec<Conn> {
    let ended = |effect: &Effect| match effect {
        Effect::Send(conns, Down::Ended(_) | Down::Acknowledged) => conns.clone(),
        _ => vec![],
    };
    effects.iter().flat_map(ended).collect()
}

#[test]
fn stage_zero_hears_of_the_end_when_the_others_have_hung_up() {
    let closed = || Gone::Closed("closed".to_owned());
    let now = Instant::now();
    let mut group = running(now);
    assert_eq!(told_the_end(&group.handle(now, Event::Gone(1, closed()))), [2]);
    assert_eq!(told_the_end(&group.handle(now, Event::Tick)), []);
    assert_eq!(told_the_end(&group.handle(now, Event::Gone(2, closed()))), [0]);

    // One that does not hang up is not waited for any longer than that.
    let mut group = running(now);
    group.handle(now, Event::Gone(1, closed()));
    assert_eq!(told_the_end(&group.handle(now + Timing::default().goodbye, Event::Tick)), [0]);

    // Nor does a friendly end take stage 0 away first.
    let mut group = running(now);
    let goodbye = || Up::Goodbye { code: 0 };
    assert_eq!(told_the_end(&group.handle(now, Event::Said(0, goodbye()))), []);
    assert_eq!(told_the_end(&group.handle(now, Event::Said(1, goodbye()))), []);
    assert_eq!(told_the_end(&group.handle(now, Event::Said(2, goodbye()))), [1, 2]);
    assert_eq!(told_the_end(&group.handle(now, Event::Gone(1, closed()))), []);
    assert_eq!(told_the_end(&group.handle(now, Event::Gone(2, closed()))), [0]);
}

#[test]
fn a_silent_stage_is_told_in_case_it_wakes_up_and_is_not_waited_for() {
    let now = Instant::now();
    let mut group = running(now);
    assert_eq!(told_the_end(&group.handle(now, Event::Gone(1, Gone::Silent))), [1, 2]);
    let closed = Gone::Closed("closed".to_owned());
    assert_eq!(told_the_end(&group.handle(now, Event::Gone(2, closed))), [0]);
}
