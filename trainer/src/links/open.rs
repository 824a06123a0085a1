//! Opening the links of a group: every stage listens, the sender of each link connects to its receiver and identifies the
//! link. Both ends agree on the carrier: shared memory if the receiver can map the sender's ring, else the stream.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stagecoach_api::job::Transport;
use stagecoach_group::RETRY_DELAY;

use super::accept::{SHARED, accept};
use super::carrier::Outgoing;
use super::config::{LinksConfig, ring_bytes};
use super::greeting::{AnnouncedRing, Greeting};
use super::shm::{NamedRing, RingIdentity, remove_abandoned};
use super::{Interrupt, LinkError, LinkId, Receiver, Sender};

/// This stage's open links, by their ids.
#[derive(Debug, Default)]
pub struct Links {
    /// Links that leave this stage.
    pub senders: BTreeMap<LinkId, Sender>,
    /// Links that end at this stage.
    pub receivers: BTreeMap<LinkId, Receiver>,
    /// Links that leave this stage as a stream because there was no shared memory to be had, and why.
    pub without_ring: BTreeMap<LinkId, String>,
}

impl Links {
    /// Payload bytes that have left this stage so far.
    pub fn bytes_sent(&self) -> u64 {
        self.senders.values().map(Sender::bytes).sum()
    }

    /// Closes all links: whoever waits at their other ends is told by an error. What was handed over is sent first, by a
    /// thread, as its receiver may not want it before it learns of the end itself.
    pub(crate) fn close(&mut self) {
        let (receivers, senders) = (std::mem::take(&mut self.receivers), std::mem::take(&mut self.senders));
        std::thread::spawn(move || {
            drop(receivers);
            drop(senders);
        });
    }
}

/// Rings made by this process so far: no two have one name.
static RINGS: AtomicU64 = AtomicU64::new(0);

/// Opens all of this stage's links; returns when every link is connected at both ends.
pub fn open_links(config: LinksConfig) -> Result<Links, LinkError> {
    let deadline = Instant::now() + config.timeout;
    let expected = config.link_ids.iter().filter(|e| e.to == config.rank).count();
    if matches!(config.transport, Transport::Shm | Transport::Auto)
        && let Err(error) = remove_abandoned()
    {
        tracing::debug!("shared memory of killed stages could not be looked for: {error}");
    }
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| accept(&config, expected, deadline));
        let mut without_ring = BTreeMap::new();
        let outgoing = config.link_ids.iter().filter(|e| e.from == config.rank);
        let mut open = |&link| Ok((link, dial(&config, link, deadline, &mut without_ring)?));
        let senders = outgoing.map(&mut open).collect::<Result<_, LinkError>>();
        let receivers =
            accepting.join().unwrap_or_else(|_| Err(LinkError::Broken("the accepting thread failed".into())));
        Ok(Links { senders: senders?, receivers: receivers?, without_ring })
    })
}

fn dial(
    config: &LinksConfig,
    link: LinkId,
    deadline: Instant,
    without_ring: &mut BTreeMap<LinkId, String>,
) -> Result<Sender, LinkError> {
    let address = &config.addresses[link.to];
    let failed = |what: &str, e: &dyn std::fmt::Display| {
        LinkError::Broken(format!("{what} stage {} at {address} for {link}: {e}", link.to))
    };
    let socket = connect(config, address, deadline).map_err(|e| failed("could not reach", &e))?;
    // containers may share this memory and not their process ids
    let unique = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    let nonce = format!("{}-{}-{}", std::process::id(), RINGS.fetch_add(1, Ordering::Relaxed), unique.trim());
    let bytes = ring_bytes(config, link);
    let ring = match config.transport {
        Transport::Tcp | Transport::Nccl => None,
        Transport::Shm | Transport::Auto => {
            match NamedRing::create(&RingIdentity { group: &config.group, link, nonce: &nonce, bytes }) {
                Ok(ring) => Some(ring),
                Err(e) if config.transport == Transport::Shm => {
                    return Err(failed("could not make shared memory for", &e));
                }
                Err(e) => {
                    without_ring.insert(link, e.to_string());
                    None
                }
            }
        }
    };
    let announced = ring.is_some().then_some(AnnouncedRing { nonce, bytes });
    let greeting = Greeting { link, ring: announced };
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let answered = socket.set_read_timeout(Some(left)).and_then(|()| greeting.exchange(&socket, config.terms()));
    let answered = answered.and_then(|answered| socket.set_read_timeout(None).map(|()| answered));
    let (answer, stream) = answered.map_err(|e| match e.kind() {
        ErrorKind::WouldBlock => failed("no answer from", &format!("waited {:?}", config.timeout)),
        _ => failed("no answer from", &e),
    })?;
    let writer = ring.map(NamedRing::into_writer);
    let carrier = match (answer, writer) {
        (SHARED, Some(writer)) => Outgoing::Ring(writer),
        (_, _) if config.transport == Transport::Shm => {
            return Err(failed("no shared memory with", &"use transport Auto or Tcp for stages on different hosts"));
        }
        _ => Outgoing::Stream,
    };
    Ok(Sender::start(link, socket, stream, carrier))
}

/// Connects to a stage, which listens already.
fn connect(config: &LinksConfig, address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let stream = retry(deadline, &config.interrupt, || stagecoach_group::connect(address))?;
    config.interrupt.add(&stream)?;
    stream.set_nodelay(true).map(|()| stream)
}

/// Calls `attempt` until it succeeds or the deadline is near, whatever the error is: a route that is about to come, or a node
/// whose firewall does not know the pod yet, shows as an unreachable host, a refused connection or a timeout.
fn retry<T>(deadline: Instant, interrupt: &Interrupt, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match attempt() {
            Err(error) if Instant::now() + RETRY_DELAY >= deadline || interrupt.is_triggered() => return Err(error),
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

        // the deadline has passed, or the group has failed: the last error counts
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
    }
}
