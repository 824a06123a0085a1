//! The data with which a stage joins its group.

use crate::{GroupSecret, PROTOCOL_VERSION};

/// The leader's address and the secret of its group. The leader publishes both where only the job's stages can read
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// The address of the leader's coordinator, `host:port`.
    pub address: String,
    /// The [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION) that the leader speaks.
    pub protocol_version: u32,
    /// The group's secret.
    pub secret: GroupSecret,
    /// Whether the joining stage leads the next group if the leader's process ends before it releases this group.
    /// Joining then fails with [`GroupError::LeaderEnded`](crate::GroupError::LeaderEnded). Other stages look for the
    /// next group.
    pub succeeds_leader: bool,
}

impl Rendezvous {
    /// The rendezvous of a leader of this version, for a stage that does not succeed its leader.
    pub fn new(address: String, secret: GroupSecret) -> Rendezvous {
        Rendezvous { address, protocol_version: PROTOCOL_VERSION, secret, succeeds_leader: false }
    }
}

/// The reason why a stage has not found its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotFound {
    /// The group may still appear. The text is the reason why it has not appeared yet.
    NotReady(String),
    /// A newer group has begun. The text names it.
    Superseded(String),
    /// The holder of this group's fence has ended: it did not publish its address for a long time. This stage leads
    /// instead.
    Leaderless(u64),
}
