//! Why a group ended.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why the group ended, as reported to one member. The order of fields is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupFailure {
    /// The global rank whose failure ended the group, if known.
    pub root_cause_rank: Option<usize>,
    /// The global rank that receives this report.
    pub rank: usize,
    /// One sentence that names the process, its failure, and its activity at that time.
    pub message: String,
    /// Whether the root cause's process has certainly ended.
    pub has_ended: bool,
}

impl GroupFailure {
    /// Whether the rank that receives this report is the one whose failure ended the group.
    pub fn is_root_cause(&self) -> bool {
        self.root_cause_rank == Some(self.rank)
    }

    /// The same failure, addressed to `rank`.
    pub(crate) fn for_rank(&self, rank: usize) -> GroupFailure {
        GroupFailure { rank, ..self.clone() }
    }
}

impl fmt::Display for GroupFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
