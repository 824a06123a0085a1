//! Admission to a group: compares a hello, which is the first message of a stage, with the leader's hello and with an
//! earlier hello of the same rank. This module is pure.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Hello;

/// The reason why a stage may not join the group. The group itself continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The stage belongs to another job.
    OtherJob {
        /// The UID of the leader's job.
        expected: String,
        /// The UID of the stage's job.
        found: String,
    },
    /// The stage belongs to another attempt and should exit.
    OtherAttempt {
        /// The leader's attempt.
        expected: u64,
        /// The stage's attempt.
        found: u64,
    },
    /// The stage was started with another world size (torch's `WORLD_SIZE`, the number of processes in all replicas).
    WorldSizeMismatch {
        /// The leader's world size.
        expected: usize,
        /// The stage's world size.
        found: usize,
    },
    /// The attempt has no such rank.
    RankOutOfRange {
        /// The number of ranks.
        world_size: usize,
        /// The stage's global rank.
        found: usize,
    },
    /// The stage and the leader differ in fields that must be equal on all stages.
    ConfigMismatch {
        /// Every field that differs.
        fields: Vec<FieldMismatch>,
    },
    /// The group has formed and already has this rank.
    AlreadyFormed {
        /// The stage's global rank.
        rank: usize,
    },
    /// The group has ended.
    GroupEnded {
        /// The reason for the end.
        reason: String,
    },
    /// A newer pod or process (with a higher incarnation number) has joined with the same rank, so the stage should
    /// exit.
    Replaced {
        /// The stage's global rank.
        rank: usize,
    },
}

/// A field on which two stages differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldMismatch {
    /// The field's name.
    pub field: String,
    /// The leader's value, if it has the field.
    pub expected: Option<String>,
    /// The stage's value, if it has the field.
    pub found: Option<String>,
}

impl Refusal {
    /// Describes the reason why the process `name` may not join.
    pub(crate) fn describe(&self, name: &str) -> String {
        match self {
            Refusal::OtherJob { expected, found } => {
                format!("it belongs to job {found}, but the group at this address to job {expected}")
            }
            Refusal::OtherAttempt { expected, found } => {
                format!("it belongs to attempt {found}, and this group to attempt {expected}: it should exit")
            }
            Refusal::WorldSizeMismatch { expected, found } => {
                format!(
                    "it was started with {found} stages (WORLD_SIZE), but the leader with {expected}: all must agree"
                )
            }
            Refusal::RankOutOfRange { world_size, .. } => {
                let last = world_size.saturating_sub(1);
                format!("there is no {name} (RANK) in a group of {world_size}: ranks are 0 to {last}")
            }
            Refusal::ConfigMismatch { fields } => {
                let fields: Vec<String> = fields.iter().map(ToString::to_string).collect();
                let fields = fields.join("; ");
                format!("all stages must run the same job with the same program, but these differ: {fields}")
            }
            Refusal::AlreadyFormed { .. } => {
                format!("the group has formed and has a {name}: a lost connection ends the group")
            }
            Refusal::GroupEnded { reason } => format!("the group has ended: {reason}"),
            Refusal::Replaced { .. } => format!("{name} was replaced: it should exit"),
        }
    }
}

impl fmt::Display for FieldMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_nothing = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        let (expected, found) = (or_nothing(&self.expected), or_nothing(&self.found));
        write!(f, "{} is {found} here and {expected} on the leader", self.field)
    }
}

/// Compares a stage's hello with `expected`, the leader's hello.
pub(crate) fn admit(expected: &Hello, hello: &Hello) -> Result<(), Refusal> {
    admit_spare(expected, hello)?;
    match hello.rank < expected.world_size {
        true => Ok(()),
        false => Err(Refusal::RankOutOfRange { world_size: expected.world_size, found: hello.rank }),
    }
}

/// Compares a spare's hello with `expected`, the leader's hello. The rank of a spare is not checked, because the spare
/// may become any stage.
pub(crate) fn admit_spare(expected: &Hello, hello: &Hello) -> Result<(), Refusal> {
    if hello.job_uid != expected.job_uid {
        return Err(Refusal::OtherJob { expected: expected.job_uid.clone(), found: hello.job_uid.clone() });
    }
    if hello.attempt != expected.attempt {
        return Err(Refusal::OtherAttempt { expected: expected.attempt, found: hello.attempt });
    }
    if hello.world_size != expected.world_size {
        return Err(Refusal::WorldSizeMismatch { expected: expected.world_size, found: hello.world_size });
    }
    let fields = mismatches(expected, hello);
    if fields.is_empty() { Ok(()) } else { Err(Refusal::ConfigMismatch { fields }) }
}

/// The relation of a hello to an earlier hello of the same rank.
pub(crate) enum Succession {
    /// There is no earlier hello.
    First,
    /// The hello replaces the earlier one, because the rank is still joining. The hello comes from the same process,
    /// which reconnects (`is_same`), or from a process that was started later.
    Follows {
        is_same: bool,
    },
    Refused(Refusal),
    /// The hello comes from a newer process of a stage whose group has formed. The group is therefore over.
    Restarted,
    /// Two processes claim the same incarnation, and the coordinator can't determine which of them is right.
    Conflict {
        message: String,
    },
}

/// Compares the `hello` of the stage `name` with `first`, the previous hello of the same rank.
pub(crate) fn succession(first: Option<&Hello>, hello: &Hello, name: &str, is_joining: bool) -> Succession {
    let Some(first) = first else { return Succession::First };
    let rank = hello.rank;
    if hello.incarnation < first.incarnation {
        return Succession::Refused(Refusal::Replaced { rank });
    }
    if hello.incarnation == first.incarnation && hello.pod_uid != first.pod_uid {
        let message = format!(
            "two pods claim to be {name} of attempt {}: {} on {}, and now {} on {}",
            hello.attempt, first.pod_uid, first.host, hello.pod_uid, hello.host
        );
        return Succession::Conflict { message };
    }
    match first == hello {
        is_same if is_joining => Succession::Follows { is_same },
        true => Succession::Refused(Refusal::AlreadyFormed { rank }),
        false => Succession::Restarted,
    }
}

fn mismatches(expected: &Hello, hello: &Hello) -> Vec<FieldMismatch> {
    let mut fields = vec![("version", Some(expected.version.clone()), Some(hello.version.clone()))];
    let names: BTreeSet<&String> = expected.config.keys().chain(hello.config.keys()).collect();
    fields.extend(
        names
            .into_iter()
            .map(|name| (name.as_str(), expected.config.get(name).cloned(), hello.config.get(name).cloned())),
    );
    fields
        .into_iter()
        .filter(|(_, expected, found)| expected != found)
        .map(|(field, expected, found)| FieldMismatch { field: field.to_owned(), expected, found })
        .collect()
}
