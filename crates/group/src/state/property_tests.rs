//! Tests properties of the state machine under random events in random order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::activity::Heartbeat;
use crate::state::{ConnectionId, Effect, GroupEvent, GroupState};
use crate::wire::connection::Disconnect;
use crate::wire::messages::{CoordinatorMessage, MemberMessage};
use crate::{GroupTimeouts, Hello, Quorum, StepRules, StepVote};

const WORLD_SIZE: usize = 3;

fn hello(rank: usize, attempt: u64, pod: u8) -> Hello {
    Hello { attempt, incarnation: u32::from(pod / 2), pod_uid: pod.to_string(), ..hello_of(rank, WORLD_SIZE) }
}

/// Returns the hello of a stage's first process.
pub(crate) fn hello_of(rank: usize, world_size: usize) -> Hello {
    Hello { attempt: 1, rank, world_size, ..Hello::default() }
}

/// Generates mostly messages of a healthy group, so that many groups form before a fault occurs.
fn messages() -> impl Strategy<Value = MemberMessage> {
    prop_oneof![
        (0..4u64).prop_map(|sequence| MemberMessage::Heartbeat(Heartbeat { sequence, ..Heartbeat::default() })),
        Just(MemberMessage::Formed),
        Just(MemberMessage::Formed),
        Just(MemberMessage::Gather { topic: 1, bytes: vec![1] }),
        Just(MemberMessage::Vote(StepVote::default())),
        Just(MemberMessage::Broadcast { topic: 1, bytes: vec![] }),
        prop_oneof![Just(0), Just(143), Just(1), Just(75)].prop_map(|code| MemberMessage::Leave { code }),
    ]
}

fn events() -> impl Strategy<Value = GroupEvent> {
    let conn = || 0..6u64;
    let disconnect = prop_oneof![
        Just(Disconnect::Closed),
        Just(Disconnect::TimedOut),
        Just(Disconnect::Malformed("noise".to_owned()))
    ];
    prop_oneof![
        // the number of a connection determines the rank of its hello, so that all slots are filled soon
        8 => (conn(), 2..5u64, 0..12u8).prop_map(|(conn, attempt, pod)| {
            let attempt = if attempt == 4 { 3 } else { attempt };
            GroupEvent::Hello(conn, hello(conn as usize % WORLD_SIZE, attempt, [1, 2, 3].get(usize::from(pod)).copied().unwrap_or(0)))
        }),
        // connection numbers above the members' numbers
        3 => (6..10u64, 2..4u64).prop_map(|(conn, attempt)| GroupEvent::WaitAsSpare(conn, hello(conn as usize, attempt, 0))),
        12 => (0..10u64, messages()).prop_map(|(conn, up)| GroupEvent::Message(conn, up)),
        1 => (0..10u64, disconnect).prop_map(|(conn, disconnect)| GroupEvent::Disconnected(conn, disconnect)),
        1 => Just(GroupEvent::Preparing("p".to_owned())),
        3 => Just(GroupEvent::Release(vec![1], StepRules::default())),
        4 => Just(GroupEvent::Tick),
    ]
}

