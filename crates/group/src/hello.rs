//! The identity that a stage sends when it joins, and the timeouts of a group.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The message of a stage to the coordinator when it joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// UID of the job; differs between two jobs of the same name.
    pub job_uid: String,
    /// The group's attempt, counted by the operator or the local launcher.
    pub attempt: u64,
    /// The stage's global rank, `0..world_size`: torch's `RANK`. For a spare, its number among the spares.
    pub rank: usize,
    /// The number of ranks of the attempt, stages times replicas: torch's `WORLD_SIZE`. A group may lack some of them.
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
    /// Fields that must agree among all stages. A stage with other values is refused, and the error lists the fields
    /// that differ.
    pub config: BTreeMap<String, String>,
    /// Address for the links of other stages, `host:port`.
    pub data_address: String,
    /// The machine's name, for messages only.
    pub host: String,
}

/// All members of a group, sent to each of them when the group is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// By group rank: replica by replica, the leader first.
    pub members: Vec<Hello>,
}

impl Roster {
    /// The incarnations by global rank; `None` for a rank that is not in the group.
    pub fn incarnations(&self) -> Vec<Option<u32>> {
        let world_size = self.members.first().map_or(0, |hello| hello.world_size);
        let of = |rank| self.group_rank(rank).map(|group_rank| self.members[group_rank].incarnation);
        (0..world_size).map(of).collect()
    }

    /// The global rank of the stage that leads the group. The leader's process runs the coordinator, and its group rank
    /// is 0.
    pub fn leader(&self) -> usize {
        self.members.first().map_or(0, |hello| hello.rank)
    }

    /// The group rank of a global rank; `None` if the rank is not in the group (torch's `get_group_rank`).
    pub fn group_rank(&self, rank: usize) -> Option<usize> {
        self.members.iter().position(|hello| hello.rank == rank)
    }
}

/// Timeouts of a group. All stages should use the same values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupTimeouts {
    /// The time limit without progress, first for joining and then for forming the group.
    pub startup_timeout: Duration,
    /// The interval at which each side sends a heartbeat.
    pub heartbeat_interval: Duration,
    /// The time without a frame after which a peer is considered lost.
    pub heartbeat_timeout: Duration,
    /// The time without a finished step or a new activity on any stage after which the group is considered hung.
    pub stall_timeout: Duration,
    /// The time for which the leader waits for the others to disconnect after their final message.
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
