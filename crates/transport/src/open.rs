//! Opens the links of a group. Every stage listens; the sender of each link connects to its receiver and identifies the
//! link. Both ends agree on the carrier: NCCL if both have GPUs, shared memory if the receiver can map the sender's
//! ring, otherwise the stream.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use stagecoach_api::job::Transport;
use stagecoach_group::{RETRY_DELAY, local_shortage};
use stagecoach_kernels::device::{CudaContext, CudaError};

use super::accept::{Accepted, COMMUNICATOR, SHARED, accept};
use super::carrier::Outgoing;
use super::config::{LinksConfig, LinksGpu, ring_bytes};
use super::greeting::{AnnouncedRing, Greeting};
use super::nccl::{self, NewCommunicator, UniqueId};
use super::shm::{NamedRing, RingIdentity, remove_abandoned};
use super::{Interrupt, LinkError, LinkId, Receiver, Sender};

/// The time limit to reach a stage that has joined the group, and therefore listens. The limit is longer than the
/// default heartbeat timeout, which detects a lost node.
const REACH_TIMEOUT: Duration = Duration::from_secs(20);

/// This stage's open links, by their ids.
#[derive(Debug, Default)]
pub struct Links {
    /// Links that leave this stage.
    pub senders: BTreeMap<LinkId, Sender>,
    /// Links that end at this stage.
    pub receivers: BTreeMap<LinkId, Receiver>,
    /// Links that leave this stage as a stream because shared memory was not available, and the reason.
    pub without_ring: BTreeMap<LinkId, String>,
    /// The reason that a stage with a GPU has no links over NCCL, with the transport Auto.
    pub without_nccl: Option<String>,
    /// The GPU in whose memory the stage's tensors are.
    pub gpu: Option<CudaContext>,
}

impl Links {
    /// The sending end of a link that leaves this stage.
    ///
    /// # Errors
    /// If there is no such link.
    pub fn sender(&self, link: LinkId) -> Result<&Sender, LinkError> {
        self.senders.get(&link).ok_or_else(|| no_link(link))
    }

    /// The receiving end of a link that ends at this stage.
    ///
    /// # Errors
    /// If there is no such link.
    pub fn receiver(&mut self, link: LinkId) -> Result<&mut Receiver, LinkError> {
        self.receivers.get_mut(&link).ok_or_else(|| no_link(link))
    }

    /// Payload bytes that have left this stage so far.
    pub fn bytes_sent(&self) -> u64 {
        self.senders.values().map(Sender::bytes).sum()
    }

    /// Fails if any send or receive so far failed. For transfers between GPUs, a failure is known only once the device
    /// is done. Call this when the host has waited for the device, before a result that depends on received tensors
    /// counts.
    pub fn check(&self) -> Result<(), LinkError> {
        self.check_device()?;
        self.failures().next().map_or(Ok(()), Err)
    }

    /// Fails if this stage's GPU failed: in that case its links break without a fault of another stage.
    pub fn check_device(&self) -> Result<(), CudaError> {
        let device_error = |failure| if let LinkError::Device(error) = failure { Some(error) } else { None };
        self.failures().find_map(device_error).map_or(Ok(()), Err)
    }

    fn failures(&self) -> impl Iterator<Item = LinkError> {
        let sender_failures = self.senders.values().filter_map(Sender::failure);
        sender_failures.chain(self.receivers.values().filter_map(Receiver::failure))
    }

    /// Closes all links, so that waiting at their other ends fails. A thread first sends the tensors that were handed
    /// over: their receiver may not post them before it observes the end itself. Posted tensors are not filled any
    /// more, so that the next group may use their memory.
    pub fn close(&mut self) {
        let (streams, receivers) =
            std::mem::take(&mut self.receivers).into_iter().partition(|(_, receiver)| receiver.is_stream());
        let mut closed = std::mem::take(self);
        closed.receivers = receivers;
        // this comes first: receives over NCCL may hold up a GPU, and with it the copies of the streams
        std::thread::spawn(move || drop(closed));
        drop::<BTreeMap<_, _>>(streams);
    }
}

fn no_link(link: LinkId) -> LinkError {
    LinkError::Broken(format!("no link for {link}"))
}