fn is_final(message: &CoordinatorMessage) -> bool {
    matches!(
        message,
        CoordinatorMessage::GroupEnded(_)
            | CoordinatorMessage::Refused(_)
            | CoordinatorMessage::LeaveAcknowledged
            | CoordinatorMessage::Promote { .. }
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn every_connection_gets_one_final_message(script in prop::collection::vec((events(), 0..2000u64), 1..80)) {
        let timeouts = GroupTimeouts { startup_timeout: Duration::from_secs(9), stall_timeout: Duration::from_secs(9), ..GroupTimeouts::default() };
        let mut now = Instant::now();
        let mut group = GroupState::new(hello(0, 3, 0), timeouts, Quorum::all(WORLD_SIZE), now);
        let mut used: BTreeSet<ConnectionId> = BTreeSet::new();
        let mut open: BTreeSet<ConnectionId> = BTreeSet::new();
        let mut closing: BTreeSet<ConnectionId> = BTreeSet::new();
        let mut final_messages: BTreeMap<ConnectionId, CoordinatorMessage> = BTreeMap::new();
        let mut ended = None;
        // at the end, time passes until every timeout has expired
        let quiet = (0..40).map(|_| (GroupEvent::Tick, 2000));
        for (event, millis) in script.into_iter().chain(quiet) {
            match &event {
                // connection numbers are never reused, and only open connections send
                GroupEvent::Hello(conn, _) | GroupEvent::WaitAsSpare(conn, _) if !used.insert(*conn) => continue,
                GroupEvent::Hello(conn, _) | GroupEvent::WaitAsSpare(conn, _) => drop(open.insert(*conn)),
                GroupEvent::Message(conn, _) if !open.contains(conn) => continue,
                GroupEvent::Disconnected(conn, _) if !open.remove(conn) => continue,
                _ => {}
            }
            now += Duration::from_millis(millis);
            for effect in group.handle(now, event) {
                match effect {
                    Effect::Send(conns, message) => for conn in conns {
                        prop_assert!(used.contains(&conn));
                        prop_assert!(!closing.contains(&conn), "{conn} was closed and then sent {message:?}");
                        prop_assert!(!final_messages.contains_key(&conn), "{conn} had its final message before {message:?}");
                        if let CoordinatorMessage::Released { roster, plan } = &message {
                            prop_assert_eq!((roster.members.len(), plan.len()), (WORLD_SIZE, 1));
                        }
                        if is_final(&message) {
                            final_messages.insert(conn, message.clone());
                        }
                    },
                    Effect::Close(conn) => {
                        prop_assert!(closing.insert(conn), "{} was closed twice", conn);
                    }
                }
            }
            // the first failure stays the reason
            if let Some(first) = &ended {
                prop_assert_eq!(group.failure.as_ref(), Some(first));
            }
            ended.clone_from(&group.failure);
        }
        // no open connection waits for ever
        prop_assert!(group.is_closed(), "the group is not closed after all timeouts");
        for conn in &open {
            prop_assert!(closing.contains(conn), "{conn} was not closed");
        }
        for (conn, message) in &final_messages {
            if let CoordinatorMessage::GroupEnded(failure) = message {
                // a spare's failure is addressed to rank 0
                let addressee = if *conn < 6 { *conn } else { 0 };
                prop_assert_eq!(failure.rank, addressee as usize % WORLD_SIZE);
                prop_assert_eq!(Some(&failure.message), ended.as_ref().map(|ended| &ended.message));
            }
        }
    }
}

/// Returns a formed group whose stage `n` uses connection `n`.
fn running(now: Instant) -> GroupState {
    let mut group = GroupState::new(hello(0, 3, 0), GroupTimeouts::default(), Quorum::all(WORLD_SIZE), now);
    group.handle(now, GroupEvent::Release(vec![], StepRules::default()));
    for rank in 0..WORLD_SIZE {
        group.handle(now, GroupEvent::Hello(rank as ConnectionId, hello(rank, 3, 0)));
    }
    for rank in 0..WORLD_SIZE {
        group.handle(now, GroupEvent::Message(rank as ConnectionId, MemberMessage::Formed));
    }
    group
}

/// Returns the connections that receive the final message.
fn ended_connections(effects: &[Effect]) -> Vec<ConnectionId> {
    let ended = |effect: &Effect| match effect {
        Effect::Send(conns, CoordinatorMessage::GroupEnded(_) | CoordinatorMessage::LeaveAcknowledged) => conns.clone(),
        _ => vec![],
    };
    effects.iter().flat_map(ended).collect()
}

#[test]
fn stage_zero_is_notified_after_the_others_have_disconnected() {
    let closed = || Disconnect::Closed;
    let now = Instant::now();
    let mut group = running(now);
    assert_eq!(ended_connections(&group.handle(now, GroupEvent::Disconnected(1, closed()))), [2]);
    assert!(ended_connections(&group.handle(now, GroupEvent::Tick)).is_empty());
    assert_eq!(ended_connections(&group.handle(now, GroupEvent::Disconnected(2, closed()))), [0]);

    // a stage that does not disconnect is awaited only until the timeout
    let mut group = running(now);
    group.handle(now, GroupEvent::Disconnected(1, closed()));
    assert_eq!(
        ended_connections(&group.handle(now + GroupTimeouts::default().shutdown_timeout, GroupEvent::Tick)),
        [0]
    );

    // the order is the same if all stages leave
    let mut group = running(now);
    let leave = || MemberMessage::Leave { code: 0 };
    assert!(ended_connections(&group.handle(now, GroupEvent::Message(0, leave()))).is_empty());
    assert!(ended_connections(&group.handle(now, GroupEvent::Message(1, leave()))).is_empty());
    assert_eq!(ended_connections(&group.handle(now, GroupEvent::Message(2, leave()))), [1, 2]);
    assert!(ended_connections(&group.handle(now, GroupEvent::Disconnected(1, closed()))).is_empty());
    assert_eq!(ended_connections(&group.handle(now, GroupEvent::Disconnected(2, closed()))), [0]);
}

#[test]
fn a_timed_out_stage_is_notified_but_not_waited_for() {
    let now = Instant::now();
    let mut group = running(now);
    assert_eq!(ended_connections(&group.handle(now, GroupEvent::Disconnected(1, Disconnect::TimedOut))), [1, 2]);
    let closed = Disconnect::Closed;
    assert_eq!(ended_connections(&group.handle(now, GroupEvent::Disconnected(2, closed))), [0]);
}

/// Returns the messages that only spares receive, with their connections.
fn sent_to_spares(effects: &[Effect]) -> Vec<(ConnectionId, CoordinatorMessage)> {
    let is_for_spare = |message: &CoordinatorMessage| {
        matches!(message, CoordinatorMessage::NextInLine { .. } | CoordinatorMessage::Promote { .. })
    };
    let sent = effects.iter().filter_map(|effect| match effect {
        Effect::Send(conns, message) if is_for_spare(message) => Some((conns[0], message.clone())),
        _ => None,
    });
    sent.collect()
}

#[test]
fn one_spare_after_the_other_is_next_in_line() {
    let now = Instant::now();
    let mut group = running(now);
    let wait_as_spare = |group: &mut GroupState, conn: ConnectionId| {
        sent_to_spares(&group.handle(now, GroupEvent::WaitAsSpare(conn, hello(conn as usize, 3, 0))))
    };
    let next = |conn| vec![(conn, CoordinatorMessage::NextInLine { incarnation: 0 })];
    assert_eq!(wait_as_spare(&mut group, 10), next(10));
    assert_eq!(wait_as_spare(&mut group, 11), []);
    assert_eq!(wait_as_spare(&mut group, 12), []);
    let died = group.handle(now, GroupEvent::Disconnected(10, Disconnect::Closed));
    assert_eq!(sent_to_spares(&died), next(11));
    assert_eq!(group.failure, None, "a spare is no member");
    let silent = group.handle(now, GroupEvent::Disconnected(11, Disconnect::TimedOut));
    assert_eq!(sent_to_spares(&silent), next(12));
    // the silent spare may still read, and must not mistake the closed connection for the end of the leader
    assert!(matches!(&silent[0], Effect::Send(conns, CoordinatorMessage::Refused(_)) if *conns == [11]), "{silent:?}");
    let lost = group.handle(now, GroupEvent::Disconnected(2, Disconnect::Closed));
    assert_eq!(sent_to_spares(&lost), [(12, CoordinatorMessage::Promote { rank: 2, incarnation: 1 })]);
}

/// The spare that replaces the stage joins the same group, because the group has not formed yet.
#[test]
fn a_stage_that_dies_before_the_group_has_formed_is_replaced_by_a_spare_in_it() {
    let now = Instant::now();
    let mut group = GroupState::new(hello(0, 3, 0), GroupTimeouts::default(), Quorum::all(WORLD_SIZE), now);
    for rank in 0..WORLD_SIZE {
        group.handle(now, GroupEvent::Hello(rank as ConnectionId, hello(rank, 3, 0)));
    }
    group.handle(now, GroupEvent::WaitAsSpare(10, hello(10, 3, 0)));
    let died = group.handle(now, GroupEvent::Disconnected(1, Disconnect::Closed));
    assert_eq!(sent_to_spares(&died), [(10, CoordinatorMessage::Promote { rank: 1, incarnation: 1 })]);
    group.handle(now, GroupEvent::Disconnected(10, Disconnect::Closed));
    let taker = Hello { incarnation: 1, pod_uid: "spare".to_owned(), ..hello(1, 3, 0) };
    group.handle(now, GroupEvent::Hello(11, taker.clone()));
    let released = group.handle(now, GroupEvent::Release(vec![1], StepRules::default()));
    let Effect::Send(to, CoordinatorMessage::Released { roster, .. }) = &released[1] else { panic!("{released:?}") };
    assert_eq!((to.as_slice(), &roster.members[1]), ([0, 11, 2].as_slice(), &taker));
    assert_eq!(group.failure, None);
}

/// A stage is not replaced if its error would recur in any process (exit code 78), or if the stage left because it lost
/// another stage (exit code 75).
#[test]
fn a_stage_that_leaves_with_an_error_of_its_own_is_replaced_by_a_spare() {
    let now = Instant::now();
    for (rank, code, followed) in [(2, 1, true), (2, 74, true), (0, 74, true), (2, 78, false), (2, 75, false)] {
        let mut group = running(now);
        group.handle(now, GroupEvent::WaitAsSpare(10, hello(10, 3, 0)));
        let left = group.handle(now, GroupEvent::Message(rank as ConnectionId, MemberMessage::Leave { code }));
        let expected = followed.then_some((10, CoordinatorMessage::Promote { rank, incarnation: 1 }));
        assert_eq!(sent_to_spares(&left), Vec::from_iter(expected), "stage {rank} left with {code}");
        assert!(group.failure.is_some());
    }
}

/// The five seconds begin when the coordinator notices the loss. The test measures them on a simulated clock. The limit
/// applies to every stage, even if the other stages do not react.
#[test]
fn a_lost_stage_ends_the_group_within_five_seconds() {
    let losses = [Disconnect::Closed, Disconnect::TimedOut, Disconnect::Malformed("nonsense".to_owned())];
    for (loss, lost) in losses.iter().flat_map(|loss| (0..WORLD_SIZE as ConnectionId).map(move |lost| (loss, lost))) {
        for others_react in [true, false] {
            let noticed = Instant::now();
            let (mut now, mut group) = (noticed, running(noticed));
            let mut reported = BTreeSet::from([lost]);
            let mut effects = group.handle(now, GroupEvent::Disconnected(lost, loss.clone()));
            while !group.is_closed() || reported.len() < WORLD_SIZE {
                let news: Vec<ConnectionId> =
                    ended_connections(&effects).into_iter().filter(|conn| reported.insert(*conn)).collect();
                now += GroupTimeouts::default().heartbeat_interval;
                assert!(
                    now - noticed <= Duration::from_secs(5),
                    "stage {lost} ({loss:?}): only {reported:?} were notified"
                );
                effects = group.handle(now, GroupEvent::Tick);
                for conn in news.into_iter().filter(|_| others_react) {
                    let closed = Disconnect::Closed;
                    effects.extend(group.handle(now, GroupEvent::Disconnected(conn, closed)));
                }
            }
        }
    }
}

#[test]
fn new_activities_count_as_progress() {
    let heartbeat = |sequence| {
        let activity = Heartbeat { text: format!("F {sequence}"), waits_for: None, sequence, age: Duration::ZERO };
        GroupEvent::Message(1, MemberMessage::Heartbeat(activity))
    };
    let mut now = Instant::now();
    let mut group = running(now);
    let almost = GroupTimeouts::default().stall_timeout - Duration::from_secs(1);
    for sequence in 1..5 {
        group.handle(now, heartbeat(sequence));
        now += almost;
        group.handle(now, GroupEvent::Tick);
        assert_eq!(group.failure, None);
    }
    // a repeated heartbeat of the same activity does not count as progress
    group.handle(now, heartbeat(4));
    group.handle(now + Duration::from_secs(2), GroupEvent::Tick);
    let failure = group.failure.unwrap();
    assert!(failure.message.starts_with("nothing has moved for 601 s: stage 0 "), "{failure}");
}
