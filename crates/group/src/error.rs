//! Errors of this crate, the failure of a group, and the shortages of resources in this process or on its machine.
//! Messages name a process as `stage 1`, `stage 1 of replica 0`, or `spare 2`. A shortage is never attributed to
//! another process.

use std::time::Duration;
use std::{fmt, io};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::Refusal;

/// The reason why a call on the control plane failed.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// A system call failed.
    #[error("{what}: {source}{}", remedy(.source))]
    Io {
        /// The operation that failed.
        what: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The stage could not reach the leader.
    #[error("{name} could not reach the leader within {} s ({reason}): is the leader running, and can its address be \
             reached from here?", .waited.as_secs_f32().round())]
    Unreachable {
        /// The name of the stage.
        name: String,
        /// The time that the stage has waited.
        waited: Duration,
        /// The reason why the last attempt failed.
        reason: String,
    },
    /// The leader runs another version of the protocol.
    #[error(
        "{name} uses version {} of the control protocol, and the leader uses version {found}: run the same image on \
         all stages",
        crate::PROTOCOL_VERSION
    )]
    OtherVersion {
        /// The stage that tried to join.
        name: String,
        /// The protocol version of the leader.
        found: u32,
    },
    /// A newer group has begun.
    #[error("{name} belongs to a group that has ended: {newer} has begun")]
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
    /// The leader answered, but did not release the group (send the plan to its members) in time.
    #[error("{name} waited {} s without progress by the leader, whose last report was: {progress}", .waited.as_secs_f32().round())]
    StartupTimedOut {
        /// The stage that waited.
        name: String,
        /// The time that the stage has waited.
        waited: Duration,
        /// The leader's last progress report.
        progress: String,
    },
    /// The leader's process ended while this stage joined or waited, and this stage leads the next group.
    #[error("{name} leads the next group: the leader's process has ended ({reason})")]
    LeaderEnded {
        /// The stage that leads the next group.
        name: String,
        /// The number of the group whose leader ended.
        group: u64,
        /// Whether this stage was to be a member of that group. A stage that only waited outside the group has outdated
        /// information about other stages.
        is_member: bool,
        /// The evidence that the leader's process has ended, for example a refused connection.
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
        "a message of {bytes} bytes is too large for the control connection, which carries at most {max_bytes}: \
         large data belongs on the links or on the volume"
    )]
    FrameTooLarge {
        /// The size of the message.
        bytes: usize,
        /// The size limit.
        max_bytes: usize,
    },
    /// A stage that does not lead the group tried to broadcast.
    #[error("{name} tried to broadcast: only the leader, {leader}, may broadcast")]
    NotLeader {
        /// The stage that tried to broadcast.
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

/// The reason why a group ended, as the coordinator reports it to one member. The order of the fields determines the
/// wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupFailure {
    /// The global rank whose failure ended the group, if known.
    pub root_cause_rank: Option<usize>,
    /// The global rank that receives this report.
    pub rank: usize,
    /// One sentence that names the process, its failure, and its activity at that time.
    pub message: String,
    /// Whether the process of the root-cause rank is known to have ended; false if the state of the process is unknown.
    pub has_ended: bool,
}

impl GroupFailure {
    /// Whether the rank that receives this report is the one whose failure ended the group.
    pub fn is_root_cause(&self) -> bool {
        self.root_cause_rank == Some(self.rank)
    }

    /// Returns the same failure, addressed to `rank`.
    pub(crate) fn for_rank(&self, rank: usize) -> GroupFailure {
        GroupFailure { rank, ..self.clone() }
    }
}

impl fmt::Display for GroupFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Returns the remedy if a call failed because this process or its machine has no free file descriptors, or no memory
/// for sockets. Another attempt would fail as well. Returns `None` for any other error.
pub fn local_shortage(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::MFILE => Some("raise the limit of open files for a process (`ulimit -n`)"),
        Errno::NFILE => Some("raise the limit of open files for this machine (`sysctl fs.file-max`)"),
        Errno::NOMEM | Errno::NOBUFS => Some("this machine has no memory left for sockets"),
        _ => None,
    }
}

/// Returns the remedy as the end of a sentence; empty if there is none.
fn remedy(error: &io::Error) -> String {
    local_shortage(error).map_or_else(String::new, |remedy| format!("; {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_has_its_remedy_and_a_lost_peer_has_none() {
        let shown = |errno: Errno| GroupError::io("could not connect")(errno.into()).to_string();
        let limit = "could not connect: Too many open files (os error 24); raise the limit of open files for a \
                     process (`ulimit -n`)";
        assert_eq!(shown(Errno::MFILE), limit);
        assert!(shown(Errno::NFILE).ends_with("(`sysctl fs.file-max`)"));
        assert!(shown(Errno::CONNRESET).ends_with("(os error 104)"));
    }
}
