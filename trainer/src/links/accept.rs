//! Accepts the links that end at this stage. Connections are read concurrently, so that a silent one delays no other; one
//! whose peer is not the sender of a link that is still missing is closed without an answer.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use stagecoach_api::job::Transport;

use super::carrier::Incoming;
use super::config::{LinksConfig, ring_bytes};
use super::greeting::{Greeting, PendingConnection};
use super::nccl::{NewCommunicator, UniqueId};
use super::shm::{RingIdentity, RingLookup, RingReader};
use super::{LinkError, LinkId, Receiver};

/// The receiver's answer: payloads are carried by the stream, by the ring in shared memory, or by the communicator.
pub(super) const INLINE: u8 = 0;
pub(super) const SHARED: u8 = 1;
pub(super) const COMMUNICATOR: u8 = 2;

/// Connections whose greeting is awaited at a time; beyond it the oldest is closed. A sender greets at once, others may never.
const MAX_PENDING_CONNECTIONS: usize = 64;

/// The links that end at this stage.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    /// Those that are open.
    pub(super) receivers: BTreeMap<LinkId, Receiver>,
    /// Those over communicators, which are to be connected still.
    pub(super) communicators: Vec<NewCommunicator>,
}

impl Accepted {
    fn len(&self) -> usize {
        self.receivers.len() + self.communicators.len()
    }

    fn has(&self, link: LinkId) -> bool {
        self.receivers.contains_key(&link) || self.communicators.iter().any(|new| new.link == link)
    }
}

/// What carries the payloads of a link.
enum Carrier {
    Incoming(Incoming),
    Communicator(UniqueId),
}

/// Waits until all links that end at this stage are connected, over NCCL if it `has_nccl` and the sender too.
pub(super) fn accept(
    opening: &LinksConfig,
    has_nccl: bool,
    expected: usize,
    deadline: Instant,
) -> Result<Accepted, LinkError> {
    let mut accepted = Accepted::default();
    let failed = |e: io::Error| LinkError::Broken(format!("stage {} could not accept a link: {e}", opening.rank));
    opening.listener.set_nonblocking(true).map_err(failed)?;
    opening.interrupt.add(&opening.listener).map_err(failed)?;
    let mut pending: Vec<PendingConnection> = Vec::new();
    while accepted.len() < expected {
        if opening.interrupt.is_triggered() {
            return Err(ended(opening));
        }
        if Instant::now() >= deadline {
            return Err(late(opening, &accepted));
        }
        wait_readable(&opening.listener, &pending, deadline).map_err(failed)?;
        if let Ok(connection) = opening.listener.accept().and_then(|(stream, _)| PendingConnection::new(stream)) {
            if pending.len() == MAX_PENDING_CONNECTIONS {
                pending.remove(0);
                (opening.on_rejected)();
            }
            pending.push(connection);
        }
        for mut connection in std::mem::take(&mut pending) {
            match connection.read_greeting(opening.terms()) {
                Ok(None) if Instant::now() < connection.deadline => pending.push(connection),
                Ok(Some(greeting)) => match admit(opening, has_nccl, &greeting, &accepted) {
                    // a sender that has disconnected is told by the control plane
                    Ok(carrier) => drop(start(opening, greeting.link, connection, carrier, &mut accepted)),
                    Err(why) => {
                        (opening.on_rejected)();
                        tracing::warn!("closed a connection that is no link of this group: {why}");
                    }
                },
                _ => (opening.on_rejected)(),
            }
        }
    }
    Ok(accepted)
}

