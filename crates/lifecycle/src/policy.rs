//! The restart policy: limits of the spec, and whether a failure ends the job or leads to a restart.

use std::time::Duration;

use stagecoach_api::contract::{DEFAULT_TERMINATION_GRACE_SECONDS, ExitCode};
use stagecoach_api::job::{PipelineJobSpec, PodFailurePolicyAction, RestartSpec};

use crate::{AttemptFailure, BACKOFF_JITTER_PERCENT, FailureReason, JobFailureReason, JobState, pod_failure_policy};

/// The limits that the spec sets; durations in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `spec.restart`
    pub restart: RestartSpec,
    /// Termination grace period of the current attempt's instances, in seconds.
    pub grace_seconds: u64,
    /// Scheduling timeout, in seconds.
    pub scheduling_timeout_seconds: u64,
    /// Longest duration of the job, in seconds.
    pub active_deadline_seconds: Option<u64>,
    /// The jitter of a back-off, in percent, so that jobs that failed together do not restart together.
    pub backoff_jitter_percent: u32,
    /// Whether the other stages continue once a lost stage was replaced. Otherwise the whole group restarts.
    pub replaces_stages: bool,
    /// The number of spares beside the stages of a running attempt; without effect where lost stages are not replaced.
    pub spares: u32,
    /// Whether a node can be lost without an observation of its pods' exits. If so, an instance that still seems to run
    /// although its peers lost it is `NodeLost`, otherwise `Stalled`.
    pub nodes_can_be_lost: bool,
    /// The minimal number of replicas with which a group continues to train.
    pub min_data_parallel: u32,
    /// Whether the number of replicas follows the instances that the cluster can run.
    pub is_elastic: bool,
}

impl Policy {
    /// The limits of a job in a cluster.
    pub fn for_pods(spec: &PipelineJobSpec) -> Self {
        Self { backoff_jitter_percent: BACKOFF_JITTER_PERCENT, nodes_can_be_lost: true, ..Self::for_processes(spec) }
    }

    /// The limits of a job whose stages are processes of this machine.
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

    /// The longest back-off.
    pub(crate) fn max_backoff(&self) -> Duration {
        let max = Duration::from_secs(self.restart.backoff.max_seconds.into());
        max.saturating_add(max.mul_f64(f64::from(self.backoff_jitter_percent) / 100.0))
    }

    /// The consequence of a failure, before the budget is checked. The user's rules decide first, then the contract of
    /// exit codes. `enough_replicas_train` means that the failure ended no group.
    pub(crate) fn restart_decision(
        &self,
        failure: &AttemptFailure,
        pod_conditions: &[(String, String)],
        state: &JobState,
        enough_replicas_train: bool,
    ) -> RestartDecision {
        match pod_failure_policy::action_after(&self.restart, failure, pod_conditions) {
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
        // stages that gave up waiting for a replacement failed because of an earlier failure, which was counted
        let was_counted = failure.reason == FailureReason::PeerLost
            && (enough_replicas_train || !state.replaced_without_progress.is_empty());
        RestartDecision::Restart { counted: failure.reason.counts_against_budget() && !was_counted }
    }
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
