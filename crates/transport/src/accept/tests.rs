use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::Duration;

use stagecoach_api::job::Encryption;
use stagecoach_group::GroupSecret;
use stagecoach_pipeline::Placement;
use tch::Device;

use super::super::greeting::{AnnouncedRing, LinkSecurity};
use super::super::shm::NamedRing;
use super::super::{Interrupt, LinkPayload, link_ids, open_links};
use super::*;

const LINK: LinkId = LinkId { from: 0, to: 1, payload: LinkPayload::Forward { boundary: 0 } };
const BYTES: usize = 16_384;

/// Returns a name that no other test uses, in this or another process.
fn unique(name: &str) -> String {
    format!("{name}/{}", std::process::id())
}

fn ring<'a>(group: &'a str, nonce: &'a str) -> RingIdentity<'a> {
    RingIdentity { group, link: LINK, nonce, bytes: BYTES }
}

/// Sends a greeting. Returns the answer, or an empty vector if the stage closes the connection without an answer.
fn greet(address: &str, ring: Option<(&str, usize)>) -> Vec<u8> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let ring = ring.map(|(nonce, bytes)| AnnouncedRing { nonce: nonce.into(), bytes });
    match (Greeting { link: LINK, ring, communicator: None })
        .send(&stream, LinkSecurity { secret: &secret(), encryption: Encryption::None })
    {
        Ok((answer, _)) => vec![answer],
        Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof) => Vec::new(),
        Err(e) => panic!("neither answered nor closed: {e}"),
    }
}

fn secret() -> GroupSecret {
    GroupSecret::from_key_hex(1, &"07".repeat(32)).unwrap()
}

/// Returns the configuration of the links of stage `rank`, with `listener`.
fn config<'a>(
    (rank, listener): (usize, TcpListener),
    group: &str,
    secret: &'a GroupSecret,
    addresses: &'a [String],
    link_ids: &'a [LinkId],
    transport: Transport,
) -> LinksConfig<'a> {
    LinksConfig {
        rank,
        group: group.to_owned(),
        secret,
        on_rejected: &|| {},
        listener,
        addresses,
        link_ids,
        transport,
        device: Device::Cpu,
        encryption: Encryption::None,
        boundary_bytes: BYTES / 4,
        tied_bytes: 0,
        interrupt: Interrupt::default(),
        timeout: Duration::from_secs(20),
    }
}

/// Calls `others` with the address of stage 1, while stage 1 of two stages waits for the link from stage 0. Stage 0
/// connects afterwards, and both stages must open their links.
fn listening(transport: Transport, group: &str, others: impl FnOnce(&str)) {
    let link_ids = link_ids(&Placement::linear(2), false);
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = listeners.each_ref().map(|listener| listener.local_addr().unwrap().to_string());
    let [first, second] = listeners;
    let secret = secret();
    let stage = |rank, listener| open_links(config((rank, listener), group, &secret, &addresses, &link_ids, transport));
    std::thread::scope(|scope| {
        let second = scope.spawn(|| stage(1, second));
        others(&addresses[1]);
        assert!(stage(0, first).unwrap().senders.contains_key(&LINK));
        assert!(second.join().unwrap().unwrap().receivers.contains_key(&LINK));
    });
}

