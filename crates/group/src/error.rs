//! What the calls of this room can fail with.

use std::io;
use std::time::Duration;

use crate::{Failure, Refusal};

/// Why a call on the control plane failed.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What came back.
        source: io::Error,
    },
    /// Stage 0 was never reached.
    #[error("stage {rank} could not reach stage 0 at {address} within {} s ({reason}): is stage 0 running, and does the name lead to it?", .waited.as_secs_f32().round())]
    NotReached {
        /// The stage that tried.
        rank: usize,
        /// Where it tried.
        address: String,
        /// How long.
        waited: Duration,
        /// What the last try failed with.
        reason: String,
    },
    /// Something else listens there, or it runs another version.
    #[error("what listens at {address} is not stage 0 of this version: {reason}")]
    Foreign {
        /// Where.
        address: String,
        /// What it said.
        reason: String,
    },
    /// Stage 0 does not take this stage into the group.
    #[error("stage {rank} was refused by stage 0: {refusal}")]
    Refused {
        /// The stage that was refused.
        rank: usize,
        /// Why.
        refusal: Refusal,
    },
    /// Stage 0 answered, but did not release the group in time.
    #[error("stage {rank} waited {} s for stage 0 without a sign of progress; the last word was: {progress}", .waited.as_secs_f32().round())]
    StartupTimedOut {
        /// The stage that waited.
        rank: usize,
        /// How long.
        waited: Duration,
        /// What stage 0 last said it was doing.
        progress: String,
    },
    /// The group has ended.
    #[error("{0}")]
    Lost(Box<Failure>),
    /// A message is larger than a frame may be.
    #[error(
        "a message of {bytes} bytes is too large for the control connection, which carries at most {most}: large data belongs on the links or on the volume"
    )]
    TooLarge {
        /// The message's size.
        bytes: usize,
        /// The bound.
        most: usize,
    },
    /// Only rank 0 tells.
    #[error("stage {rank} tried to tell the group something: only stage 0 may")]
    NotStageZero {
        /// Who tried.
        rank: usize,
    },
}

impl GroupError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> GroupError {
        move |source| GroupError::Io { what: what.into(), source }
    }
}