/// Checks a greeting, and opens what carries the payloads of its link.
///
/// # Errors
/// The reason why the peer is not the sender of a missing link.
fn admit(opening: &LinksConfig, has_nccl: bool, greeting: &Greeting, accepted: &Accepted) -> Result<Carrier, String> {
    let Greeting { link, ring, communicator } = greeting;
    if !opening.link_ids.contains(link) || link.to != opening.rank {
        return Err(format!("it brings {link}, which does not end here"));
    }
    if accepted.has(*link) {
        return Err(format!("it brings {link}, which is connected already"));
    }
    let id = communicator.as_ref().map(|bytes| UniqueId::from_bytes(bytes).ok_or("its NCCL identifier is none"));
    let announced = match (ring, id.transpose()?, opening.transport) {
        (None, Some(id), Transport::Nccl | Transport::Auto) if link.payload.is_on_device() => {
            return Ok(if has_nccl { Carrier::Communicator(id) } else { Carrier::Incoming(Incoming::Stream) });
        }
        (Some(announced), None, Transport::Shm | Transport::Auto) => announced,
        (Some(announced), None, Transport::Nccl) if !link.payload.is_on_device() => announced,
        (None, None, Transport::Nccl) if !link.payload.is_on_device() => {
            return Ok(Carrier::Incoming(Incoming::Stream));
        }
        (None, None, Transport::Tcp | Transport::Auto) => return Ok(Carrier::Incoming(Incoming::Stream)),
        (ring, id, transport) => {
            let brings = match (ring, id) {
                (_, Some(_)) => "a communicator",
                (Some(_), None) => "shared memory",
                (None, None) => "no shared memory",
            };
            return Err(format!("it brings {brings} for {link}, and the transport is {transport:?}"));
        }
    };
    let bytes = ring_bytes(opening, *link);
    if announced.bytes != bytes {
        return Err(format!("it brings {} bytes of shared memory for {link}, which takes {bytes}", announced.bytes));
    }
    match RingReader::open(&RingIdentity { group: &opening.group, link: *link, nonce: &announced.nonce, bytes }) {
        RingLookup::Ring(ring) => Ok(Carrier::Incoming(Incoming::Ring(ring))),
        RingLookup::None => Ok(Carrier::Incoming(Incoming::Stream)),
        RingLookup::Other(why) => Err(format!("its shared memory for {link} is not the sender's: {why}")),
    }
}

/// Answers the greeting and starts receiving; none if the sender has disconnected.
fn start(
    opening: &LinksConfig,
    link: LinkId,
    connection: PendingConnection,
    carrier: Carrier,
    accepted: &mut Accepted,
) -> Option<()> {
    let answer = match carrier {
        Carrier::Incoming(Incoming::Stream) => INLINE,
        Carrier::Incoming(Incoming::Ring(_)) => SHARED,
        Carrier::Communicator(_) => COMMUNICATOR,
    };
    let (socket, stream) = connection.answer(answer, opening.terms()).ok()?;
    opening.interrupt.add(&socket).ok()?;
    match carrier {
        Carrier::Incoming(incoming) => {
            let receiver = Receiver::start(link, opening.device, socket, stream, incoming);
            accepted.receivers.insert(link, receiver);
        }
        Carrier::Communicator(id) => accepted.communicators.push(NewCommunicator { link, id, socket }),
    }
    Some(())
}

/// The group failed while the links were opened.
fn ended(opening: &LinksConfig) -> LinkError {
    LinkError::Broken(format!("stage {} opens no links any more: the group has ended", opening.rank))
}

fn late(opening: &LinksConfig, accepted: &Accepted) -> LinkError {
    let missing = opening.link_ids.iter().filter(|e| e.to == opening.rank && !accepted.has(**e));
    let names: Vec<String> = missing.map(ToString::to_string).collect();
    LinkError::Broken(format!("stage {} waited {:?} for {}", opening.rank, opening.timeout, names.join("; ")))
}

