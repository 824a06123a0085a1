//! The data with which a stage joins its group.

use crate::{GroupSecret, PROTOCOL_VERSION};

/// The leader's address, and the secret of its group: the leader publishes both where only the job's stages can read
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// The address of the leader's coordinator, `host:port`.
    pub address: String,
    /// The [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION) that the leader speaks.
    pub protocol_version: u32,
    /// The group's secret.
    pub secret: GroupSecret,
    /// Whether the stage that joins leads the next group if the leader's process ends before this one is released: then
    /// joining fails. Other stages look for the next group.
    pub succeeds_leader: bool,
}

impl Rendezvous {
    /// The rendezvous of a leader of this version, for a stage that does not succeed its leader.
    pub fn new(address: String, secret: GroupSecret) -> Rendezvous {
        Rendezvous { address, protocol_version: PROTOCOL_VERSION, secret, succeeds_leader: false }
    }
}

/// Why a stage has not found its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotFound {
    /// It may appear: why it is not there.
    Yet(String),
    /// A newer group has begun: which.
    Superseded(String),
    /// The holder of this group's fence has not published its address for so long that it has ended. This stage leads
    /// instead.
    Leaderless(u64),
}
