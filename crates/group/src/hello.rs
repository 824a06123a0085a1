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
    /// The stage's global rank, `0..world_size`: torch's `RANK`. Of a spare its number among the spares.
    pub rank: usize,
    /// The number of ranks of the attempt, stages times replicas: torch's `WORLD_SIZE`. A group may lack some of them.
    pub world_size: usize,
    /// The global ranks that its last group had lost, or lacked; none of a stage that was in no group yet.
    pub lost_ranks: Option<Vec<usize>>,
    /// The incarnation of this rank in this attempt: each pod or process has a higher number than those before it.
    pub incarnation: u32,
    /// The pod's UID, or what the launcher gives a process instead.
    pub pod_uid: String,
    /// The trainer's version: one group runs one version.
    pub version: String,
    /// Fields that must agree among all stages; a mismatch is refused with the fields that differ.
    pub config: BTreeMap<String, String>,
    /// Address for the links of other stages, `host:port`.
    pub data_address: String,
    /// The machine's name, for people.
    pub host: String,
}

/// All members of a group, sent to each of them when the group is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// By group rank: replica by replica, the leader first.
    pub members: Vec<Hello>,
}

impl Roster {
    /// The incarnations by global rank; none of those that the group does not have.
    pub fn incarnations(&self) -> Vec<Option<u32>> {
        let world_size = self.members.first().map_or(0, |hello| hello.world_size);
        let of = |rank| self.group_rank(rank).map(|group_rank| self.members[group_rank].incarnation);
        (0..world_size).map(of).collect()
    }

    /// The global rank of the stage that leads the group: its process has the coordinator, and its group rank is 0.
    pub fn leader(&self) -> usize {
        self.members.first().map_or(0, |hello| hello.rank)
    }

    /// The group rank of a global rank, if the group has it (torch's `get_group_rank`).
    pub fn group_rank(&self, rank: usize) -> Option<usize> {
        self.members.iter().position(|hello| hello.rank == rank)
    }
}

/// Timeouts of a group. All stages should use the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupTimeouts {
    /// The time that joining, and then forming, may take without progress.
    pub startup_timeout: Duration,
    /// The interval at which each side sends a heartbeat.
    pub heartbeat_interval: Duration,
    /// After how long without a frame a peer is considered lost.
    pub heartbeat_timeout: Duration,
    /// After how long without a finished step or a new activity on any stage the group is considered hung.
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
