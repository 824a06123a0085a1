//! The limits that the spec sets, and what follows a failure: the end, or a restart that counts or does not.

use stagecoach_api::contract::ExitCode;
use stagecoach_api::job::{ExitAction, PipelineJobSpec, Restart};

use crate::{FailReason, Failure, Reason, State};

/// Seconds that a stage has to save and leave, unless the pods' template says otherwise.
pub const DEFAULT_GRACE_SECONDS: u64 = 120;

/// The limits that the spec sets; durations in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `spec.restart`
    pub restart: Restart,
    /// What a member has to save and leave when it is asked to.
    pub grace: u64,
    /// What members may wait for their places.
    pub scheduling_timeout: u64,
    /// What the job may take from its start.
    pub active_deadline: Option<u64>,
    /// Whether members run on machines that can be lost without a trace. A member that still seems to run while all
    /// others lost it is then on a lost node, else it hangs.
    pub nodes_may_vanish: bool,
}

impl Policy {
    /// The limits of a job in a cluster.
    pub fn for_pods(spec: &PipelineJobSpec) -> Self {
        Self { nodes_may_vanish: true, ..Self::for_processes(spec) }
    }

    /// The limits of a job whose stages are processes of this machine.
    pub fn for_processes(spec: &PipelineJobSpec) -> Self {
        let grace = spec
            .template
            .as_ref()
            .and_then(|template| template.0.get("spec")?.get("terminationGracePeriodSeconds")?.as_u64());
        Self {
            restart: spec.restart.clone(),
            grace: grace.unwrap_or(DEFAULT_GRACE_SECONDS),
            scheduling_timeout: spec.scheduling.timeout_seconds.into(),
            active_deadline: spec.active_deadline_seconds,
            nodes_may_vanish: false,
        }
    }

    /// What follows a failure, the budget apart. What came from outside is nobody's fault, whatever the code; then the
    /// user's rules count, then the contract's.
    pub(crate) fn verdict(&self, failure: &Failure, state: &State) -> Verdict {
        if failure.reason.is_external() {
            return Verdict::Restart { counted: false };
        }
        let rule = failure.code.and_then(|code| self.restart.exit_codes.iter().find(|rule| rule.codes.contains(&code)));
        match rule.map(|rule| rule.action) {
            Some(ExitAction::Fail) => return Verdict::Fail(FailReason::ExitCodeRule),
            Some(ExitAction::Restart) => return Verdict::Restart { counted: true },
            Some(ExitAction::RestartUncounted) => return Verdict::Restart { counted: false },
            None => {}
        }
        if failure.code == Some(ExitCode::InvalidConfig.code()) {
            return Verdict::Fail(FailReason::InvalidConfig);
        }
        let signature = failure.deterministic();
        if signature.is_some() && signature == state.deterministic {
            return Verdict::Fail(FailReason::Deterministic);
        }
        Verdict::Restart { counted: failure.reason.counts() }
    }
}

impl Reason {
    /// Whether a restart for this reason counts against the budget: the job can't help what comes from outside.
    pub const fn counts(self) -> bool {
        !matches!(self, Self::Drained) && !self.is_external()
    }

    const fn is_external(self) -> bool {
        matches!(self, Self::Preempted | Self::Evicted | Self::NodeLost | Self::Unschedulable)
    }
}

/// What follows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fail(FailReason),
    Restart { counted: bool },
}