/// Drops all ends concurrently, because NCCL frees a communicator only when both ends free it.
impl Drop for Links {
    fn drop(&mut self) {
        let (receivers, senders) = (std::mem::take(&mut self.receivers), std::mem::take(&mut self.senders));
        std::thread::scope(|scope| {
            senders.into_values().for_each(|sender| drop(scope.spawn(|| drop(sender))));
            receivers.into_values().for_each(|receiver| drop(scope.spawn(|| drop(receiver))));
        });
    }
}

/// The number of rings that this process has created so far, so that no two rings have the same name.
static RINGS: AtomicU64 = AtomicU64::new(0);

/// Opens all of this stage's links. Returns when every link is connected at both ends.
pub fn open_links(config: LinksConfig) -> Result<Links, LinkError> {
    let deadline = Instant::now() + config.timeout;
    let expected = config.link_ids.iter().filter(|e| e.to == config.rank).count();
    if config.transport != Transport::Tcp
        && let Err(error) = remove_abandoned()
    {
        tracing::debug!("shared memory of killed stages could not be looked for: {error}");
    }
    let gpu = config.gpu()?;
    let mut dialer =
        Dialer { config: &config, deadline, gpu: gpu.as_ref(), ids: BTreeMap::new(), links: Links::default() };
    // the first failure ends the other side's wait, whose own error would only report the interrupt
    let first_failure = OnceLock::new();
    let fail = |error: &LinkError| {
        let _ = first_failure.set(error.clone());
        config.interrupt.trigger();
    };
    let (dialed, accepted) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| accept(&config, gpu.as_ref(), expected, deadline).inspect_err(fail));
        let mut outgoing = config.link_ids.iter().filter(|e| e.from == config.rank);
        let dialed: Result<Vec<NewCommunicator>, LinkError> = outgoing.try_fold(Vec::new(), |mut dialed, &link| {
            dialed.extend(dialer.dial(link)?);
            Ok(dialed)
        });
        (dialed.inspect_err(fail), join(accepting))
    });
    if let Some(error) = first_failure.into_inner() {
        return Err(error);
    }
    let Accepted { receivers, communicators } = accepted?;
    let mut links = dialer.links;
    links.receivers = receivers;
    let communicators: Vec<NewCommunicator> = dialed?.into_iter().chain(communicators).collect();
    let Some(LinksGpu { context, endpoint, without_nccl }) = gpu else { return Ok(links) };
    (links.gpu, links.without_nccl) = (Some(context), without_nccl);
    if let Some(endpoint) = endpoint {
        // this limit is lower than the start-up timeout, whose error could not name the missing link
        let deadline = deadline.min(Instant::now() + config.timeout / 2);
        let channels = nccl::connect(endpoint, config.rank, communicators, &config.interrupt, deadline)?;
        for (link, channel) in channels {
            if link.from == config.rank {
                links.senders.insert(link, Sender::over(link, config.device, channel));
            } else {
                links.receivers.insert(link, Receiver::over(link, config.device, channel));
            }
        }
    }
    Ok(links)
}

fn join<T>(thread: ScopedJoinHandle<Result<T, LinkError>>) -> Result<T, LinkError> {
    thread.join().unwrap_or_else(|_| Err(LinkError::Broken("the accepting thread failed".into())))
}

/// Connects the links that leave this stage.
struct Dialer<'a> {
    config: &'a LinksConfig<'a>,
    deadline: Instant,
    gpu: Option<&'a LinksGpu>,
    /// The identifiers of this stage's communicators, by the receiving rank.
    ids: BTreeMap<usize, UniqueId>,
    /// The open links.
    links: Links,
}

