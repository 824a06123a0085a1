//! `spec.restart`: what happens when a stage fails. The policy itself is in the `lifecycle` crate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::number::FailureExitCode;
use super::{PodFailurePolicyAction, PodFailurePolicySpec};

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
    /// Seconds that the other stages wait for one that was lost and is replaced, if they can't train without it; then the whole group
    /// starts again. 0: it does so at once. A custom trainer's group always does.
    pub reform_timeout_seconds: u32,
    /// With how few replicas the group trains on when others are lost, whichever these are; it takes them in again when they are back.
    /// Absent: 1. As many as `dataParallel`: it waits for all. Without effect where a lost stage ends the group: with
    /// `reformTimeoutSeconds` 0, and for a custom trainer.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_data_parallel: Option<u32>,
    /// Seconds of silence after which a stage counts as lost: its process is stopped or hung, its node is gone, or the network is
    /// down. One whose process ends is noticed at once.
    #[schemars(range(min = 1))]
    pub heartbeat_timeout_seconds: u32,
    /// Seconds without a finished action after which a stage counts as hung.
    #[schemars(range(min = 1))]
    pub stall_timeout_seconds: u32,
    /// Seconds that a restart waits for a stage that was deleted and does not go.
    #[schemars(range(min = 1))]
    pub termination_timeout_seconds: u32,
    /// What follows a failure, by exit code, pod condition or reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_failure_policy: Option<PodFailurePolicySpec>,
    /// An older form of `podFailurePolicy`, whose last rules these are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exit_codes: Vec<ExitCodeRule>,
}

impl Default for RestartSpec {
    fn default() -> Self {
        Self {
            max_restarts: 10,
            backoff: BackoffSpec::default(),
            startup_timeout_seconds: 600,
            reform_timeout_seconds: 120,
            min_data_parallel: None,
            // stages send one every half second; a node short of memory or processors may hold a process up for seconds
            heartbeat_timeout_seconds: 10,
            stall_timeout_seconds: 600,
            termination_timeout_seconds: 180,
            pod_failure_policy: None,
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

/// What to do after some exit codes, in the older form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExitCodeRule {
    /// Exit codes of the stage that failed first, 1 to 255.
    #[schemars(with = "Vec<FailureExitCode>", length(min = 1), extend("x-expected" = "list at least one exit code"))]
    pub codes: Vec<i32>,
    /// What happens then.
    pub action: ExitAction,
}

string_enum! {
    /// What happens after an exit.
    pub enum ExitAction {
        /// `FailJob` of `podFailurePolicy`.
        Fail = "Fail",
        /// `Count` of `podFailurePolicy`.
        Restart = "Restart",
        /// `Ignore` of `podFailurePolicy`.
        RestartUncounted = "RestartUncounted",
    }
}

impl From<ExitAction> for PodFailurePolicyAction {
    fn from(action: ExitAction) -> Self {
        match action {
            ExitAction::Fail => Self::FailJob,
            ExitAction::Restart => Self::Count,
            ExitAction::RestartUncounted => Self::Ignore,
        }
    }
}
