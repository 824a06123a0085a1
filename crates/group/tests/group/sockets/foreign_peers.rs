//! Tests foreign programs and attackers on either end of a control connection. Their only effect on the group is that
//! the group counts the rejected connections.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use stagecoach_api::contract::Mesh;
use stagecoach_group::{
    Coordinator, GroupError, GroupSecret, GroupTimeouts, HANDSHAKE_BYTES, Handshake, Member, NotFound,
    PROTOCOL_VERSION, Quorum, Rendezvous, StepRules,
};

use super::support::{SHORT_TIMEOUT, TEST_TIMEOUT, TestStage, find, form, hello, join_at, secret, timeouts};

/// The prologue that both sides of a control connection use in the handshake.
const PURPOSE: &str = "stagecoach control";

/// A formed group that counts the connections it rejects.
struct CountingGroup {
    coordinator: Coordinator,
    address: String,
    stages: Vec<TestStage>,
    rejected: Arc<AtomicUsize>,
}

impl CountingGroup {
    /// Calls `others`, which opens other connections to the address, and forms the group while these connections are
    /// open.
    fn form<T>(timeouts: GroupTimeouts, others: impl FnOnce(&str) -> T) -> (CountingGroup, T) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let rejected = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&rejected);
        let count = move || {
            counter.fetch_add(1, Ordering::SeqCst);
        };
        let coordinator = Coordinator::start(listener, hello(0, 3), timeouts, secret(), Quorum::all(3), count).unwrap();
        let others = others(&address);
        coordinator.release(Vec::new(), StepRules::default());
        let stages = join_at(&vec![address.clone(); 3], timeouts);
        form(&stages);
        (CountingGroup { coordinator, address, stages, rejected }, others)
    }

    /// Waits until `count` connections have been rejected, and checks that the group has not failed.
    fn assert_rejected(&self, count: usize) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while self.rejected.load(Ordering::SeqCst) < count {
            assert!(Instant::now() < deadline, "{} of {count}", self.rejected.load(Ordering::SeqCst));
            thread::yield_now();
        }
        assert_eq!(self.rejected.load(Ordering::SeqCst), count);
        assert_eq!(self.coordinator.failure(), None);
        assert!(self.stages.iter().all(|stage| stage.failures.try_recv().is_err()));
    }
}

/// Reads all bytes until the connection is closed.
fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => answer.extend_from_slice(&buffer[..count]),
            Ok(_) => return answer,
            Err(error) => {
                // a peer that closes a connection with unread bytes sends a reset
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                return answer;
            }
        }
    }
}

/// Returns the answer of the port to `bytes`, up to the end of the connection.
fn answer(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(bytes).unwrap();
    read_all(&mut stream)
}

fn preamble(version: u32) -> Vec<u8> {
    [&b"stgcoach"[..], &version.to_le_bytes()].concat()
}

#[test]
fn foreign_clients_get_a_notice_and_do_not_disturb_the_group() {
    let timeouts = GroupTimeouts { heartbeat_timeout: SHORT_TIMEOUT, ..timeouts() };
    let (group, silent) = CountingGroup::form(timeouts, |address| {
        let mut silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        silent[0].write_all(b"stgc").unwrap();
        silent
    });
    let http = answer(&group.address, b"GET /status HTTP/1.1\r\nHost: here\r\n\r\n");
    assert!(String::from_utf8(http).unwrap().starts_with("This is the control port of a Stagecoach job"));
    answer(&group.address, &[0xff; 4096]);
    // a client of another version gets the preamble of this version
    assert_eq!(answer(&group.address, &preamble(PROTOCOL_VERSION + 1)), preamble(PROTOCOL_VERSION));
    // the coordinator disconnects silent clients after the timeout
    for mut stream in silent {
        let message = String::from_utf8(read_all(&mut stream)).unwrap();
        assert!(message.is_empty() || message.starts_with("This is the control port"), "{message}");
    }
    group.assert_rejected(23);
}

#[test]
fn a_peer_without_the_key_learns_nothing_and_ends_nothing() {
    let (group, ()) = CountingGroup::form(timeouts(), |_| {});
    let begin = |secret: &GroupSecret| {
        [preamble(PROTOCOL_VERSION), Handshake::begin(secret, PURPOSE).unwrap().1.into()].concat()
    };
    // clients with an invalid handshake, with another key, or with the key of an older group get only the preamble
    let other_key = GroupSecret::generate(secret().epoch()).unwrap();
    let older = GroupSecret::from_key_hex(secret().epoch() - 1, &secret().key_hex()).unwrap();
    for first in [[preamble(PROTOCOL_VERSION), vec![9; HANDSHAKE_BYTES]].concat(), begin(&other_key), begin(&older)] {
        assert_eq!(answer(&group.address, &first), preamble(PROTOCOL_VERSION));
    }
    group.assert_rejected(3);
}

