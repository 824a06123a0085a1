//! What is recorded between two decisions: in the job's status, or in the launcher's file.

use serde::{Deserialize, Serialize};
use stagecoach_api::contract::FailureKind;

use crate::{Budget, Failure, Time};

/// All that `decide` remembers. Starts out as its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// What is being done.
    pub doing: Doing,
    /// The attempt that it is done with, the last one while there is none.
    pub attempt: Attempt,
    /// Restarts so far.
    #[serde(default)]
    pub budget: Budget,
    /// Failures since training last got further than ever before; they decide the back-off.
    #[serde(default)]
    pub failures: u32,
    /// Finished steps of the attempt that got furthest.
    #[serde(default)]
    pub best_step: Option<u64>,
    /// Step of the newest committed checkpoint.
    #[serde(default)]
    pub checkpoint: Option<u64>,
    /// The last failure's root cause.
    #[serde(default)]
    pub last_failure: Option<Failure>,
    /// The last failure that would come again at the same step: its kind and step.
    #[serde(default)]
    pub deterministic: Option<(FailureKind, Option<u64>)>,
    /// When the first attempt started, or the first since the job was suspended.
    #[serde(default)]
    pub started: Option<Time>,
}

/// What is being done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Doing {
    /// Nothing, before the first attempt or while suspended.
    #[default]
    Idle,
    /// The attempt is wanted: its members are to be created, or run.
    Running {
        /// When its members may be created.
        not_before: Time,
        /// Whether all of them were created: one that is missing then has vanished.
        created: bool,
    },
    /// The attempt's members were asked to save and leave.
    Draining,
    /// Nothing any more.
    Finished(Outcome),
}

/// One start of the whole group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Counts from 1 and is never used twice; 0 before the first.
    pub number: u64,
    /// Its stages.
    pub stages: u32,
    /// The revision of the spec that it runs.
    pub revision: u64,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// Trained to the end.
    Complete,
    /// Given up; `State::last_failure` has the cause.
    Failed(FailReason),
}

/// Why a job was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailReason {
    /// A stage found the job or its plan invalid.
    InvalidConfig,
    /// A rule in `restart.exitCodes` says so.
    ExitCodeRule,
    /// The same failure came again at the same step: replaying a deterministic failure helps nobody.
    Deterministic,
    /// No restart is left.
    BudgetExhausted,
    /// `activeDeadlineSeconds` have passed.
    DeadlineExceeded,
}

impl State {
    /// How the job ended, if it has.
    pub const fn outcome(&self) -> Option<&Outcome> {
        match &self.doing {
            Doing::Finished(outcome) => Some(outcome),
            _ => None,
        }
    }
}