impl Dialer<'_> {
    /// Connects a link. Returns the link if it goes over a communicator, which is not connected yet.
    fn dial(&mut self, link: LinkId) -> Result<Option<NewCommunicator>, LinkError> {
        let Dialer { config, deadline, .. } = *self;
        let address = &config.addresses[link.to];
        let with_peer = |what: &str| format!("{what} stage {} at {address} for {link}", link.to);
        let socket = connect(config, address, deadline).map_err(|error| {
            let what = with_peer("could not reach");
            if local_shortage(&error).is_some() || config.interrupt.is_triggered() {
                return LinkError::from_io(what, &error);
            }
            LinkError::Unreachable(format!(
                "{what}: {error}; it has joined the group, so a route, a firewall or a NetworkPolicy is in the way"
            ))
        })?;
        let id = self
            .id(link)
            .map_err(|why| LinkError::Broken(format!("{}: {why}", with_peer("no NCCL communicator for"))))?;
        // containers may share this memory, but not their process ids
        let unique = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
        let nonce = format!("{}-{}-{}", std::process::id(), RINGS.fetch_add(1, Ordering::Relaxed), unique.trim());
        let bytes = ring_bytes(config, link);
        let wants_ring = config.transport != Transport::Tcp && id.is_none();
        let ring = match wants_ring
            .then(|| NamedRing::create(&RingIdentity { group: &config.group, link, nonce: &nonce, bytes }))
        {
            None => None,
            Some(Ok(ring)) => Some(ring),
            Some(Err(e)) if config.transport == Transport::Shm => {
                return Err(LinkError::Unavailable(format!(
                    "{}, which takes {bytes} bytes in /dev/shm: {e}; enlarge it, or set spec.pipeline.transport to Auto or Tcp",
                    with_peer("could not make shared memory for")
                )));
            }
            Some(Err(e)) => {
                self.links.without_ring.insert(link, e.to_string());
                None
            }
        };
        let announced = ring.is_some().then_some(AnnouncedRing { nonce, bytes });
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

    /// The identifier of the link's communicator, if the link goes over one.
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
/// If the stage is not reached within `REACH_TIMEOUT`, or this process may open no more files.
fn connect(config: &LinksConfig, address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut is_reported = false;
    let attempt = || {
        stagecoach_group::connect(address).inspect_err(|error| {
            if !std::mem::replace(&mut is_reported, true) {
                tracing::warn!("{address} is not reached yet: {error}");
            }
        })
    };
    let stream = retry(deadline.min(Instant::now() + REACH_TIMEOUT), &config.interrupt, attempt)?;
    config.interrupt.add(&stream)?;
    stream.set_nodelay(true).map(|()| stream)
}

/// Calls `attempt` until it succeeds or the deadline is near, for any network error. A route that is not installed yet,
/// or a node whose firewall does not know the pod yet, shows as an unreachable host, a refused connection or a timeout.
/// A shortage of this process ends the attempts at once, since it does not pass.
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
    use std::net::TcpListener;

    use stagecoach_tests::nccl::is_here_with;
    use tch::{Device, Kind, Tensor};

    use super::super::stream::LinkStream;
    use super::*;

    /// A sender whose receiver has disconnected.
    fn sender(link: LinkId, gpu: Option<CudaContext>) -> Sender {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        let stream = LinkStream::Clear(socket.try_clone().unwrap());
        Sender::start(link, socket, stream, Outgoing::Stream, gpu)
    }

    /// Uses the stand-in for the driver (`tests/nccl`), which treats all memory as the GPU's. The peers of a stage
    /// whose GPU has failed break their links.
    #[test]
    fn a_failure_of_the_own_gpu_is_reported_before_broken_links() {
        let folder = tempfile::tempdir().unwrap();
        let fault = format!("0:pin:1:{}", folder.path().join("struck").display());
        let environment = [("RANK", "0"), ("NCCL_STAND_IN_FAULT", fault.as_str())];
        let name = "open::tests::a_failure_of_the_own_gpu_is_reported_before_broken_links";
        if !is_here_with(name, &environment) {
            return;
        }
        let mut links = Links::default();
        let gpu = CudaContext::of_device(0).unwrap();
        for (link, gpu) in [(LinkId::tied(0, 1), None), (LinkId::tied(0, 2), Some(gpu))] {
            let sender = sender(link, gpu);
            let tensor = || Tensor::zeros([1 << 16], (Kind::Float, Device::Cpu));
            (0..).find_map(|message| sender.send(message, tensor()).err()).unwrap();
            links.senders.insert(link, sender);
            let is_device = matches!(links.check(), Err(LinkError::Device(_)));
            assert_eq!((is_device, links.check_device().is_err()), (gpu.is_some(), gpu.is_some()));
        }
        let failure = links.check().unwrap_err().to_string();
        assert!(failure.starts_with("cuMemHostRegister: "), "{failure}");
    }

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
        // errors that have nothing to do with the network
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS] {
            let exhausted = || Err::<(), _>(io::Error::from_raw_os_error(errno));
            assert_eq!(retry(far, &Interrupt::default(), exhausted).unwrap_err().raw_os_error(), Some(errno));
        }
    }
}
