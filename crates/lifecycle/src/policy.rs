//! The restart policy: limits of the spec, the rule of `restart.podFailurePolicy` that a failure matches, and whether a
//! failure ends the job or leads to a restart.

use std::time::Duration;

use stagecoach_api::contract::{DEFAULT_TERMINATION_GRACE_SECONDS, ExitCode};
use stagecoach_api::job::{
    ExitCodeOperator, OnExitCodes, OnPodCondition, PipelineJobSpec, PodFailurePolicyAction, PodFailurePolicyRule,
    RestartSpec,
};

use crate::{AttemptFailure, BACKOFF_JITTER_PERCENT, FailureReason, JobFailureReason, JobState};

/// The limits that the spec sets. Durations are in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailurePolicy {
    /// `spec.restart`
    pub restart: RestartSpec,
    /// The termination grace period of the current attempt's instances, in seconds.
    pub grace_seconds: u64,
    /// The scheduling timeout, in seconds.
    pub scheduling_timeout_seconds: u64,
    /// `spec.activeDeadlineSeconds`: the longest time for which the job may run; `None` without a limit.
    pub active_deadline_seconds: Option<u64>,
    /// The jitter of a back-off, in percent, so that jobs that failed together do not restart together.
    pub backoff_jitter_percent: u32,
    /// Whether the other stages keep running while a lost stage is replaced. If false, all stages restart.
    pub replaces_stages: bool,
    /// The number of spares of a running attempt. Without `replaces_stages`, this number has no effect.
    pub spares: u32,
    /// Whether a node can be lost before the exits of its pods are observed. If true, an instance that seems to run
    /// although its peers lost it fails as `NodeLost`. If false, it fails as `Stalled`.
    pub nodes_can_be_lost: bool,
    /// The smallest number of replicas with which a group continues to train.
    pub min_data_parallel: u32,
    /// Whether the job trains with as many replicas as the cluster can run at the moment (`spec.elastic`).
    pub is_elastic: bool,
}

impl FailurePolicy {
    /// Returns the limits of a job in a cluster.
    pub fn for_pods(spec: &PipelineJobSpec) -> Self {
        Self { backoff_jitter_percent: BACKOFF_JITTER_PERCENT, nodes_can_be_lost: true, ..Self::for_processes(spec) }
    }

    /// Returns the limits of a job whose stages are processes of this machine.
    pub fn for_processes(spec: &PipelineJobSpec) -> Self {
        let grace = spec
            .template
            .as_ref()
            .and_then(|template| template.0.get("spec")?.get("terminationGracePeriodSeconds")?.as_u64());
        Self {
            restart: spec.restart.clone(),
            grace_seconds: grace.unwrap_or(DEFAULT_TERMINATION_GRACE_SECONDS),
            scheduling_timeout_seconds: spec.scheduling.timeout_seconds.into(),
            active_deadline_seconds: spec.active_deadline_seconds,
            backoff_jitter_percent: 0,
            spares: spec.spares,
            replaces_stages: spec.replaces_stages(),
            nodes_can_be_lost: false,
            min_data_parallel: spec.min_data_parallel(),
            is_elastic: spec.elastic.is_some(),
        }
    }

    /// Returns the longest back-off.
    pub(crate) fn max_backoff(&self) -> Duration {
        let max = Duration::from_secs(self.restart.backoff.max_seconds.into());
        max.saturating_add(max.mul_f64(f64::from(self.backoff_jitter_percent) / 100.0))
    }

    /// Returns the consequence of a failure, before the budget is checked. The rules of `podFailurePolicy` come first.
    /// If no rule matches, the reason and the exit code determine the consequence. If `enough_replicas_train` is set,
    /// enough replicas continue to train in spite of the failure.
    pub(crate) fn restart_decision(
        &self,
        failure: &AttemptFailure,
        pod_conditions: &[(String, String)],
        state: &JobState,
        enough_replicas_train: bool,
    ) -> RestartDecision {
        match action_after(&self.restart, failure, pod_conditions) {
            Some(PodFailurePolicyAction::FailJob) => return RestartDecision::Fail(JobFailureReason::PodFailurePolicy),
            Some(PodFailurePolicyAction::Count) => return RestartDecision::Restart { counted: true },
            Some(PodFailurePolicyAction::Ignore) => return RestartDecision::Restart { counted: false },
            None if failure.reason.is_external() => return RestartDecision::Restart { counted: false },
            None => {}
        }
        if failure.exit_code == Some(ExitCode::InvalidConfig.code()) {
            return RestartDecision::Fail(JobFailureReason::InvalidConfig);
        }
        let signature = failure.deterministic_signature();
        if signature.is_some() && signature == state.last_deterministic_failure {
            return RestartDecision::Fail(JobFailureReason::Deterministic);
        }
        // Stages that stopped waiting for a replacement failed because of an earlier failure, which was counted.
        let was_counted = failure.reason == FailureReason::PeerLost
            && (enough_replicas_train || !state.replaced_without_progress.is_empty());
        RestartDecision::Restart { counted: failure.reason.counts_against_budget() && !was_counted }
    }
}

/// Returns the action of the first rule that matches `failure`, or `None`. `pod_conditions` has the types and statuses
/// of the pod's conditions. The entries of `restart.exitCodes` are rules too, and are checked last.
fn action_after(
    restart: &RestartSpec,
    failure: &AttemptFailure,
    pod_conditions: &[(String, String)],
) -> Option<PodFailurePolicyAction> {
    // the exit code of an evicted or lost process says nothing about the process itself
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

impl FailureReason {
    /// Whether a restart for this reason counts against the budget. External causes and deletions do not count.
    pub const fn counts_against_budget(self) -> bool {
        !matches!(self, Self::Drained | Self::Unknown) && !self.is_external()
    }

    pub(crate) const fn is_external(self) -> bool {
        matches!(self, Self::Preempted | Self::Evicted | Self::NodeLost | Self::Unschedulable)
    }
}

/// The consequence of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartDecision {
    Fail(JobFailureReason),
    Restart { counted: bool },
}
