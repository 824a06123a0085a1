//! Opening the links of a group: every stage listens, the sender of each edge dials its receiver and says which edge
//! it is. Both ends agree on the carrier: shared memory if the receiver can map the sender's ring, else the stream.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::carrier::{Incoming, Outgoing};
use super::shm::{Named, RingReader};
use super::{Edge, EdgeKind, LinkError, Receiver, Sender};

/// How payloads travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// In a TCP stream.
    Tcp,
    /// In shared memory; refused when the two ends do not share any.
    Shm,
    /// Shared memory where the two ends share it, else TCP.
    Auto,
}

/// What a stage needs to open its links.
#[derive(Debug)]
pub struct Opening<'a> {
    /// This stage.
    pub rank: usize,
    /// Names the group: links of another job or attempt are refused.
    pub group: String,
    /// Bound before the address in `addresses[rank]` was told to others.
    pub listener: TcpListener,
    /// Where each rank listens, by rank.
    pub addresses: &'a [String],
    /// All edges of the plan.
    pub edges: &'a [Edge],
    /// How payloads travel.
    pub transport: Transport,
    /// The largest activation or gradient at a boundary, in bytes.
    pub boundary_bytes: usize,
    /// A tied weight's gradient, in bytes.
    pub tied_bytes: usize,
    /// Give up after this long.
    pub timeout: Duration,
}

/// This stage's open links, by edge.
#[derive(Debug, Default)]
pub struct Links {
    /// Edges that leave this stage.
    pub senders: BTreeMap<Edge, Sender>,
    /// Edges that end at this stage.
    pub receivers: BTreeMap<Edge, Receiver>,
}

impl Links {
    /// Payload bytes that have left this stage so far.
    pub fn bytes_sent(&self) -> u64 {
        self.senders.values().map(Sender::bytes).sum()
    }
}

#[derive(Serialize, Deserialize)]
struct Greeting {
    group: String,
    edge: Edge,
    ring: Option<PathBuf>,
}

/// Rings made by this process so far: no two have one name.
static RINGS: AtomicU64 = AtomicU64::new(0);

/// A ring holds this many boundary tensors, so that a sender is rarely held up by its reader.
const PAYLOADS_IN_RING: usize = 4;

fn ring_bytes(opening: &Opening, edge: Edge) -> usize {
    match edge.kind {
        EdgeKind::Tied => opening.tied_bytes,
        EdgeKind::Forward { .. } | EdgeKind::Backward { .. } => opening.boundary_bytes * PAYLOADS_IN_RING,
    }
}

/// Opens all of this stage's links; returns when every edge is connected at both ends.
pub fn open(opening: Opening) -> Result<Links, LinkError> {
    let deadline = Instant::now() + opening.timeout;
    let expected = opening.edges.iter().filter(|e| e.to == opening.rank).count();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| accept(&opening, expected, deadline));
        let outgoing = opening.edges.iter().filter(|e| e.from == opening.rank);
        let senders =
            outgoing.map(|&edge| Ok((edge, dial(&opening, edge, deadline)?))).collect::<Result<_, LinkError>>();
        let receivers =
            accepting.join().unwrap_or_else(|_| Err(LinkError::Broken("the accepting thread failed".into())));
        Ok(Links { senders: senders?, receivers: receivers? })
    })
}