#[test]
fn a_recorded_connection_can_not_be_replayed() {
    // a proxy records the bytes that stage 1 sends to join
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = listener.local_addr().unwrap().to_string();
    let (group, recorded) = CountingGroup::form(timeouts(), |address| {
        let address = address.to_owned();
        let first_hello = thread::spawn(move || {
            let (mut near, _) = listener.accept().unwrap();
            let mut far = TcpStream::connect(address).unwrap();
            let mut back = (far.try_clone().unwrap(), near.try_clone().unwrap());
            let answers = thread::spawn(move || {
                let mut answer = [0; 12 + HANDSHAKE_BYTES];
                back.0.read_exact(&mut answer).unwrap();
                back.1.write_all(&answer).unwrap();
            });
            let mut recorded = vec![0; 12 + HANDSHAKE_BYTES];
            near.read_exact(&mut recorded).unwrap();
            far.write_all(&recorded).unwrap();
            answers.join().unwrap();
            // the proxy does not forward the hello, so the same stage can join again below
            let mut hello = [0; 64];
            near.read_exact(&mut hello).unwrap();
            recorded.extend(hello);
            drop(near);
            recorded
        });
        let short = GroupTimeouts { startup_timeout: Duration::ZERO, ..timeouts() };
        Member::join(find(&proxy), hello(1, 3), Mesh::pipeline(3), short, |_| {}, |_| {}).unwrap_err();
        first_hello.join().unwrap()
    });
    group.assert_rejected(1);
    let replayed = answer(&group.address, &recorded);
    assert_eq!(replayed.len(), 12 + HANDSHAKE_BYTES);
    group.assert_rejected(2);
}

#[test]
fn a_flood_of_half_open_connections_keeps_no_stage_out() {
    let (group, flood) = CountingGroup::form(timeouts(), |address| {
        (0..600).map(|_| TcpStream::connect(address).unwrap()).collect::<Vec<_>>()
    });
    // the coordinator has closed the oldest connections to make room, and rejects each remaining connection when the
    // client closes it
    drop(flood);
    group.assert_rejected(600);
}

/// Returns the error of a stage that tries to join a server that sends `bytes`.
fn join_a_server_that_sends(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&bytes).unwrap();
        // the socket stays open until the member has read the bytes, because a reset could discard them
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let once = GroupTimeouts { startup_timeout: Duration::ZERO, ..timeouts() };
    let error = Member::join(find(&address), hello(1, 2), Mesh::pipeline(2), once, |_| {}, |_| {}).unwrap_err();
    assert!(matches!(error, GroupError::Unreachable { .. }), "{error}");
    server.join().unwrap();
    error.to_string()
}

#[test]
fn what_a_foreign_server_says_is_reported_and_tried_again() {
    let error = join_a_server_that_sends(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    assert!(error.contains("the peer began with \"HTTP/1.1 400\""), "{error}");
    let error = join_a_server_that_sends(preamble(PROTOCOL_VERSION + 1));
    let versions = format!(
        "version {} of the control protocol, and this stage speaks version {PROTOCOL_VERSION}",
        PROTOCOL_VERSION + 1
    );
    assert!(error.contains(&versions), "{error}");
    let no_key = b" 48 bytes that only somebody with the key could know".to_vec();
    let error = join_a_server_that_sends([preamble(PROTOCOL_VERSION), no_key].concat());
    assert!(error.contains("the peer does not have this group's key"), "{error}");
}

#[test]
fn another_version_is_reported_before_anything_is_sent() {
    let find = || Ok(Rendezvous { protocol_version: PROTOCOL_VERSION + 1, ..find("127.0.0.1:9")().unwrap() });
    let error = Member::join(find, hello(1, 2), Mesh::pipeline(2), timeouts(), |_| {}, |_| {}).unwrap_err();
    let expected = format!(
        "stage 1 uses version {PROTOCOL_VERSION} of the control protocol, and the leader uses version {}: run the \
         same image on all stages",
        PROTOCOL_VERSION + 1
    );
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_coordinator_that_is_not_found_or_reached_is_reported_after_the_timeout() {
    let reserved = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = reserved.local_addr().unwrap().to_string();
    drop(reserved);
    let short = GroupTimeouts { startup_timeout: Duration::from_millis(200), ..timeouts() };
    for address in [address.as_str(), "no-such-host.invalid:29500"] {
        let error = Member::join(find(address), hello(1, 2), Mesh::pipeline(2), short, |_| {}, |_| {}).unwrap_err();
        assert!(matches!(error, GroupError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains(address), "{error}");
    }
    let nowhere = || Err(NotFound::NotReady("no group has begun in /jobs/a".to_owned()));
    let error = Member::join(nowhere, hello(1, 2), Mesh::pipeline(2), short, |_| {}, |_| {}).unwrap_err();
    assert!(error.to_string().contains("(no group has begun in /jobs/a)"), "{error}");
    let superseded = || Err(NotFound::Superseded("attempt 4".to_owned()));
    let error = Member::join(superseded, hello(1, 2), Mesh::pipeline(2), timeouts(), |_| {}, |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "stage 1 belongs to a group that has ended: attempt 4 has begun");
}
