//! Accepts the links that end at this stage. The stage reads from all connections concurrently, so that a silent peer
//! does not delay the other links. If the peer is not the sender of a link that this stage still waits for, the stage
//! closes the connection and sends no answer.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use stagecoach_api::job::Transport;
use stagecoach_group::local_shortage;
use stagecoach_kernels::device::CudaContext;

use super::carrier::Incoming;
use super::config::{LinksConfig, LinksGpu, ring_bytes};
use super::greeting::{Greeting, PendingConnection};
use super::nccl::{NewCommunicator, UniqueId};
use super::shm::{RingIdentity, RingLookup, RingReader};
use super::{LinkError, LinkId, Receiver};

/// The receiver's answers to a greeting, the message with which a sender identifies its link. Each answer names the
/// carrier of the link's payloads: the connection's stream, a ring (a buffer in shared memory), or an NCCL
/// communicator.
pub(super) const INLINE: u8 = 0;
pub(super) const SHARED: u8 = 1;
pub(super) const COMMUNICATOR: u8 = 2;

/// The maximum number of connections with an incomplete greeting. Beyond this number, the stage closes the oldest such
/// connection. A sender of the group sends its greeting at once, so the oldest connection probably comes from a peer
/// outside the group.
const MAX_PENDING_CONNECTIONS: usize = 64;

/// The links that end at this stage.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    /// The open receivers.
    pub(super) receivers: BTreeMap<LinkId, Receiver>,
    /// The links over NCCL communicators that are not connected yet.
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

/// The carrier of a link's payloads.
enum Carrier {
    Incoming(Incoming),
    Communicator(UniqueId),
}

/// Waits until all links that end at this stage are connected. A link uses NCCL if both this stage and the sender can
/// use NCCL.
pub(super) fn accept(
    config: &LinksConfig,
    gpu: Option<&LinksGpu>,
    expected: usize,
    deadline: Instant,
) -> Result<Accepted, LinkError> {
    let has_nccl = gpu.is_some_and(|gpu| gpu.endpoint.is_some());
    let context = gpu.map(|gpu| gpu.context);
    let mut accepted = Accepted::default();
    let failed = |e: io::Error| LinkError::from_io(format_args!("stage {} could not accept a link", config.rank), &e);
    // a shortage of resources in this process is fatal, and any other error comes from the peer
    let unless_own = |error: io::Error| if local_shortage(&error).is_some() { Err(failed(error)) } else { Ok(()) };
    config.listener.set_nonblocking(true).map_err(failed)?;
    config.interrupt.add(&config.listener).map_err(failed)?;
    let mut pending: Vec<PendingConnection> = Vec::new();
    while accepted.len() < expected {
        if config.interrupt.is_triggered() {
            return Err(LinkError::group_ended(config.rank));
        }
        if Instant::now() >= deadline {
            return Err(late(config, &accepted));
        }
        wait_readable(&config.listener, &pending, deadline).map_err(failed)?;
        match config.listener.accept().and_then(|(stream, _)| PendingConnection::new(stream)) {
            Ok(connection) => {
                if pending.len() == MAX_PENDING_CONNECTIONS {
                    pending.remove(0);
                    (config.on_rejected)();
                }
                pending.push(connection);
            }
            Err(error) => unless_own(error)?,
        }
        for mut connection in std::mem::take(&mut pending) {
            match connection.read_greeting(config.security()) {
                Ok(None) if Instant::now() < connection.deadline => pending.push(connection),
                Ok(Some(greeting)) => match admit(config, has_nccl, &greeting, &accepted) {
                    // an answer that fails because the sender has disconnected is ignored: the control plane reports
                    // the loss of that stage
                    Ok(carrier) => {
                        start(config, context, greeting.link, connection, carrier, &mut accepted).or_else(unless_own)?
                    }
                    Err(why) => {
                        (config.on_rejected)();
                        tracing::warn!("closed a connection that does not belong to a link of this group: {why}");
                    }
                },
                Ok(None) => (config.on_rejected)(),
                Err(error) => {
                    unless_own(error)?;
                    (config.on_rejected)();
                }
            }
        }
    }
    Ok(accepted)
}

/// Checks a greeting, and opens the carrier of its link's payloads.
///
/// # Errors
/// Returns the reason as text if the peer is not the sender of a link that this stage still waits for.
fn admit(config: &LinksConfig, has_nccl: bool, greeting: &Greeting, accepted: &Accepted) -> Result<Carrier, String> {
    let Greeting { link, ring, communicator } = greeting;
    if !config.link_ids.contains(link) || link.to != config.rank {
        return Err(format!("its greeting names {link}, which does not end at this stage"));
    }
    if accepted.has(*link) {
        return Err(format!("its greeting names {link}, which is already connected"));
    }
    let id = communicator.as_ref().map(|bytes| UniqueId::from_bytes(bytes).ok_or("its NCCL identifier is invalid"));
    let announced = match (ring, id.transpose()?, config.transport) {
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
            return Err(format!("its greeting announces {brings} for {link}, but the transport is {transport:?}"));
        }
    };
    let bytes = ring_bytes(config, *link);
    if announced.bytes != bytes {
        return Err(format!(
            "its greeting announces {} bytes of shared memory for {link}, expected {bytes}",
            announced.bytes
        ));
    }
    match RingReader::open(&RingIdentity { group: &config.group, link: *link, nonce: &announced.nonce, bytes }) {
        RingLookup::Ring(ring) => Ok(Carrier::Incoming(Incoming::Ring(ring))),
        RingLookup::None => Ok(Carrier::Incoming(Incoming::Stream)),
        RingLookup::Other(why) => Err(format!("its shared memory for {link} is not the sender's: {why}")),
    }
}

/// Answers the greeting. A link over a stream or a ring then starts to receive. A communicator is added to `accepted`,
/// and is connected later.
///
/// # Errors
/// If the sender has disconnected, or this process can't open more files.
fn start(
    config: &LinksConfig,
    gpu: Option<CudaContext>,
    link: LinkId,
    connection: PendingConnection,
    carrier: Carrier,
    accepted: &mut Accepted,
) -> io::Result<()> {
    let answer = match carrier {
        Carrier::Incoming(Incoming::Stream) => INLINE,
        Carrier::Incoming(Incoming::Ring(_)) => SHARED,
        Carrier::Communicator(_) => COMMUNICATOR,
    };
    let (socket, stream) = connection.answer(answer, config.security())?;
    config.interrupt.add(&socket)?;
    match carrier {
        Carrier::Incoming(incoming) => {
            let receiver = Receiver::start(link, config.device, socket, stream, incoming, gpu);
            accepted.receivers.insert(link, receiver);
        }
        Carrier::Communicator(id) => accepted.communicators.push(NewCommunicator { link, id, socket }),
    }
    Ok(())
}

fn late(config: &LinksConfig, accepted: &Accepted) -> LinkError {
    let missing = config.link_ids.iter().filter(|e| e.to == config.rank && !accepted.has(**e));
    let names: Vec<String> = missing.map(ToString::to_string).collect();
    LinkError::Broken(format!("stage {} waited {:?} for {}", config.rank, config.timeout, names.join("; ")))
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
mod tests;
