//! `spec.restart.podFailurePolicy`: what follows a failure, by exit code, pod condition or reason, in the form of a
//! Job's policy of that name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::number::FailureExitCode;

/// Rules for failures. The first rule that matches decides. Without a match, the reason of the failure decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodFailurePolicySpec {
    /// The rules, in the order in which they are tried.
    #[schemars(length(min = 1, max = 20), extend("x-expected" = "give at least one rule, or remove podFailurePolicy"))]
    pub rules: Vec<PodFailurePolicyRule>,
}

/// A rule about the stage that failed first. A rule has exactly one of `onExitCodes`, `onPodConditions` and
/// `onReasons`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "[has(self.onExitCodes), has(self.onPodConditions), has(self.onReasons)].filter(given, given).size() == 1",
    "message": "a rule has exactly one of onExitCodes, onPodConditions and onReasons: split it, or add what is missing",
}]))]
pub struct PodFailurePolicyRule {
    /// The action after a failure that matches the rule.
    pub action: PodFailurePolicyAction,
    /// Exit codes of the trainer. Stages that were evicted, preempted or lost with their node match no such rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exit_codes: Option<OnExitCodes>,
    /// Conditions of the pod. The rule matches if the pod has one of them. Stages that are processes have no
    /// conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 20))]
    pub on_pod_conditions: Vec<OnPodCondition>,
    /// Reasons of `status.lastFailure`. The rule matches if the failure has one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 20))]
    pub on_reasons: Vec<FailureLabel>,
}

/// The exit codes that match a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnExitCodes {
    /// Whether these codes match, or all others.
    pub operator: ExitCodeOperator,
    /// Exit codes, 1 to 255.
    #[schemars(
        with = "Vec<FailureExitCode>",
        length(min = 1, max = 255),
        extend("x-expected" = "list at least one exit code")
    )]
    pub values: Vec<i32>,
}

/// A condition of a pod that matches a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnPodCondition {
    /// The condition's type, such as `DisruptionTarget`.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316), extend("x-expected" = "name a condition"))]
    pub condition_type: String,
    /// The status of the condition.
    #[serde(default)]
    pub status: ConditionStatus,
}

string_enum! {
    /// The action after a failure.
    pub enum PodFailurePolicyAction {
        /// The job fails at once.
        FailJob = "FailJob",
        /// The group restarts, and the restart does not count against the budget.
        Ignore = "Ignore",
        /// The group restarts, and the restart counts against the budget.
        Count = "Count",
    }
}

string_enum! {
    /// The comparison of exit codes.
    pub enum ExitCodeOperator {
        /// The exit code is listed.
        In = "In",
        /// The exit code is not listed.
        NotIn = "NotIn",
    }
}

string_enum! {
    /// The status of a pod's condition.
    #[derive(Default)]
    pub enum ConditionStatus {
        /// The condition is true.
        #[default]
        True = "True",
        /// The condition is false.
        False = "False",
        /// The condition is unknown.
        Unknown = "Unknown",
    }
}

string_enum! {
    /// A reason of `status.lastFailure`.
    pub enum FailureLabel {
        /// The exit code is 1 or has no meaning, or an init container failed.
        Error = "Error",
        /// The job or its plan is invalid.
        InvalidConfig = "InvalidConfig",
        /// The corpus can't be used.
        Data = "Data",
        /// The volume failed.
        Storage = "Storage",
        /// Losses or gradients were not finite.
        NonFinite = "NonFinite",
        /// Two stages disagreed.
        Mismatch = "Mismatch",
        /// An audit found that a stage computed a wrong result.
        WrongResult = "WrongResult",
        /// The stage ran out of memory.
        OutOfMemory = "OutOfMemory",
        /// The stage was killed by a signal, or evicted because of its own limits.
        Killed = "Killed",
        /// No step was finished in time.
        Stalled = "Stalled",
        /// The group did not form in time.
        StartupTimeout = "StartupTimeout",
        /// All stages lost each other.
        PeerLost = "PeerLost",
        /// The pod was deleted before the operator saw it end.
        Unknown = "Unknown",
        /// The pod was deleted, and the stage saved a checkpoint before it ended.
        Drained = "Drained",
        /// The pod was preempted by a pod of higher priority.
        Preempted = "Preempted",
        /// The pod was evicted.
        Evicted = "Evicted",
        /// The node was lost.
        NodeLost = "NodeLost",
        /// The pod was not created, scheduled or admitted in time.
        Unschedulable = "Unschedulable",
    }
}
