//! Errors of this crate.

use std::io;
use std::time::Duration;

use crate::{GroupFailure, Refusal};

/// Why a call on the control plane failed.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// A call of the operating system failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        /// Its error.
        source: io::Error,
    },
    /// Stage 0 was never reached.
    #[error("stage {rank} could not reach stage 0 within {} s ({reason}): is stage 0 running, and can its address be reached from here?", .waited.as_secs_f32().round())]
    Unreachable {
        /// The stage that tried.
        rank: usize,
        /// How long.
        waited: Duration,
        /// Why the last attempt failed.
        reason: String,
    },
    /// Stage 0 runs another version.
    #[error(
        "stage {rank} speaks version {} of the control protocol and stage 0 version {found}: all stages must run one image",
        crate::PROTOCOL_VERSION
    )]
    OtherVersion {
        /// The stage that tried to join.
        rank: usize,
        /// Stage 0's version.
        found: u32,
    },
    /// A newer group has begun.
    #[error("stage {rank} is of a group that is over: {newer} has begun")]
    Superseded {
        /// The stage that tried to join.
        rank: usize,
        /// The newer group.
        newer: String,
    },
    /// Stage 0 refused this stage.
    #[error("stage {rank} was refused by stage 0: {refusal}")]
    Refused {
        /// The stage that was refused.
        rank: usize,
        /// Why.
        refusal: Refusal,
    },
    /// Stage 0 answered, but did not release the group in time.
    #[error("stage {rank} waited {} s without progress of stage 0; its last report was: {progress}", .waited.as_secs_f32().round())]
    StartupTimedOut {
        /// The stage that waited.
        rank: usize,
        /// How long.
        waited: Duration,
        /// The last progress report of stage 0.
        progress: String,
    },
    /// The leader's process has ended before the group was released, and this stage is the one that leads the next.
    #[error("stage {rank} leads the next group: the leader's process has ended ({reason})")]
    LeaderEnded {
        /// The stage that leads.
        rank: usize,
        /// The group without a leader.
        group: u64,
        /// Whether this stage would have been in it. If it waited beside it, what it knows of others is old.
        is_member: bool,
        /// What was seen of it.
        reason: String,
    },
    /// The group trained to the end without this stage.
    #[error("stage {rank} is not needed: all stages of its group have left")]
    AllLeft {
        /// The stage that waited.
        rank: usize,
    },
    /// The group has failed.
    #[error("{0}")]
    GroupFailed(Box<GroupFailure>),
    /// A message is larger than a frame may be.
    #[error(
        "a message of {bytes} bytes is too large for the control connection, which carries at most {max_bytes}: large data belongs on the links or on the volume"
    )]
    FrameTooLarge {
        /// Size of the message.
        bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// A rank that does not lead tried to broadcast.
    #[error("stage {rank} tried to broadcast: only stage {leader} may, which leads the group")]
    NotLeader {
        /// That rank.
        rank: usize,
        /// The one that leads.
        leader: usize,
    },
}

impl GroupError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> GroupError {
        move |source| GroupError::Io { what: what.into(), source }
    }
}
