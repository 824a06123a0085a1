//! What a stage must know to join its group.

use crate::{GroupSecret, PROTOCOL_VERSION};

/// Where the leader is, and the secret of its group: the leader publishes it where only the job's stages can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// The address of the leader's coordinator, `host:port`.
    pub address: String,
    /// The [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION) that the leader speaks.
    pub protocol_version: u32,
    /// The group's secret.
    pub secret: GroupSecret,
    /// Whether the stage that joins leads the next group if the leader's process ends before this one is released: then joining
    /// fails. Other stages look for the next group.
    pub succeeds_leader: bool,
}

impl Rendezvous {
    /// Of a leader of this version, for a stage that does not succeed its leader.
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
    /// Who took the fence of this group has not said where it is for so long that it has ended, and this stage leads in its place.
    Leaderless(u64),
}
