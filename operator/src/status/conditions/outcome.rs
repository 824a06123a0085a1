//! The conditions about the outcome of the job: `Suspended`, `Complete` and `Failed`, and the conditions that kstatus
//! reads.

use stagecoach_api::PipelineJobStatus;
use stagecoach_api::job::{JobPhase, condition_reason as reason, condition_type as kind};
use stagecoach_lifecycle::JobOutcome;

use super::super::{StatusInputs, stage_prefix};
use super::{ConditionValue, abridged, value};

pub(super) fn suspended(inputs: &StatusInputs) -> ConditionValue {
    match inputs.decision.job_phase {
        phase @ JobPhase::Suspended => value("True", phase.as_str(), "the job is suspended"),
        _ => value("False", reason::NOT_SUSPENDED, "the job is not suspended"),
    }
}

pub(super) fn complete(inputs: &StatusInputs, new: &PipelineJobStatus) -> ConditionValue {
    match inputs.decision.job_phase {
        phase @ JobPhase::Complete => match new.progress.as_ref().and_then(|progress| progress.ended_early.as_ref()) {
            Some(why) => value("True", reason::NO_IMPROVEMENT, why),
            None => value("True", phase.as_str(), "training is complete"),
        },
        _ => value("False", reason::NOT_COMPLETE, "training is not complete"),
    }
}

pub(super) fn failed(inputs: &StatusInputs) -> ConditionValue {
    let state = &inputs.decision.state;
    let Some(JobOutcome::Failed(reason)) = state.outcome() else {
        return value("False", reason::NOT_FAILED, "the job has not failed");
    };
    let why = reason.explanation();
    let message = match state.last_failure.as_ref().filter(|failure| !failure.message.is_empty()) {
        Some(failure) => format!("{why}: {}{}", stage_prefix(failure), failure.message),
        None => why.to_owned(),
    };
    value("True", format!("{reason:?}"), message)
}

/// Returns the condition `Ready`: whether the job is in the desired state. kstatus, which Flux uses, reads `Ready`,
/// `Reconciling` and `Stalled` of any object. The reason does not change during a start, because the job's other
/// conditions show the progress of the start.
pub(super) fn ready(inputs: &StatusInputs, new: &PipelineJobStatus) -> ConditionValue {
    match inputs.decision.job_phase {
        JobPhase::Running => value(
            "True",
            JobPhase::Running.as_str(),
            inputs.missing_replicas().unwrap_or_else(|| "all stages are ready".into()),
        ),
        JobPhase::Suspended => {
            value("True", JobPhase::Suspended.as_str(), "the job is suspended, as spec.suspend requests")
        }
        phase @ JobPhase::Complete => {
            ConditionValue { reason: phase.as_str().into(), ..abridged(complete(inputs, new), kind::COMPLETE) }
        }
        JobPhase::Failed => ConditionValue { status: "False", ..abridged(failed(inputs), kind::FAILED) },
        JobPhase::Pending | JobPhase::Starting | JobPhase::Restarting | JobPhase::Draining => {
            let waits = inputs.queue.as_ref().filter(|queue| !queue.is_admitted);
            let message = waits.map_or("stages are being started or stopped", |queue| &queue.message);
            abridged(value("False", reason::PROGRESSING, message), kind::ADMITTED)
        }
    }
}

pub(super) fn reconciling(inputs: &StatusInputs, new: &PipelineJobStatus) -> ConditionValue {
    let ready = ready(inputs, new);
    match ready.reason.as_str() {
        reason::PROGRESSING => ConditionValue { status: "True", ..ready },
        _ => ConditionValue { status: "False", ..ready },
    }
}

pub(super) fn stalled(inputs: &StatusInputs) -> ConditionValue {
    match failed(inputs) {
        failed if failed.status == "True" => abridged(failed, kind::FAILED),
        _ => value("False", reason::NOT_STALLED, "the operator can continue"),
    }
}
