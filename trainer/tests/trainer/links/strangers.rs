//! Tests of connections that do not belong to a link of the group.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use stagecoach_api::job::Transport;
use stagecoach_group::frame::encode_frame;
use stagecoach_group::{GroupSecret, HANDSHAKE_BYTES, Handshake, Session};
use stagecoach_pipeline::Placement;
use stagecoach_transport::{LinkId, LinkPayload, Links, LinksConfig, link_ids, open_links};
use tch::Kind;

use super::{FORWARD, SECRET, config, tensor};

/// The text that both ends of a link put into their handshake, so that a handshake made for another use is rejected.
const PURPOSE: &str = "stagecoach link";

/// Connects to `address`, and sends the greeting of `link`. `ring` is the ring (the link's shared memory) that the
/// greeting announces: the text that distinguishes it from the link's other rings, and its size in bytes.
fn greet(address: &str, link: LinkId, ring: Option<(&str, usize)>) -> (TcpStream, Session) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (handshake, message) = Handshake::begin(&SECRET, PURPOSE).unwrap();
    stream.write_all(&message).unwrap();
    let mut answer = [0; HANDSHAKE_BYTES];
    stream.read_exact(&mut answer).unwrap();
    let session = handshake.finish(&answer).unwrap();
    session.writer(&stream).write_all(&encode_frame(&(link, ring, None::<Vec<u8>>), 4096).unwrap()).unwrap();
    (stream, session)
}

/// Returns all bytes that arrive until the connection is closed.
fn answer((stream, session): (TcpStream, Session)) -> Vec<u8> {
    read_all(session.reader(stream))
}

fn read_all(mut stream: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    let closed = stream.read_to_end(&mut bytes).map_or_else(|e| e.kind() == ErrorKind::ConnectionReset, |_| true);
    assert!(closed, "the connection sent {bytes:?} and was not closed");
    bytes
}

/// Opens the links of two stages. `strangers` is called with the second stage's address and its number of rejected
/// connections, after the second stage has begun to listen and before the first stage starts.
fn among_strangers(transport: Transport, timeout: u64, strangers: impl FnOnce(&str, &AtomicUsize)) -> [Links; 2] {
    let rejected = AtomicUsize::new(0);
    let count = || {
        rejected.fetch_add(1, Ordering::SeqCst);
    };
    let link_ids = link_ids(&Placement::linear(2), false);
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses: Vec<String> = listeners.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
    let [first, second] = listeners;
    std::thread::scope(|scope| {
        let stage = |rank, listener| {
            let config = config(rank, listener, &addresses, &link_ids, transport);
            let (timeout, on_rejected) = (Duration::from_secs(timeout), &count);
            scope.spawn(move || open_links(LinksConfig { timeout, on_rejected, ..config }).unwrap())
        };
        let second = stage(1, second);
        strangers(&addresses[1], &rejected);
        [stage(0, first), second].map(|stage| stage.join().unwrap())
    })
}

fn works(links: &mut [Links; 2]) {
    links[0].senders[&FORWARD].send(0, tensor(7, 2, 3)).unwrap();
    let receiver = links[1].receivers.get_mut(&FORWARD).unwrap();
    receiver.post(0, &[2, 3, 8], Kind::Float);
    assert_eq!(receiver.wait(0).unwrap(), tensor(7, 2, 3));
}

#[test]
fn a_greeting_that_names_a_file_is_a_strangers() {
    // files that a greeting might name, in this test's folder and in the folder of shared memory
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()];
    let file = |name: &str, folder: &Path| {
        let path = folder.join(name);
        std::fs::write(&path, [7; 8192]).unwrap();
        path
    };
    let mut paths = Vec::new();
    for folder in folders.iter().map(tempfile::TempDir::path) {
        let own = file("own", folder);
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&own, folder.join("symbolic")).unwrap();
        std::fs::hard_link(file("linked", folder), folder.join("hard")).unwrap();
        paths.extend(["own", "symbolic", "hard"].map(|name| folder.join(name)));
    }
    let mut links = among_strangers(Transport::Shm, 20, |address, _| {
        for path in &paths {
            assert_eq!(
                answer(greet(address, FORWARD, Some((path.to_str().unwrap(), 8192)))),
                [0; 0],
                "{}",
                path.display()
            );
            assert_eq!(std::fs::read(path).unwrap(), [7; 8192]);
        }
    });
    works(&mut links);
}

#[test]
fn silent_strangers_delay_no_stage() {
    let mut silent = Vec::new();
    let mut links = among_strangers(Transport::Auto, 10, |address, _| {
        silent.extend((0..100).map(|_| TcpStream::connect(address).unwrap()));
    });
    works(&mut links);
}

#[test]
fn a_peer_without_the_groups_key_gets_no_answer() {
    let older = GroupSecret::from_key_hex(0, &SECRET.key_hex()).unwrap();
    let begin = |secret: &GroupSecret, purpose: &str| Handshake::begin(secret, purpose).unwrap().1;
    let firsts = [
        [7; HANDSHAKE_BYTES],
        begin(&GroupSecret::generate(1).unwrap(), PURPOSE),
        begin(&older, PURPOSE),
        begin(&SECRET, "stagecoach control"),
    ];
    let mut links = among_strangers(Transport::Auto, 20, |address, rejected| {
        for first in &firsts {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.write_all(first).unwrap();
            assert_eq!(read_all(stream), [0; 0]);
        }
        assert_eq!(rejected.load(Ordering::SeqCst), firsts.len());
    });
    works(&mut links);
}

#[test]
fn a_link_that_is_connected_is_not_connected_again() {
    let link_ids = link_ids(&Placement::linear(3), false);
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses: Vec<String> = listeners.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
    let [first, second, third] = listeners;
    let back = LinkId { from: 2, to: 1, payload: LinkPayload::Backward { boundary: 1 } };
    std::thread::scope(|scope| {
        let middle = scope.spawn(|| open_links(config(1, second, &addresses, &link_ids, Transport::Tcp)).unwrap());
        let (mut mine, session) = greet(&addresses[1], FORWARD, None);
        let mut accepted = [9];
        session.reader(&mine).read_exact(&mut accepted).unwrap();
        assert_eq!(accepted, [0]);
        assert_eq!(answer(greet(&addresses[1], FORWARD, None)), [0; 0]);
        // the test also connects the other links of the group, so that the middle stage has all its links
        let _last = greet(&addresses[1], back, None);
        let outgoing = [first, third].map(|listener| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut message = [0; HANDSHAKE_BYTES];
            stream.read_exact(&mut message).unwrap();
            let (session, answer) = Handshake::respond(&SECRET, PURPOSE, &message).unwrap();
            stream.write_all(&answer).unwrap();
            session.writer(&stream).write_all(&[0]).unwrap();
            stream
        });
        let mut links = middle.join().unwrap();
        drop(outgoing);
        // the link still uses the first connection: these bytes, which the test sends as stage 0, reach the receiver,
        // which finds no tensor header in them
        mine.write_all(&[1; 64]).unwrap();
        let receiver = links.receivers.get_mut(&FORWARD).unwrap();
        receiver.post(0, &[1, 1, 8], Kind::Float);
        assert!(receiver.wait(0).unwrap_err().to_string().contains("no tensor header"));
    });
}
