//! The conditions that show whether the pods of the job run: `Scheduled` and `Running`.

use stagecoach_api::PipelineJobStatus;
use stagecoach_api::job::{JobPhase, condition_reason as reason};
use stagecoach_lifecycle::{AttemptPhase, InstanceState};

use super::super::{StatusInputs, to_rfc3339};
use super::{ConditionValue, value};
use crate::observe::{BlockingReason, ObservedPod};
use crate::rejection::Rejection;

pub(super) fn scheduled(inputs: &StatusInputs) -> ConditionValue {
    let attempt = inputs.decision.state.attempt;
    let AttemptPhase::Running { not_before, all_created } = inputs.decision.state.attempt_phase else {
        return value("False", reason::NOT_WANTED, "no pods are wanted");
    };
    if let Some(Rejection { reason: BlockingReason { reason, message }, .. }) = &inputs.rejections.start {
        return value("False", reason, message);
    }
    let stages = || inputs.pods.of_attempt(attempt.number).filter(|pod| pod.instance_id().is_some());
    if let Some((pod, BlockingReason { reason, message })) = first_blocked(stages()) {
        return value("False", reason, format!("pod {pod}: {message}"));
    }
    let pending = stages().filter(|pod| pod.state.is_pending()).count();
    match pending {
        0 if all_created => {
            let all = "all pods are scheduled and have their image".to_owned();
            let message = spares_missing(inputs).map_or(all, |why| format!("all stages are scheduled; {why}"));
            value("True", reason::ALL_SCHEDULED, message)
        }
        0 if !all_created && not_before > inputs.pods.observed_at => {
            let at = to_rfc3339(not_before);
            value("False", reason::CREATING, format!("the back-off after the last failure ends at {at}"))
        }
        0 => value("False", reason::CREATING, "pods are being created"),
        n => value(
            "False",
            reason::WAITING,
            format!("{n} of {} pods are not scheduled or wait for their image", attempt.instances()),
        ),
    }
}

/// Returns the reason why a desired spare is not created or scheduled, if such a reason exists. The stages train
/// without their spares.
fn spares_missing(inputs: &StatusInputs) -> Option<String> {
    if let Some(Rejection { reason: BlockingReason { reason, message }, .. }) = &inputs.rejections.spare {
        return Some(format!("a spare can't be created: {reason}: {message}"));
    }
    let attempt = inputs.decision.state.attempt.number;
    let spares = inputs.pods.of_attempt(attempt).filter(|pod| pod.instance_id().is_none());
    let (pod, BlockingReason { reason, message }) = first_blocked(spares)?;
    Some(format!("spare pod {pod}: {reason}: {message}"))
}

pub(super) fn running(inputs: &StatusInputs, new: &PipelineJobStatus) -> ConditionValue {
    let (ready, stages) = (new.ready_stages.unwrap_or_default(), inputs.decision.state.attempt.instances());
    match inputs.decision.job_phase {
        JobPhase::Running => {
            let spares = ready_spares(inputs);
            match inputs.missing_replicas() {
                Some(missing) => value("True", reason::REPLICAS_MISSING, format!("{missing}{spares}")),
                None => value("True", reason::ALL_READY, format!("all {stages} stages are ready{spares}")),
            }
        }
        phase => value("False", phase.as_str(), format!("{ready} of {stages} stages are ready")),
    }
}

/// Returns the end of a message, which shows how many of the desired spares are ready to replace a stage. The end is
/// empty for a job without spares.
fn ready_spares(inputs: &StatusInputs) -> String {
    let attempt = inputs.decision.state.attempt;
    let wanted = inputs.job.manifest.spec.spares;
    let waiting = inputs.pods.of_attempt(attempt.number).filter(|pod| pod.instance_id().is_none());
    let ready = waiting.filter(|pod| pod.state == InstanceState::Ready).count();
    if wanted == 0 { String::new() } else { format!("; {ready} of {wanted} spares stand by") }
}

/// Returns the name of the first of these pods that can't start, and the reason.
fn first_blocked<'p>(mut pods: impl Iterator<Item = &'p ObservedPod>) -> Option<(String, BlockingReason)> {
    pods.find_map(|pod| pod.blocking_reason.clone().map(|reason| (pod.name.clone(), reason)))
}
