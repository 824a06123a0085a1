//! Why a group ended.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why the whole group ended, as one of its members is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of end it is.
    pub kind: FailureKind,
    /// The stage that brought it about, where one can be named.
    pub culprit: Option<usize>,
    /// The stage that is told.
    pub rank: usize,
    /// One sentence: who, what, while doing what.
    pub message: String,
}

/// The kinds of ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureKind {
    /// A control connection closed: as a rule its process has died.
    ConnectionClosed,
    /// A stage is connected and says nothing: stopped, frozen, or cut off.
    HeartbeatsMissed,
    /// Everybody lives, but nothing moves.
    Hang,
    /// The group was not complete, or not formed, in time.
    StartupTimedOut,
    /// Two pods claim the same rank of the same attempt.
    SecondPod,
    /// A newer attempt has begun.
    Superseded,
    /// A stage left that the others still counted on.
    Left,
    /// Stage 0 could not prepare the attempt.
    Rejected,
    /// A stage said what it must not say.
    Protocol,
}

impl Failure {
    /// Whether the stage that is told this is the one that brought it about. All others are collateral.
    pub fn is_culprit(&self) -> bool {
        self.culprit == Some(self.rank)
    }

    /// The same end, told to `rank`.
    pub(crate) fn told_to(&self, rank: usize) -> Failure {
        Failure { rank, ..self.clone() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
