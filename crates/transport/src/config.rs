//! Configuration of the links of one stage.

use std::net::TcpListener;
use std::time::Duration;

use stagecoach_api::job::{Encryption, Transport};
use stagecoach_group::GroupSecret;
use stagecoach_kernels::device::CudaContext;
use tch::Device;

use super::greeting::LinkSecurity;
use super::link_id::STATE_PART_ELEMENTS;
use super::nccl::Endpoint;
use super::{Interrupt, LinkError, LinkId, LinkPayload};

/// Configuration from which a stage opens its links.
pub struct LinksConfig<'a> {
    /// The rank of this stage.
    pub rank: usize,
    /// The identifier of the group (the connected processes of all stages). The names of the group's files in /dev/shm
    /// are derived from it.
    pub group: String,
    /// The group's secret. The stage refuses peers that do not have the secret.
    pub secret: &'a GroupSecret,
    /// The function that the stage calls for each connection that it closes because the peer is not the sender of a
    /// link that this stage still waits for.
    pub on_rejected: &'a (dyn Fn() + Sync),
    /// The listener at `addresses[rank]`.
    pub listener: TcpListener,
    /// The address at which each rank listens, by rank.
    pub addresses: &'a [String],
    /// The links of all stages.
    pub link_ids: &'a [LinkId],
    /// The setting `spec.pipeline.transport`, which limits the carriers of payloads.
    pub transport: Transport,
    /// The device on which the stage computes.
    pub device: Device,
    /// Whether the TCP streams of the links are encrypted.
    pub encryption: Encryption,
    /// The size of the largest activation or gradient between two chunks (parts of the model), in bytes.
    pub boundary_bytes: usize,
    /// The size of a tied weight's gradient, in bytes.
    pub tied_bytes: usize,
    /// The interrupt that ends all waiting once the group has failed.
    pub interrupt: Interrupt,
    /// The time limit for opening all links.
    pub timeout: Duration,
}

impl LinksConfig<'_> {
    pub(super) fn security(&self) -> LinkSecurity<'_> {
        LinkSecurity { secret: self.secret, encryption: self.encryption }
    }

    /// Returns the GPU in whose memory the stage's tensors are; `None` if the tensors are in host memory.
    ///
    /// # Errors
    /// If the driver does not find the GPU, or if the transport is Nccl and the stage can't use NCCL.
    pub(super) fn gpu(&self) -> Result<Option<LinksGpu>, LinkError> {
        let (endpoint, without_nccl) = self.endpoint()?;
        let context = match (self.device, &endpoint) {
            (_, Some(endpoint)) => endpoint.context(),
            (Device::Cuda(index), None) => {
                CudaContext::of_device(index).map_err(|error| LinkError::Unavailable(error.to_string()))?
            }
            _ => return Ok(None),
        };
        Ok(Some(LinksGpu { context, endpoint, without_nccl }))
    }

    /// Opens NCCL if this stage has links that may use NCCL. Returns the endpoint. If the transport is Auto and NCCL
    /// can't be opened, returns the reason instead.
    ///
    /// # Errors
    /// If the transport is Nccl and the stage can't use NCCL.
    fn endpoint(&self) -> Result<(Option<Endpoint>, Option<String>), LinkError> {
        let has_any =
            self.link_ids.iter().any(|link| link.payload.is_on_device() && [link.from, link.to].contains(&self.rank));
        let is_wanted = has_any
            && match self.transport {
                Transport::Nccl => true,
                // NCCL does not encrypt
                Transport::Auto => self.device.is_cuda() && self.encryption == Encryption::None,
                Transport::Tcp | Transport::Shm => false,
            };
        match is_wanted.then(|| Endpoint::open(self.device)) {
            None => Ok((None, None)),
            Some(Ok(endpoint)) => Ok((Some(endpoint), None)),
            Some(Err(why)) if self.transport == Transport::Nccl => Err(LinkError::Unavailable(format!(
                "spec.pipeline.transport is Nccl, and stage {} can't use NCCL: {why}; set Auto or Tcp, or give the stage a GPU",
                self.rank
            ))),
            Some(Err(why)) => Ok((None, Some(why))),
        }
    }
}

/// The GPU in whose memory the stage's tensors are, and the stage's resources for NCCL.
#[derive(Clone, Debug)]
pub(super) struct LinksGpu {
    pub(super) context: CudaContext,
    /// The stage's endpoint for NCCL; `None` if the links do not use NCCL.
    pub(super) endpoint: Option<Endpoint>,
    /// The reason why NCCL could not be opened with the transport Auto; `None` if NCCL was opened or is not needed.
    pub(super) without_nccl: Option<String>,
}

/// The number of payloads that fit into a ring, the shared memory of a link. A payload is a boundary tensor (an
/// activation or gradient between two chunks) or a part of another tensor. With this number, a sender rarely waits for
/// its receiver.
const PAYLOADS_IN_RING: usize = 4;

/// Returns the size of a link's ring in bytes, a multiple of the page size. Both ends compute the same size.
pub(super) fn ring_bytes(config: &LinksConfig, link: LinkId) -> usize {
    ring_size(link, config.boundary_bytes, config.tied_bytes)
}

fn ring_size(link: LinkId, boundary_bytes: usize, tied_bytes: usize) -> usize {
    let parts_bytes = STATE_PART_ELEMENTS as usize * size_of::<f32>() * PAYLOADS_IN_RING;
    let bytes = match link.payload {
        LinkPayload::Tied => tied_bytes.min(parts_bytes),
        LinkPayload::Forward { .. } | LinkPayload::Backward { .. } => boundary_bytes * PAYLOADS_IN_RING,
        LinkPayload::Replicas | LinkPayload::PeerCopy | LinkPayload::HeldCopy | LinkPayload::Audit => parts_bytes,
    };
    bytes.next_multiple_of(4096)
}

/// Returns the number of bytes that a link occupies at each of its ends: the ring, if the transport uses one, and one
/// boundary tensor that waits to be sent or has been received. The gradient of a tied weight is not counted, because it
/// exists only at the end of a step.
pub fn held_bytes(link: LinkId, transport: Transport, boundary_bytes: u64, tied_bytes: u64) -> u64 {
    let ring = match transport {
        Transport::Tcp => 0,
        Transport::Nccl if link.payload.is_on_device() => 0,
        Transport::Shm | Transport::Auto | Transport::Nccl => {
            ring_size(link, boundary_bytes as usize, tied_bytes as usize) as u64
        }
    };
    // only boundary tensors are sent whole
    if link.payload.part_elements().is_none() { ring + boundary_bytes } else { ring }
}
