//! What a stage says about itself when it joins, and the deadlines of a group.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a stage tells the coordinator when it joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The job this process belongs to: two jobs of one name differ here.
    pub job_uid: String,
    /// The group's attempt, counted by the operator or the local launcher.
    pub attempt: u32,
    /// The stage's number, `0..world`.
    pub rank: usize,
    /// How many stages the group has.
    pub world: usize,
    /// Which copy of the pipeline this is: always 0 as long as there is one.
    pub replica: usize,
    /// Tells two pods (or processes) of the same rank and attempt apart.
    pub pod_uid: String,
    /// The trainer's version: one group runs one version.
    pub version: String,
    /// Fields that must agree among all stages; a mismatch is refused with the fields that differ.
    pub config: BTreeMap<String, String>,
    /// Where the neighbours' links connect to, `host:port`.
    pub data_address: String,
    /// The machine's name, for people.
    pub host: String,
    /// What computes, for example `cpu` or `cuda:0`.
    pub device: String,
    /// The instruction set that libtorch's kernels use.
    pub isa: String,
}

/// All members of a group, sent to each of them when the group is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// By rank.
    pub members: Vec<Hello>,
}

/// The deadlines of a group. All stages should use the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How long joining, and then forming, may take without any sign of progress.
    pub startup: Duration,
    /// How often each side says that it lives.
    pub heartbeat: Duration,
    /// After how long without any word a peer counts as lost.
    pub heartbeat_timeout: Duration,
    /// How long the group may go without a finished step or a new action anywhere before it counts as hung.
    pub stall: Duration,
    /// How long stage 0 stays, once the others know that it is over, for them to hang up.
    pub goodbye: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            startup: Duration::from_secs(300),
            heartbeat: Duration::from_millis(500),
            heartbeat_timeout: Duration::from_secs(3),
            stall: Duration::from_secs(600),
            goodbye: Duration::from_secs(1),
        }
    }
}
