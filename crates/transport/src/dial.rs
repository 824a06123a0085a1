//! Connects a link to its receiver, and agrees with the receiver on the carrier.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use stagecoach_api::job::Transport;
use stagecoach_group::{RETRY_DELAY, local_shortage};

use super::accept::{COMMUNICATOR, SHARED};
use super::carrier::Outgoing;
use super::config::{LinksConfig, LinksGpu, ring_bytes};
use super::greeting::{AnnouncedRing, Greeting};
use super::links::Links;
use super::nccl::{NewCommunicator, UniqueId};
use super::shm::{NamedRing, RingIdentity};
use super::{Interrupt, LinkError, LinkId, Sender};

/// The time limit to reach a stage that has joined the group, and therefore listens. The limit is longer than the
/// default heartbeat timeout, so that the heartbeats detect a lost node first.
const REACH_TIMEOUT: Duration = Duration::from_secs(20);

/// Connects the links that leave this stage.
pub(super) struct Dialer<'a> {
    pub(super) config: &'a LinksConfig<'a>,
    pub(super) deadline: Instant,
    pub(super) gpu: Option<&'a LinksGpu>,
    /// The NCCL identifiers of this stage's communicators, by the receiving rank.
    pub(super) ids: BTreeMap<usize, UniqueId>,
    /// The open links.
    pub(super) links: Links,
}

impl Dialer<'_> {
    /// Connects a link. If the link uses NCCL, returns the link's communicator, which is not connected yet.
    pub(super) fn dial(&mut self, link: LinkId) -> Result<Option<NewCommunicator>, LinkError> {
        let Dialer { config, deadline, .. } = *self;
        let address = &config.addresses[link.to];
        let with_peer = |what: &str| format!("{what} stage {} at {address} for {link}", link.to);
        let socket = connect(config, address, deadline).map_err(|error| {
            let what = with_peer("could not reach");
            if local_shortage(&error).is_some() || config.interrupt.is_triggered() {
                return LinkError::from_io(what, &error);
            }
            LinkError::Unreachable(format!(
                "{what}: {error}; stage {} has joined the group, so a route, a firewall or a NetworkPolicy blocks the \
                 connection",
                link.to
            ))
        })?;
        let id = self
            .id(link)
            .map_err(|why| LinkError::Broken(format!("{}: {why}", with_peer("no NCCL communicator for"))))?;
        let bytes = ring_bytes(config, link);
        let create = || -> io::Result<(NamedRing, AnnouncedRing)> {
            // the random nonce gives each ring a unique name, even if containers share /dev/shm
            let nonce = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim_end().to_owned();
            let ring = NamedRing::create(&RingIdentity { group: &config.group, link, nonce: &nonce, bytes })?;
            Ok((ring, AnnouncedRing { nonce, bytes }))
        };
        let wants_ring = config.transport != Transport::Tcp && id.is_none();
        let created = match wants_ring.then(create) {
            None => None,
            Some(Ok(created)) => Some(created),
            Some(Err(e)) if config.transport == Transport::Shm => {
                return Err(LinkError::Unavailable(format!(
                    "{}, which takes {bytes} bytes in /dev/shm: {e}; enlarge it, or set spec.pipeline.transport to \
                     Auto or Tcp",
                    with_peer("could not make shared memory for")
                )));
            }
            Some(Err(e)) => {
                self.links.without_ring.insert(link, e.to_string());
                None
            }
        };
        let (ring, announced) = created.unzip();
        let communicator = id.as_ref().map(|id| id.as_bytes().to_vec());
        let greeting = Greeting { link, ring: announced, communicator };
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let answered = socket.set_read_timeout(Some(left)).and_then(|()| greeting.send(&socket, config.security()));
        let answered = answered.and_then(|answered| socket.set_read_timeout(None).map(|()| answered));
        let (answer, stream) = answered.map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => {
                LinkError::Broken(format!("{}: waited {:?}", with_peer("no answer from"), config.timeout))
            }
            _ => LinkError::from_io(with_peer("no answer from"), &error),
        })?;
        let carrier = match (answer, ring.map(NamedRing::into_writer), id) {
            (COMMUNICATOR, _, Some(id)) => return Ok(Some(NewCommunicator { link, id, socket })),
            (SHARED, Some(writer), _) => Outgoing::Ring(writer),
            (..) if config.transport == Transport::Shm => {
                return Err(LinkError::Unavailable(format!(
                    "{}: set spec.pipeline.transport to Auto or Tcp for stages on different hosts",
                    with_peer("no shared memory with")
                )));
            }
            (..) => Outgoing::Stream,
        };
        self.links.senders.insert(link, Sender::start(link, socket, stream, carrier, self.gpu.map(|gpu| gpu.context)));
        Ok(None)
    }

    /// Returns the identifier of the link's communicator, if the link uses NCCL.
    fn id(&mut self, link: LinkId) -> Result<Option<UniqueId>, String> {
        let endpoint = self.gpu.and_then(|gpu| gpu.endpoint).filter(|_| link.payload.is_on_device());
        let Some(endpoint) = endpoint else { return Ok(None) };
        if let Some(id) = self.ids.get(&link.to) {
            return Ok(Some(id.clone()));
        }
        let id = endpoint.new_id()?;
        self.ids.insert(link.to, id.clone());
        Ok(Some(id))
    }
}

