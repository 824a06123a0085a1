//! `spec.restart`: what happens when a stage fails. The policy itself is in the `lifecycle` crate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How often, how soon, and after which failures the group starts again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RestartSpec {
    /// Counted restarts without a new checkpoint between them; a committed checkpoint refills the budget.
    pub max_restarts: u32,
    /// The wait before a restart.
    pub backoff: BackoffSpec,
    /// Seconds from the attempt's start until the group has formed. Reported progress of the preparation extends them.
    #[schemars(range(min = 1))]
    pub startup_timeout_seconds: u32,
    /// Seconds without a finished action after which a stage counts as hung.
    #[schemars(range(min = 1))]
    pub stall_timeout_seconds: u32,
    /// Seconds that a restart waits for a stage that was deleted and does not go.
    #[schemars(range(min = 1))]
    pub termination_timeout_seconds: u32,
    /// Rules for exit codes; the first that lists the code decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exit_codes: Vec<ExitCodeRule>,
}

impl Default for RestartSpec {
    fn default() -> Self {
        Self {
            max_restarts: 10,
            backoff: BackoffSpec::default(),
            startup_timeout_seconds: 600,
            stall_timeout_seconds: 600,
            termination_timeout_seconds: 180,
            exit_codes: Vec::new(),
        }
    }
}

/// The wait before a restart: none before the first, then doubled by each failure without progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackoffSpec {
    /// Seconds before the second restart.
    pub initial_seconds: u32,
    /// Seconds that it never exceeds.
    pub max_seconds: u32,
}

impl Default for BackoffSpec {
    fn default() -> Self {
        Self { initial_seconds: 1, max_seconds: 300 }
    }
}

/// What to do after some exit codes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExitCodeRule {
    /// Exit codes of the stage that failed first, 1 to 255.
    #[schemars(length(min = 1), inner(range(min = 1, max = 255)))]
    pub codes: Vec<i32>,
    /// What happens then.
    pub action: ExitAction,
}

string_enum! {
    /// What happens after an exit.
    pub enum ExitAction {
        /// The job fails at once.
        Fail = "Fail",
        /// A restart that counts against the budget.
        Restart = "Restart",
        /// A restart that does not count.
        RestartUncounted = "RestartUncounted",
    }
}
