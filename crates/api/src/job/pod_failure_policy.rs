//! `spec.restart.podFailurePolicy`: the action after a failure, by exit code, pod condition or reason. The fields have
//! the form of a Job's `podFailurePolicy`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::number::FailureExitCode;

/// Rules for failures. The first rule that matches determines the action. If no rule matches, the reason of the failure
/// determines the action.
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
    /// The exit codes of the trainer that match the rule. A stage that was evicted, preempted or lost with its node
    /// matches no rule with exit codes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exit_codes: Option<OnExitCodes>,
    /// The pod conditions that match the rule. The rule matches if the pod has at least one of them. A stage that runs
    /// as a local process has no conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 20))]
    pub on_pod_conditions: Vec<OnPodCondition>,
    /// The reasons of `status.lastFailure` that match the rule. The rule matches if the failure has one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 20))]
    pub on_reasons: Vec<FailureLabel>,
}

/// The exit codes that match a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnExitCodes {
    /// Whether the rule matches the listed exit codes, or all exit codes that are not listed.
    pub operator: ExitCodeOperator,
    /// The exit codes, each from 1 to 255.
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
        /// The exit code is 1 or not in the contract of a stage, or an init container failed.
        Error = "Error",
        /// The job or its plan is invalid.
        InvalidConfig = "InvalidConfig",
        /// The corpus can't be read or is too small.
        Data = "Data",
        /// The volume failed, or no checkpoint on it is intact.
        Storage = "Storage",
        /// Too many consecutive steps had a loss or gradient norm that was not finite.
        NonFinite = "NonFinite",
        /// Two stages derived different values from the same plan.
        Mismatch = "Mismatch",
        /// An audit found that a stage computed a wrong result.
        WrongResult = "WrongResult",
        /// The stage ran out of memory.
        OutOfMemory = "OutOfMemory",
        /// The stage was killed by a signal, or evicted because it exceeded its limits.
        Killed = "Killed",
        /// No step was finished in time.
        Stalled = "Stalled",
        /// The group did not form in time.
        StartupTimeout = "StartupTimeout",
        /// The stages lost their connections to each other, and none of them failed by itself.
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
