//! The rule of `restart.podFailurePolicy` that a failure matches.

use stagecoach_api::job::{
    ExitCodeOperator, OnExitCodes, OnPodCondition, PodFailurePolicyAction, PodFailurePolicyRule, RestartSpec,
};

use crate::AttemptFailure;

/// The user's action for `failure`, whose pod has conditions of these types and statuses; `None` if no rule matches.
/// The entries of `restart.exitCodes` are rules as well, checked last.
pub(crate) fn action_after(
    restart: &RestartSpec,
    failure: &AttemptFailure,
    pod_conditions: &[(String, String)],
) -> Option<PodFailurePolicyAction> {
    // an evicted or lost process did not choose its exit code
    let exit_code = failure.exit_code.filter(|_| !failure.reason.is_external());
    let label = failure.label();
    let lists_code = |rule: &OnExitCodes| {
        exit_code.is_some_and(|code| rule.values.contains(&code) == (rule.operator == ExitCodeOperator::In))
    };
    let has_condition = |wanted: &OnPodCondition| {
        let is_wanted =
            |(kind, status): &(String, String)| *kind == wanted.condition_type && status == wanted.status.as_str();
        pod_conditions.iter().any(is_wanted)
    };
    let matches = |rule: &&PodFailurePolicyRule| {
        rule.on_exit_codes.as_ref().is_some_and(lists_code)
            || rule.on_pod_conditions.iter().any(has_condition)
            || rule.on_reasons.iter().any(|reason| reason.as_str() == label)
    };
    let rules = restart.pod_failure_policy.iter().flat_map(|policy| &policy.rules);
    let older = restart.exit_codes.iter().filter(|rule| exit_code.is_some_and(|code| rule.codes.contains(&code)));
    rules.filter(matches).map(|rule| rule.action).chain(older.map(|rule| rule.action.into())).next()
}
