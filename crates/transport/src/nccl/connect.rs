//! Connects the communicators of a stage, after the handshakes of its links have exchanged the unique ids.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stagecoach_kernels::device::CudaContext;
use tch::{Device, Kind, Tensor};

use super::super::{Interrupt, LinkError, LinkId};
use super::channel::{Channel, ChannelConfig, Message};
use super::communicator::{Communicator, CommunicatorEnd, UniqueId};
use super::library::Nccl;
use super::remedy::remedy;
use super::turn::TransferSlot;

/// The interval between polls of communicators that connect.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The resources with which a stage uses NCCL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    nccl: &'static Nccl,
    context: CudaContext,
    device: Device,
}

impl Endpoint {
    /// Opens NCCL and the driver for a stage whose tensors are on `device`.
    ///
    /// # Errors
    /// Returns a sentence that names the missing resource.
    pub(crate) fn open(device: Device) -> Result<Endpoint, String> {
        let index = match device {
            Device::Cuda(index) => index,
            _ => 0,
        };
        let context = CudaContext::of_device(index).map_err(|error| error.to_string())?;
        let nccl = Nccl::get()?;
        let probe = Tensor::zeros([64], (Kind::Float, device));
        match context.is_device_memory(probe.data_ptr().cast::<c_void>()) {
            true => Ok(Endpoint { nccl, context, device }),
            false => Err("this stage computes on the CPU, and NCCL transfers only GPU memory".into()),
        }
    }

    /// Returns the context of the GPU.
    pub(crate) fn context(&self) -> CudaContext {
        self.context
    }

    /// Generates the identifier of a new communicator.
    pub(crate) fn new_id(&self) -> Result<UniqueId, String> {
        UniqueId::generate(self.nccl)
    }
}

/// A link over a communicator that is not connected yet.
#[derive(Debug)]
pub(crate) struct NewCommunicator {
    pub(crate) link: LinkId,
    pub(crate) id: UniqueId,
    pub(crate) socket: TcpStream,
}

/// The links from one rank to another, which share a communicator.
struct Pair {
    id: UniqueId,
    links: Vec<LinkId>,
    sockets: Vec<TcpStream>,
}

/// Connects the communicators of all links of stage `rank`. Returns the channel of each link.
pub(crate) fn connect(
    endpoint: Endpoint,
    rank: usize,
    links: Vec<NewCommunicator>,
    interrupt: &Interrupt,
    deadline: Instant,
) -> Result<BTreeMap<LinkId, Arc<Channel>>, LinkError> {
    let mut pairs: BTreeMap<(usize, usize), Pair> = BTreeMap::new();
    for NewCommunicator { link, id, socket } in links {
        let new = || Pair { id: id.clone(), links: Vec::new(), sockets: Vec::new() };
        let pair = pairs.entry((link.from, link.to)).or_insert_with(new);
        if pair.id != id {
            return Err(LinkError::Mismatch(format!(
                "{link} has a different NCCL communicator from the other links between the same two stages: all \
                 stages must run the same version of Stagecoach"
            )));
        }
        pair.links.push(link);
        pair.sockets.push(socket);
    }
    let broken = |peer: usize, why: &str, is_invalid_usage: bool, sockets: &[TcpStream]| {
        let address = sockets.first().and_then(|socket| socket.peer_addr().ok()).map(|address| address.ip());
        let at = address.map_or_else(String::new, |address| format!(" at {address}"));
        let remedy = remedy(why, is_invalid_usage, address);
        let message = format!("NCCL does not connect stage {rank} with stage {peer}{at}: {why}; {remedy}");
        // invalid usage would recur if the stages connected again
        if is_invalid_usage { LinkError::Unavailable(message) } else { LinkError::Broken(message) }
    };
    // all communicators start before the first wait, so that no stage waits for a communicator that its peer has not
    // started
    let mut begun = Vec::new();
    let (slot, first_failure) = (Arc::new(TransferSlot::default()), Arc::default());
    for ((from, to), Pair { id, links, sockets }) in pairs {
        let (end, peer) = if from == rank { (CommunicatorEnd::Sender, to) } else { (CommunicatorEnd::Receiver, from) };
        let communicator =
            Communicator::begin(endpoint.nccl, &id, end).map_err(|why| broken(peer, &why, false, &sockets))?;
        let config = ChannelConfig {
            context: endpoint.context,
            communicator,
            end,
            rank,
            peer,
            sockets,
            slot: Arc::clone(&slot),
            first_failure: Arc::clone(&first_failure),
            interrupt: interrupt.clone(),
        };
        begun.push((links, config));
    }
    for (_, config) in &begun {
        let broken = |why: &str| broken(config.peer, why, config.communicator.has_invalid_usage(), &config.sockets);
        while !config.communicator.is_ready().map_err(|why| broken(&why))? {
            if interrupt.is_triggered() {
                return Err(LinkError::group_ended(rank));
            }
            if Instant::now() >= deadline {
                return Err(broken("no connection before the deadline"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    let mut channels = BTreeMap::new();
    for (links, config) in begun {
        let channel = Arc::new(Channel::start(config)?);
        // the first message makes NCCL connect its transports before training waits for a message
        let tensor = Tensor::zeros([1], (Kind::Float, endpoint.device));
        channel.enqueue(Message { link: links[0], tag: 0, tensor, arrivals: None })?;
        channels.extend(links.into_iter().map(|link| (link, Arc::clone(&channel))));
    }
    Ok(channels)
}