/// Connects to a stage that listens already.
///
/// # Errors
/// If the stage is not reached within `REACH_TIMEOUT`, or this process can't open more files.
fn connect(config: &LinksConfig, address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut is_reported = false;
    let attempt = || {
        stagecoach_group::connect(address).inspect_err(|error| {
            if !std::mem::replace(&mut is_reported, true) {
                tracing::warn!("could not reach {address} yet, trying again: {error}");
            }
        })
    };
    let stream = retry(deadline.min(Instant::now() + REACH_TIMEOUT), &config.interrupt, attempt)?;
    config.interrupt.add(&stream)?;
    stream.set_nodelay(true).map(|()| stream)
}

/// Calls `attempt` until it succeeds, the deadline is near, or the interrupt is triggered. A network error leads to
/// another attempt, because a stage may be unreachable until the network has a route or a firewall rule for its pod. A
/// shortage of file descriptors or memory in this process ends the attempts at once, because the shortage would
/// persist.
fn retry<T>(deadline: Instant, interrupt: &Interrupt, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match attempt() {
            Err(error)
                if Instant::now() + RETRY_DELAY >= deadline
                    || interrupt.is_triggered()
                    || local_shortage(&error).is_some() =>
            {
                return Err(error);
            }
            Err(_) => std::thread::sleep(RETRY_DELAY),
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_not_reached_is_tried_until_the_deadline() {
        const UNREACHABLE: [i32; 5] =
            [libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ECONNREFUSED, libc::ETIMEDOUT, libc::EAGAIN];
        let far = Instant::now() + Duration::from_secs(60);
        let mut errors = UNREACHABLE.into_iter();
        let connected = retry(far, &Interrupt::default(), || {
            errors.next().map_or(Ok("connected"), |errno| Err(io::Error::from_raw_os_error(errno)))
        });
        assert_eq!((connected.unwrap(), errors.next()), ("connected", None));

        // once the deadline has passed or the group has failed, the error of the last attempt is returned
        let interrupted = Interrupt::default();
        interrupted.trigger();
        for (deadline, interrupt) in [(Instant::now(), Interrupt::default()), (far, interrupted)] {
            let mut attempts = 0;
            let refused = retry(deadline, &interrupt, || {
                attempts += 1;
                Err::<(), _>(io::Error::from_raw_os_error(libc::ECONNREFUSED))
            });
            assert_eq!((refused.unwrap_err().kind(), attempts), (ErrorKind::ConnectionRefused, 1));
        }
        // a shortage in this process ends the attempts at once
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS] {
            let exhausted = || Err::<(), _>(io::Error::from_raw_os_error(errno));
            assert_eq!(retry(far, &Interrupt::default(), exhausted).unwrap_err().raw_os_error(), Some(errno));
        }
    }
}
