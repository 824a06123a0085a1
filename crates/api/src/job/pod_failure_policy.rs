//! `spec.restart.podFailurePolicy`: what follows a failure, by exit code, pod condition or reason, in the form of a
//! Job's policy of that name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::number::FailureExitCode;

/// Rules for failures. The first that matches decides; without one, what each reason means by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodFailurePolicySpec {
    /// The rules, in order.
    #[schemars(length(min = 1, max = 20), extend("x-expected" = "give at least one rule, or remove podFailurePolicy"))]
    pub rules: Vec<PodFailurePolicyRule>,
}

/// A rule for failures of the stage that failed first. It has exactly one of `onExitCodes`, `onPodConditions` and `onReasons`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "[has(self.onExitCodes), has(self.onPodConditions), has(self.onReasons)].filter(given, given).size() == 1",
    "message": "a rule has exactly one of onExitCodes, onPodConditions and onReasons: split it, or add what is missing",
}]))]
pub struct PodFailurePolicyRule {
    /// What happens then.
    pub action: PodFailurePolicyAction,
    /// Exit codes of the trainer. Those of stages that were evicted, preempted or lost with their node match no rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exit_codes: Option<OnExitCodes>,
    /// Conditions of the pod, one of which it must have. Stages that are processes have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 20))]
    pub on_pod_conditions: Vec<OnPodCondition>,
    /// Reasons of `status.lastFailure`, one of which it must have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 20))]
    pub on_reasons: Vec<FailureLabel>,
}

/// Exit codes that a rule is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnExitCodes {
    /// Whether the rule is for these codes or for all others.
    pub operator: ExitCodeOperator,
    /// Exit codes, 1 to 255.
    #[schemars(
        with = "Vec<FailureExitCode>",
        length(min = 1, max = 255),
        extend("x-expected" = "list at least one exit code")
    )]
    pub values: Vec<i32>,
}

/// A condition of a pod that a rule is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnPodCondition {
    /// The condition's type, such as `DisruptionTarget`.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316), extend("x-expected" = "name a condition"))]
    pub condition_type: String,
    /// The status that it must have.
    #[serde(default)]
    pub status: ConditionStatus,
}

string_enum! {
    /// What happens after a failure.
    pub enum PodFailurePolicyAction {
        /// The job fails at once.
        FailJob = "FailJob",
        /// A restart that does not count against the budget.
        Ignore = "Ignore",
        /// A restart that counts against the budget.
        Count = "Count",
    }
}

string_enum! {
    /// How a rule's exit codes are compared.
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
        /// It holds.
        #[default]
        True = "True",
        /// It does not hold.
        False = "False",
        /// Nobody knows.
        Unknown = "Unknown",
    }
}

string_enum! {
    /// A reason of `status.lastFailure`.
    pub enum FailureLabel {
        /// Exit code 1, or one without a meaning; an init container failed.
        Error = "Error",
        /// The job or its plan is invalid.
        InvalidConfig = "InvalidConfig",
        /// The corpus can't be used.
        Data = "Data",
        /// The volume failed.
        Storage = "Storage",
        /// Losses or gradients are not finite.
        NonFinite = "NonFinite",
        /// Two stages disagree.
        Mismatch = "Mismatch",
        /// A stage computed something wrong.
        WrongResult = "WrongResult",
        /// Memory ran out.
        OutOfMemory = "OutOfMemory",
        /// Killed by a signal, or evicted for its own limits.
        Killed = "Killed",
        /// No step was finished in time.
        Stalled = "Stalled",
        /// The group did not form in time.
        StartupTimeout = "StartupTimeout",
        /// All stages lost each other.
        PeerLost = "PeerLost",
        /// Deleted without its exit being seen.
        Unknown = "Unknown",
        /// Deleted, after saving.
        Drained = "Drained",
        /// Preempted by a pod of higher priority.
        Preempted = "Preempted",
        /// Evicted.
        Evicted = "Evicted",
        /// The node was lost.
        NodeLost = "NodeLost",
        /// Not created, scheduled or admitted in time.
        Unschedulable = "Unschedulable",
    }
}