/// The name of a modification of a ring's file, and the function that modifies the file at a path.
type Tampering = (&'static str, fn(&Path));

fn aside(path: &Path) -> std::path::PathBuf {
    path.with_extension("aside")
}

const TAMPERINGS: [Tampering; 10] = [
    ("longer", |path| File::options().write(true).open(path).unwrap().set_len(BYTES as u64 * 2).unwrap()),
    ("shorter", |path| File::options().write(true).open(path).unwrap().set_len(BYTES as u64).unwrap()),
    ("empty", |path| File::options().write(true).open(path).unwrap().set_len(0).unwrap()),
    ("readable by others", |path| fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap()),
    ("another name", |path| fs::hard_link(path, aside(path)).unwrap()),
    ("a symbolic link", |path| {
        fs::rename(path, aside(path)).unwrap();
        symlink(aside(path), path).unwrap();
    }),
    ("a folder", |path| {
        fs::rename(path, aside(path)).unwrap();
        fs::create_dir(path).unwrap();
    }),
    ("another group's", |path| {
        let name = unique("other");
        let other = ring(&name, "a");
        std::mem::forget(NamedRing::create(&other).unwrap());
        fs::rename(other.path(), path).unwrap();
    }),
    ("all zeros", |path| {
        fs::write(path, vec![0; fs::metadata(path).unwrap().len() as usize]).unwrap();
    }),
    // a process that may not change a file's owner writes a file of the wrong size instead
    ("another user's", |path| chown(path, Some(1), None).or_else(|_| fs::write(path, [0])).unwrap()),
];

#[test]
fn only_the_senders_own_ring_is_mapped() {
    let group = &*unique("tampered");
    listening(Transport::Auto, group, |address| {
        for (index, (how, tamper)) in TAMPERINGS.into_iter().enumerate() {
            let nonce = index.to_string();
            let ring = ring(group, &nonce);
            let named = NamedRing::create(&ring).unwrap();
            tamper(&ring.path());
            let before = fs::read(ring.path()).ok();
            assert_eq!(greet(address, Some((&nonce, BYTES))), [0; 0], "{how}");
            assert_eq!(fs::read(ring.path()).ok(), before, "{how}");
            let _ = fs::remove_file(aside(&ring.path()));
            let _ = fs::remove_dir(ring.path());
            drop(named);
        }
        // a correct ring with a wrong announcement
        let _named = NamedRing::create(&ring(group, "whole")).unwrap();
        for bytes in [BYTES * 2, 0] {
            assert_eq!(greet(address, Some(("whole", bytes))), [0; 0], "{bytes}");
        }
        // an announced nonce can't lead to a file outside /dev/shm
        assert_eq!(greet(address, Some(("../../tmp/file", BYTES * 3))), [0; 0]);
    });
}

#[test]
fn a_ring_that_is_there_is_used_and_one_that_is_not_leaves_the_stream() {
    let group = &*unique("met");
    for (there, answer) in [(true, SHARED), (false, INLINE)] {
        let (link_ids, secret) = (link_ids(&Placement::linear(2), false), secret());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let opening = config((1, listener), group, &secret, &[], &link_ids, Transport::Auto);
        let address = opening.listener.local_addr().unwrap().to_string();
        let _named = there.then(|| NamedRing::create(&ring(group, "n")).unwrap());
        let deadline = Instant::now() + opening.timeout;
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| accept(&opening, None, 1, deadline));
            assert_eq!(greet(&address, Some(("n", BYTES))), [answer]);
            assert_eq!(accepting.join().unwrap().unwrap().len(), 1);
        });
    }
}

#[test]
fn the_transport_decides_whether_shared_memory_is_brought() {
    let group = &*unique("transport");
    listening(Transport::Tcp, group, |address| {
        let _named = NamedRing::create(&ring(group, "n")).unwrap();
        assert_eq!(greet(address, Some(("n", BYTES))), [0; 0]);
    });
    listening(Transport::Shm, group, |address| assert_eq!(greet(address, None), [0; 0]));
}

/// Stage 1 closes the connection from stage 0, and opens no connection to stage 0. The failure of the link to stage 1
/// also ends the wait for the link from stage 1.
#[test]
fn a_failure_to_dial_ends_the_wait_for_other_links() {
    let [first, second] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = [&first, &second].map(|listener| listener.local_addr().unwrap().to_string());
    let link_ids = link_ids(&Placement::linear(2), false);
    std::thread::scope(|scope| {
        // stage 1 closes the connection before it answers
        scope.spawn(move || drop(second.accept().unwrap()));
        let opened = open_links(LinksConfig {
            // the timeout is far longer than a test may take
            timeout: Duration::from_secs(100_000),
            ..config((0, first), &unique("failed"), &secret(), &addresses, &link_ids, Transport::Tcp)
        });
        let error = opened.unwrap_err().to_string();
        assert!(error.starts_with(&format!("no answer from stage 1 at {}", addresses[1])), "{error}");
    });
}

#[test]
fn a_name_is_gone_with_its_ring() {
    let group = unique("gone");
    let ring = ring(&group, "n");
    let named = NamedRing::create(&ring).unwrap();
    assert!(ring.path().exists());
    drop(named);
    assert!(!ring.path().exists());
}