/// Blocks until a connection can be accepted or read, a greeting is overdue, or the deadline has passed.
fn wait_readable(listener: &TcpListener, pending: &[PendingConnection], deadline: Instant) -> io::Result<()> {
    let until = pending.iter().map(|connection| connection.deadline).fold(deadline, Instant::min);
    let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
    let streams = pending.iter().map(|connection| PollFd::new(&connection.stream, PollFlags::IN));
    let mut polled: Vec<PollFd> = std::iter::once(PollFd::new(listener, PollFlags::IN)).chain(streams).collect();
    match poll(&mut polled, Some(&left)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
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

    use super::super::greeting::{AnnouncedRing, Terms};
    use super::super::shm::NamedRing;
    use super::super::{Interrupt, LinkPayload, link_ids, open_links};
    use super::*;

    const LINK: LinkId = LinkId { from: 0, to: 1, payload: LinkPayload::Forward { boundary: 0 } };
    const BYTES: usize = 16_384;

    /// No other test's, also in another process.
    fn unique(name: &str) -> String {
        format!("{name}/{}", std::process::id())
    }

    fn ring<'a>(group: &'a str, nonce: &'a str) -> RingIdentity<'a> {
        RingIdentity { group, link: LINK, nonce, bytes: BYTES }
    }

    /// What comes back for a greeting, until the connection is closed or has answered.
    fn greet(address: &str, ring: Option<(&str, usize)>) -> Vec<u8> {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let ring = ring.map(|(nonce, bytes)| AnnouncedRing { nonce: nonce.into(), bytes });
        match (Greeting { link: LINK, ring, communicator: None })
            .exchange(&stream, Terms { secret: &secret(), encryption: Encryption::None })
        {
            Ok((answer, _)) => vec![answer],
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof) => Vec::new(),
            Err(e) => panic!("neither answered nor closed: {e}"),
        }
    }

    fn secret() -> GroupSecret {
        GroupSecret::from_key_hex(1, &"07".repeat(32)).unwrap()
    }

    /// Runs `others` (other connections) while stage 1 of two waits for stage 0, which then connects.
    fn listening(transport: Transport, group: &str, others: impl FnOnce(&str)) {
        let link_ids = link_ids(&Placement::linear(2), false);
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = listeners.each_ref().map(|listener| listener.local_addr().unwrap().to_string());
        let [first, second] = listeners;
        let stage = |rank, listener| {
            let (addresses, link_ids, timeout) = (&addresses[..], &link_ids[..], Duration::from_secs(20));
            let (boundary_bytes, tied_bytes, group) = (BYTES / 4, 0, group.to_owned());
            open_links(LinksConfig {
                rank,
                group,
                secret: &secret(),
                on_rejected: &|| {},
                listener,
                addresses,
                link_ids,
                transport,
                device: Device::Cpu,
                encryption: Encryption::None,
                boundary_bytes,
                tied_bytes,
                interrupt: Interrupt::default(),
                timeout,
            })
        };
        std::thread::scope(|scope| {
            let second = scope.spawn(|| stage(1, second));
            others(&addresses[1]);
            assert!(stage(0, first).unwrap().senders.contains_key(&LINK));
            assert!(second.join().unwrap().unwrap().receivers.contains_key(&LINK));
        });
    }

    /// Something done to a ring's file, by its path.
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
        // without the right to give files away there is nobody else's file to be had
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
            // as it should be, but for what is said of it
            let _named = NamedRing::create(&ring(group, "whole")).unwrap();
            for bytes in [BYTES * 2, 0] {
                assert_eq!(greet(address, Some(("whole", bytes))), [0; 0], "{bytes}");
            }
            // sent around: no path leads out of the folder
            assert_eq!(greet(address, Some(("../../tmp/file", BYTES * 3))), [0; 0]);
        });
    }

    #[test]
    fn a_ring_that_is_there_is_used_and_one_that_is_not_leaves_the_stream() {
        let group = &*unique("met");
        for (there, answer) in [(true, SHARED), (false, INLINE)] {
            let (link_ids, secret) = (link_ids(&Placement::linear(2), false), secret());
            let opening = LinksConfig {
                rank: 1,
                group: group.into(),
                secret: &secret,
                on_rejected: &|| {},
                listener: TcpListener::bind("127.0.0.1:0").unwrap(),
                addresses: &[],
                link_ids: &link_ids,
                transport: Transport::Auto,
                device: Device::Cpu,
                encryption: Encryption::None,
                boundary_bytes: BYTES / 4,
                tied_bytes: 0,
                interrupt: Interrupt::default(),
                timeout: Duration::from_secs(20),
            };
            let address = opening.listener.local_addr().unwrap().to_string();
            let _named = there.then(|| NamedRing::create(&ring(group, "n")).unwrap());
            let deadline = Instant::now() + opening.timeout;
            std::thread::scope(|scope| {
                let accepting = scope.spawn(|| accept(&opening, false, 1, deadline));
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

    #[test]
    fn a_name_is_gone_with_its_ring() {
        let group = unique("gone");
        let ring = ring(&group, "n");
        let named = NamedRing::create(&ring).unwrap();
        assert!(ring.path().exists());
        drop(named);
        assert!(!ring.path().exists());
    }
}