fn dial(opening: &Opening, edge: Edge, deadline: Instant) -> Result<Sender, LinkError> {
    let address = &opening.addresses[edge.to];
    let failed = |what: &str, e: &dyn std::fmt::Display| {
        LinkError::Broken(format!("{what} stage {} at {address} for {edge}: {e}", edge.to))
    };
    let mut stream = connect(address, deadline).map_err(|e| failed("could not reach", &e))?;
    let ring = match opening.transport {
        Transport::Tcp => None,
        Transport::Shm | Transport::Auto => {
            // containers may share this memory and not their process ids
            let unique = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
            let number = RINGS.fetch_add(1, Ordering::Relaxed);
            let name = format!("stagecoach-{}-{number}-{}", std::process::id(), unique.trim());
            match Named::create(&name, ring_bytes(opening, edge)) {
                Ok(ring) => Some(ring),
                Err(e) if opening.transport == Transport::Shm => {
                    return Err(failed("could not make shared memory for", &e));
                }
                Err(_) => None,
            }
        }
    };
    let greeting = Greeting { group: opening.group.clone(), edge, ring: ring.as_ref().map(|r| r.path.clone()) };
    greet(&mut stream, &greeting).map_err(|e| failed("could not greet", &e))?;
    let mut answer = [0];
    let answered = stream.read_exact(&mut answer);
    let writer = ring.map(Named::into_writer);
    answered.map_err(|e| failed("no answer from", &e))?;
    let carrier = match (answer[0], writer) {
        (SHARED, Some(writer)) => Outgoing::Ring(writer),
        (_, _) if opening.transport == Transport::Shm => {
            return Err(failed("no shared memory with", &"use transport Auto or Tcp for stages on different hosts"));
        }
        _ => Outgoing::Stream,
    };
    Ok(Sender::start(edge, stream, carrier))
}

const INLINE: u8 = 0;
const SHARED: u8 = 1;

fn accept(opening: &Opening, expected: usize, deadline: Instant) -> Result<BTreeMap<Edge, Receiver>, LinkError> {
    let mut receivers = BTreeMap::new();
    let failed = |e: std::io::Error| LinkError::Broken(format!("stage {} could not accept a link: {e}", opening.rank));
    opening.listener.set_nonblocking(true).map_err(failed)?;
    while receivers.len() < expected {
        wait_readable(&opening.listener, deadline).map_err(|_| {
            let missing: Vec<_> =
                opening.edges.iter().filter(|e| e.to == opening.rank && !receivers.contains_key(*e)).collect();
            let names: Vec<_> = missing.iter().map(|e| e.to_string()).collect();
            LinkError::Broken(format!("stage {} waited {:?} for {}", opening.rank, opening.timeout, names.join("; ")))
        })?;
        let Ok((mut stream, _)) = opening.listener.accept() else { continue };
        let Ok(greeting) = stream.set_nonblocking(false).and_then(|()| hear(&mut stream)) else {
            continue; // a stranger
        };
        if greeting.group != opening.group
            || !opening.edges.contains(&greeting.edge)
            || greeting.edge.to != opening.rank
        {
            continue; // another group's, late
        }
        let reader = greeting.ring.as_deref().and_then(|path| RingReader::open(path).ok());
        let (answer, carrier) = match reader {
            Some(reader) => (SHARED, Incoming::Ring(reader)),
            None => (INLINE, Incoming::Stream),
        };
        stream.write_all(&[answer]).map_err(failed)?;
        receivers.insert(greeting.edge, Receiver::start(greeting.edge, stream, carrier)?);
    }
    Ok(receivers)
}

fn connect(address: &str, deadline: Instant) -> std::io::Result<TcpStream> {
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let resolved = address.to_socket_addrs()?.next().ok_or_else(|| std::io::Error::other("the name has no address"))?;
    let stream = TcpStream::connect_timeout(&resolved, left)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A length and JSON: greetings are few and small.
fn greet(stream: &mut TcpStream, greeting: &Greeting) -> std::io::Result<()> {
    let text = serde_json::to_vec(greeting)?;
    stream.write_all(&(text.len() as u32).to_le_bytes())?;
    stream.write_all(&text)
}

fn hear(stream: &mut TcpStream) -> std::io::Result<Greeting> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > 65_536 {
        return Err(std::io::Error::other("not a greeting"));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text)?;
    stream.set_read_timeout(None)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Blocks until a connection waits, or fails at the deadline.
fn wait_readable(listener: &TcpListener, deadline: Instant) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    let left = deadline.saturating_duration_since(Instant::now());
    let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    match unsafe { libc::poll(&mut poll, 1, left.as_millis().min(i32::MAX as u128) as i32) } {
        0 => Err(std::io::ErrorKind::TimedOut.into()),
        n if n < 0 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}
