//! Configuration of the links of one stage.

use std::net::TcpListener;
use std::time::Duration;

use stagecoach_api::job::Transport;

use super::{LinkId, LinkPayload};

/// Configuration from which a stage opens its links.
#[derive(Debug)]
pub struct LinksConfig<'a> {
    /// Rank of this stage.
    pub rank: usize,
    /// Identifies the group: links of another job or attempt are refused.
    pub group: String,
    /// Listens at `addresses[rank]`.
    pub listener: TcpListener,
    /// The address at which each rank listens, by rank.
    pub addresses: &'a [String],
    /// All links of the plan.
    pub link_ids: &'a [LinkId],
    /// The carrier of payloads.
    pub transport: Transport,
    /// Size of the largest activation or gradient between two chunks, in bytes.
    pub boundary_bytes: usize,
    /// Size of a tied weight's gradient, in bytes.
    pub tied_bytes: usize,
    /// Time limit for opening all links.
    pub timeout: Duration,
}

/// Boundary tensors that fit into a ring, so that a sender rarely waits for its receiver.
const PAYLOADS_IN_RING: usize = 4;

/// The size of a link's ring in bytes, a multiple of the page size. Both ends compute it.
pub(super) fn ring_bytes(config: &LinksConfig, link: LinkId) -> usize {
    let bytes = match link.payload {
        LinkPayload::Tied => config.tied_bytes,
        LinkPayload::Forward { .. } | LinkPayload::Backward { .. } => config.boundary_bytes * PAYLOADS_IN_RING,
    };
    bytes.next_multiple_of(4096)
}
