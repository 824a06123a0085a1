//! Who may join a group: compares a hello with what stage 0 expects. Pure.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Hello;

/// Why a stage is not taken into the group. The group itself goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// It belongs to another job.
    OtherJob {
        /// Stage 0's.
        expected: String,
        /// The stage's.
        found: String,
    },
    /// It belongs to an attempt that is over: it should leave.
    OlderAttempt {
        /// Stage 0's.
        current: u32,
        /// The stage's.
        found: u32,
    },
    /// It counts another number of stages.
    World {
        /// Stage 0's.
        expected: usize,
        /// The stage's.
        found: usize,
    },
    /// There is no such rank in the group.
    Rank {
        /// How many stages there are.
        world: usize,
        /// The stage's rank.
        found: usize,
    },
    /// What must agree does not.
    Mismatch {
        /// Every field that differs.
        fields: Vec<Difference>,
    },
    /// Its place is filled and the group has formed.
    Formed {
        /// The stage's rank.
        rank: usize,
    },
    /// The group is over.
    Over {
        /// What ended it.
        reason: String,
    },
}

/// A field on which two stages differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The field's name.
    pub field: String,
    /// What stage 0 has, if it has the field.
    pub expected: Option<String>,
    /// What the stage has, if it has the field.
    pub found: Option<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::OtherJob { expected, found } => {
                write!(f, "it belongs to job {found}, but the group at this address to job {expected}")
            }
            Refusal::OlderAttempt { current, found } => {
                write!(f, "it belongs to attempt {found}, and attempt {current} has begun: it should leave")
            }
            Refusal::World { expected, found } => {
                write!(f, "it counts {found} stages (WORLD_SIZE), but stage 0 counts {expected}: all must agree")
            }
            Refusal::Rank { world, found } => {
                write!(
                    f,
                    "there is no stage {found} (RANK) in a group of {world}: ranks are 0 to {}",
                    world.saturating_sub(1)
                )
            }
            Refusal::Mismatch { fields } => {
                write!(f, "all stages must run the same job with the same program, but these differ: ")?;
                for (nth, field) in fields.iter().enumerate() {
                    write!(f, "{}{field}", if nth == 0 { "" } else { "; " })?;
                }
                Ok(())
            }
            Refusal::Formed { rank } => {
                write!(f, "the group has formed and has a stage {rank}: a lost connection ends an attempt")
            }
            Refusal::Over { reason } => write!(f, "the group is over: {reason}"),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_nothing = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        let (expected, found) = (or_nothing(&self.expected), or_nothing(&self.found));
        write!(f, "{} is {found} here and {expected} on stage 0", self.field)
    }
}

/// How a hello is to be taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Welcome,
    Refused(Refusal),
    /// It belongs to a newer attempt than this coordinator does: it knocked at the wrong door, and this group is over.
    Newer,
}

/// Compares a stage's hello with stage 0's own.
pub(crate) fn admit(expected: &Hello, hello: &Hello) -> Admission {
    if hello.job_uid != expected.job_uid {
        return Admission::Refused(Refusal::OtherJob {
            expected: expected.job_uid.clone(),
            found: hello.job_uid.clone(),
        });
    }
    if hello.attempt < expected.attempt {
        return Admission::Refused(Refusal::OlderAttempt { current: expected.attempt, found: hello.attempt });
    }
    if hello.attempt > expected.attempt {
        return Admission::Newer;
    }
    if hello.world != expected.world {
        return Admission::Refused(Refusal::World { expected: expected.world, found: hello.world });
    }
    if hello.rank >= expected.world {
        return Admission::Refused(Refusal::Rank { world: expected.world, found: hello.rank });
    }
    let fields = differences(expected, hello);
    if fields.is_empty() { Admission::Welcome } else { Admission::Refused(Refusal::Mismatch { fields }) }
}

fn differences(expected: &Hello, hello: &Hello) -> Vec<Difference> {
    let replica = |hello: &Hello| hello.replica.to_string();
    let mut fields = vec![
        ("replica", Some(replica(expected)), Some(replica(hello))),
        ("version", Some(expected.version.clone()), Some(hello.version.clone())),
    ];
    let names: BTreeSet<&String> = expected.config.keys().chain(hello.config.keys()).collect();
    fields.extend(
        names
            .into_iter()
            .map(|name| (name.as_str(), expected.config.get(name).cloned(), hello.config.get(name).cloned())),
    );
    fields
        .into_iter()
        .filter(|(_, expected, found)| expected != found)
        .map(|(field, expected, found)| Difference { field: field.to_owned(), expected, found })
        .collect()
}
