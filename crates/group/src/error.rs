//! Errors of this crate. Messages name a process as `stage 1`, `stage 1 of replica 0`, or `spare 2`.

use std::io;
use std::time::Duration;

use crate::shortage::remedy;
use crate::{GroupFailure, Refusal};

/// Why a call on the control plane failed.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// A system call failed.
    #[error("{what}: {source}{}", remedy(.source))]
    Io {
        /// The operation.
        what: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The stage could not reach the leader.
    #[error("{name} could not reach the leader within {} s ({reason}): is the leader running, and can its address be reached from here?", .waited.as_secs_f32().round())]
    Unreachable {
        /// The stage that tried.
        name: String,
        /// The time limit.
        waited: Duration,
        /// Why the last attempt failed.
        reason: String,
    },
    /// The leader runs another version of the protocol.
    #[error(
        "{name} speaks version {} of the control protocol and the leader version {found}: all stages must run one image",
        crate::PROTOCOL_VERSION
    )]
    OtherVersion {
        /// The stage that tried to join.
        name: String,
        /// The leader's version.
        found: u32,
    },
    /// A newer group has begun.
    #[error("{name} is of a group that is over: {newer} has begun")]
    Superseded {
        /// The stage that tried to join.
        name: String,
        /// The newer group.
        newer: String,
    },
    /// The leader refused this stage or spare.
    #[error("{name} was refused by the leader: {}", .refusal.describe(.name))]
    Refused {
        /// The stage that was refused.
        name: String,
        /// The leader's reason.
        refusal: Refusal,
    },
    /// The leader answered, but did not release the group in time.
    #[error("{name} waited {} s without progress of the leader; its last report was: {progress}", .waited.as_secs_f32().round())]
    StartupTimedOut {
        /// The stage that waited.
        name: String,
        /// The time limit.
        waited: Duration,
        /// The leader's last progress report.
        progress: String,
    },
    /// The leader's process ended before it released the group, and this stage leads the next group.
    #[error("{name} leads the next group: the leader's process has ended ({reason})")]
    LeaderEnded {
        /// The stage that leads.
        name: String,
        /// The number of the group whose leader ended.
        group: u64,
        /// Whether this stage would have been a member. If the stage waited beside the group, its knowledge of other
        /// stages is out of date.
        is_member: bool,
        /// The last observation of the leader.
        reason: String,
    },
    /// The group trained to the end without this stage.
    #[error("{name} is not needed: all stages of its group have left")]
    AllLeft {
        /// The stage that waited.
        name: String,
    },
    /// The group has failed.
    #[error("{0}")]
    GroupFailed(Box<GroupFailure>),
    /// A message exceeds the size limit of a frame.
    #[error(
        "a message of {bytes} bytes is too large for the control connection, which carries at most {max_bytes}: large data belongs on the links or on the volume"
    )]
    FrameTooLarge {
        /// Size of the message.
        bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// A stage that does not lead the group tried to broadcast.
    #[error("{name} tried to broadcast: only {leader} may, which leads the group")]
    NotLeader {
        /// The stage.
        name: String,
        /// The stage that leads the group.
        leader: String,
    },
}

impl GroupError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> GroupError {
        move |source| GroupError::Io { what: what.into(), source }
    }
}
