//! The data with which a stage joins its group, the hello (the stage's first message), and the roster and timeouts of a
//! group.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

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
    /// Whether the joining stage leads the next group if the leader's process ends before this group is released, that
    /// is, before the leader sends the plan to the members. In that case, joining fails with
    /// [`GroupError::LeaderEnded`](crate::GroupError::LeaderEnded). A stage for which the field is false looks for the
    /// next group instead.
    pub succeeds_leader: bool,
}

impl Rendezvous {
    /// Returns the rendezvous of a leader of this version, for a stage that does not succeed its leader.
    pub fn new(address: String, secret: GroupSecret) -> Rendezvous {
        Rendezvous { address, protocol_version: PROTOCOL_VERSION, secret, succeeds_leader: false }
    }
}

/// The reason why a stage has not found its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotFound {
    /// The group may still appear. The text is the reason why it has not appeared yet.
    NotReady(String),
    /// A newer group has begun. The text names the newer group.
    Superseded(String),
    /// The process that acquired the fence (the right to lead the group) has not published its address for a long time,
    /// so the process has ended. This stage leads instead. The value is the fence's number.
    Leaderless(u64),
}

/// The message of a stage to the coordinator when it joins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The UID of the job. Two jobs of the same name have different UIDs.
    pub job_uid: String,
    /// The group's attempt, counted by the operator or the local launcher.
    pub attempt: u64,
    /// The stage's global rank, `0..world_size`: torch's `RANK`. In the hello of a spare, the number of the spare.
    pub rank: usize,
    /// The number of ranks of the attempt, stages times replicas: torch's `WORLD_SIZE`. A group may lack some ranks.
    pub world_size: usize,
    /// The global ranks that were lost in, or missing from, this stage's last group; `None` if the stage was in no
    /// group yet.
    pub lost_ranks: Option<Vec<usize>>,
    /// The incarnation of this rank in this attempt. Each pod or process has a higher number than its predecessors.
    pub incarnation: u32,
    /// The pod's UID, or the identifier that the launcher gives a process instead.
    pub pod_uid: String,
    /// The trainer's version. All stages of a group must run the same version.
    pub version: String,
    /// The settings on which all stages must agree. The coordinator refuses a stage with different values, and the
    /// error lists the fields that differ.
    pub config: BTreeMap<String, String>,
    /// The address at which this stage accepts the links of other stages, `host:port`.
    pub data_address: String,
    /// The machine's name, which only messages use.
    pub host: String,
}

/// The hellos of all members of a group. The coordinator sends the roster to every member when all members have joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// The members' hellos by group rank: replica by replica, the leader first.
    pub members: Vec<Hello>,
}

impl Roster {
    /// Returns the incarnations by global rank; `None` for a rank that is not in the group.
    pub fn incarnations(&self) -> Vec<Option<u32>> {
        let world_size = self.members.first().map_or(0, |hello| hello.world_size);
        let incarnation = |rank| self.group_rank(rank).map(|group_rank| self.members[group_rank].incarnation);
        (0..world_size).map(incarnation).collect()
    }

    /// Returns the global ranks by group rank. The leader is the first.
    pub fn ranks(&self) -> Vec<usize> {
        self.members.iter().map(|hello| hello.rank).collect()
    }

    /// Returns the global rank of the stage that leads the group. The leader's process runs the coordinator, and its
    /// group rank is 0.
    pub fn leader(&self) -> usize {
        self.members.first().map_or(0, |hello| hello.rank)
    }

    /// Returns the group rank of a global rank (torch's `get_group_rank`); `None` if the rank is not in the group.
    pub fn group_rank(&self, rank: usize) -> Option<usize> {
        self.members.iter().position(|hello| hello.rank == rank)
    }
}

/// Timeouts of a group. All stages should use the same values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupTimeouts {
    /// The time without progress after which joining or forming the group fails.
    pub startup_timeout: Duration,
    /// The interval at which each side sends a heartbeat.
    pub heartbeat_interval: Duration,
    /// The time without a frame after which a peer is considered lost.
    pub heartbeat_timeout: Duration,
    /// The time without a finished step or a new activity on any stage after which the group is considered hung.
    pub stall_timeout: Duration,
    /// The time for which the coordinator waits for the other members to disconnect after their final message. The
    /// leader gets its final message afterwards.
    pub shutdown_timeout: Duration,
}

impl Default for GroupTimeouts {
    fn default() -> Self {
        GroupTimeouts {
            startup_timeout: Duration::from_secs(300),
            heartbeat_interval: Duration::from_millis(500),
            heartbeat_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(600),
            shutdown_timeout: Duration::from_secs(1),
        }
    }
}
