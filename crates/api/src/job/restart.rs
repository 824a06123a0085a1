//! `spec.restart`: the restarts after failures. The crate `lifecycle` decides on restarts by these settings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::number::FailureExitCode;
use super::{PodFailurePolicyAction, PodFailurePolicySpec};

/// The restarts of the group: their number, their delay, and the actions after failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RestartSpec {
    /// The restart budget: the maximum number of counted restarts before the job fails. A committed checkpoint restores
    /// the budget.
    pub max_restarts: u32,
    /// The delay before a restart. The first restart has no delay. Each further failure without progress doubles the
    /// delay.
    pub backoff: BackoffSpec,
    /// The maximum time, in seconds, from the start of an attempt until the group has formed. Progress of the
    /// preparation extends the time.
    #[schemars(range(min = 1))]
    pub startup_timeout_seconds: u32,
    /// The maximum time, in seconds, that the other stages wait for the replacement of a lost stage if they can't train
    /// without it. After that time, the whole group restarts. If 0, or if the trainer is custom, the whole group
    /// restarts at once.
    pub reform_timeout_seconds: u32,
    /// The smallest number of replicas with which the group continues after it has lost replicas. A lost replica joins
    /// again when all its stages run. Defaults to 1. If the value equals `dataParallel`, the group waits for all
    /// replicas. If `reformTimeoutSeconds` is 0 or the trainer is custom, the field has no effect, because a lost stage
    /// then ends the group. Mutually exclusive with `spec.elastic`.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_data_parallel: Option<u32>,
    /// The time, in seconds, without a heartbeat after which a stage counts as lost. A stage sends no heartbeat if its
    /// process is stopped or hung, its node is gone, or the network is down. The group detects the end of a process at
    /// once, because its connections close.
    #[schemars(range(min = 1))]
    pub heartbeat_timeout_seconds: u32,
    /// The time, in seconds, without a finished action of the schedule after which a stage counts as hung.
    #[schemars(range(min = 1))]
    pub stall_timeout_seconds: u32,
    /// The maximum time, in seconds, that a restart waits for a deleted stage to end.
    #[schemars(range(min = 1))]
    pub termination_timeout_seconds: u32,
    /// The actions after failures, by exit code, pod condition or reason. The first rule that matches determines the
    /// action. If no rule matches, the reason of the failure determines the action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_failure_policy: Option<PodFailurePolicySpec>,
    /// An older form of `podFailurePolicy`. These rules are tried after the rules of `podFailurePolicy`.
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
            // Stages send a heartbeat every half second. A node that is short of memory or processors may delay a
            // process by seconds.
            heartbeat_timeout_seconds: 10,
            stall_timeout_seconds: 600,
            termination_timeout_seconds: 180,
            pod_failure_policy: None,
            exit_codes: Vec::new(),
        }
    }
}

/// The delay before a restart. The first restart has no delay. Each further failure without progress doubles the delay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackoffSpec {
    /// The delay before the second restart, in seconds.
    pub initial_seconds: u32,
    /// The maximum delay, in seconds.
    pub max_seconds: u32,
}

impl Default for BackoffSpec {
    fn default() -> Self {
        Self { initial_seconds: 1, max_seconds: 300 }
    }
}

/// A rule of `exitCodes`: the action after some exit codes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExitCodeRule {
    /// The exit codes of the stage that failed first, each from 1 to 255.
    #[schemars(with = "Vec<FailureExitCode>", length(min = 1), extend("x-expected" = "list at least one exit code"))]
    pub codes: Vec<i32>,
    /// The action after these exit codes.
    pub action: ExitAction,
}

string_enum! {
    /// The action after an exit code.
    pub enum ExitAction {
        /// The job fails, as with `FailJob` of `podFailurePolicy`.
        Fail = "Fail",
        /// The group restarts, as with `Count` of `podFailurePolicy`.
        Restart = "Restart",
        /// The group restarts, as with `Ignore` of `podFailurePolicy`.
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
