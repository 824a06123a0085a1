//! The conditions: one aspect each, true or false with a reason and a sentence.

use serde::Deserialize;
use serde_json::{Value, json};
use stagecoach_api::PipelineJobStatus;
use stagecoach_api::job::{Condition, Phase};
use stagecoach_lifecycle::{AttemptPhase, InstanceState, JobFailureReason, JobOutcome, UnixMillis};

use super::{Facts, pod_trouble, stamp};
use crate::observe::Trouble;

/// The reason for which checkpoints are not healthy.
pub(super) const SAVING_FAILS: &str = "SavingFails";

/// What `Scheduled` says of an attempt that comes up as it should.
const USUAL: [&str; 3] = ["Creating", "Waiting", "AllScheduled"];

/// Whether a condition tells no more than that pods come one after the other.
pub(super) fn is_usual(condition: &Condition) -> bool {
    let reason = condition.reason.as_str();
    match condition.kind.as_str() {
        "Scheduled" => USUAL.contains(&reason),
        "Running" => condition.status == "False",
        "Progressing" => ["Starting", "Restarting"].contains(&reason),
        _ => false,
    }
}

/// Whether it is so, why in one word, and a sentence.
type Told = (&'static str, String, String);

fn told(status: &'static str, reason: impl Into<String>, message: impl Into<String>) -> Told {
    (status, reason.into(), message.into())
}

/// All conditions, of which those that did not change keep their time.
pub(super) fn conditions(facts: &Facts, new: &PipelineJobStatus) -> Vec<Condition> {
    let phase = facts.decision.job_phase;
    let aspects = [
        ("Accepted", told("True", "Valid", "the job is valid")),
        ("Scheduled", scheduled(facts)),
        ("Running", running(facts, new)),
        ("Progressing", progressing(facts)),
        ("CheckpointsHealthy", checkpoints(facts, new)),
        (
            "Suspended",
            match phase {
                Phase::Suspended => told("True", "Suspended", "the job is suspended"),
                _ => told("False", "NotSuspended", "the job is not suspended"),
            },
        ),
        (
            "Complete",
            match phase {
                Phase::Complete => told("True", "Complete", "training is complete"),
                _ => told("False", "NotComplete", "training is not complete"),
            },
        ),
        ("Failed", failed(facts)),
    ];
    let old = &facts.job.status.conditions;
    aspects.into_iter().map(|(kind, told)| condition(kind, told, old, facts.job.generation, facts.now)).collect()
}

/// The status of a job that can't be acted on: `old`, which may not be readable, with `Accepted` as `False`.
pub(crate) fn refused(old: &Value, reason: &str, message: &str, generation: i64, now: UnixMillis) -> Value {
    let all = old["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let (before, others): (Vec<&Value>, Vec<&Value>) = all.iter().partition(|other| other["type"] == "Accepted");
    let before: Vec<Condition> = before.into_iter().filter_map(|before| Condition::deserialize(before).ok()).collect();
    let accepted = condition("Accepted", told("False", reason, message), &before, generation, now);
    let mut status = old.as_object().cloned().unwrap_or_default();
    status.entry("phase").or_insert_with(|| json!(Phase::default()));
    status.insert("observedGeneration".into(), json!(generation));
    status.insert("conditions".into(), std::iter::once(json!(accepted)).chain(others.into_iter().cloned()).collect());
    status.into()
}

fn condition(
    kind: &str,
    (status, reason, message): Told,
    old: &[Condition],
    generation: i64,
    now: UnixMillis,
) -> Condition {
    let before = old.iter().find(|condition| condition.kind == kind && condition.status == status);
    let since = before.and_then(|condition| condition.last_transition_time.clone());
    Condition {
        kind: kind.into(),
        status: status.into(),
        observed_generation: Some(generation),
        last_transition_time: since.or_else(|| Some(stamp(now))),
        reason,
        message,
    }
}

fn scheduled(facts: &Facts) -> Told {
    let attempt = facts.decision.state.attempt;
    let AttemptPhase::Running { all_created, .. } = facts.decision.state.attempt_phase else {
        return told("False", "NotWanted", "no pods are wanted");
    };
    if let Some(Trouble { reason, message }) = facts.refused {
        return told("False", reason.clone(), message.clone());
    }
    if let Some((pod, Trouble { reason, message })) = pod_trouble(facts.look, attempt.number) {
        return told("False", reason, format!("pod {pod}: {message}"));
    }
    let pending = facts.look.of(attempt.number).filter(|pod| pod.instance.state == InstanceState::Pending).count();
    match pending {
        0 if all_created => told("True", "AllScheduled", "all pods have a place"),
        0 => told("False", "Creating", "pods are being created"),
        n => told("False", "Waiting", format!("{n} of {} pods wait for a place or their image", attempt.stages)),
    }
}

fn running(facts: &Facts, new: &PipelineJobStatus) -> Told {
    let (ready, stages) = (new.ready_stages.unwrap_or_default(), facts.decision.state.attempt.stages);
    match facts.decision.job_phase {
        Phase::Running => told("True", "AllReady", format!("all {stages} stages are ready")),
        phase => told("False", phase.to_string(), format!("{ready} of {stages} stages are ready")),
    }
}

fn progressing(facts: &Facts) -> Told {
    let alive = matches!(facts.decision.job_phase, Phase::Running | Phase::Starting | Phase::Draining);
    let Some(polled) = facts.look.polled.as_ref().filter(|_| alive) else {
        return match facts.decision.job_phase {
            Phase::Running => told("Unknown", "NotHeard", "stage 0 was not heard yet"),
            phase => told("False", phase.to_string(), "nothing is being trained"),
        };
    };
    match (polled.answered, polled.is_training()) {
        (false, _) => told("Unknown", "StatusUnreachable", "stage 0 does not answer: training may go on all the same"),
        (true, true) => told("True", "Training", "steps are being trained"),
        (true, false) => {
            let stage_phase = polled.status.phase.to_string();
            let message =
                if polled.status.message.is_empty() { stage_phase.clone() } else { polled.status.message.clone() };
            told("True", stage_phase, message)
        }
    }
}

fn checkpoints(facts: &Facts, new: &PipelineJobStatus) -> Told {
    let off = facts.job.job.spec.checkpoint.every_steps == 0;
    let failing = facts.look.polled.as_ref().and_then(|polled| polled.status.save_failure.clone());
    if let Some(message) = failing {
        return told("False", SAVING_FAILS, message);
    }
    // until one is committed: a new attempt that has not tried yet says nothing of it
    let before = facts.job.status.conditions.iter().find(|old| old.reason == SAVING_FAILS);
    let present = facts.decision.state.attempt.number;
    let known = facts.look.polled.as_ref().and_then(|polled| polled.status.checkpoint.as_ref());
    let saved =
        known.is_some_and(|known| known.attempt == Some(present)) || new.checkpoint != facts.job.status.checkpoint;
    if let Some(before) = before.filter(|_| !saved) {
        return told("False", SAVING_FAILS, before.message.clone());
    }
    match &new.checkpoint {
        Some(checkpoint) => told("True", "Committed", format!("step {} is committed", checkpoint.step)),
        None if off => told("Unknown", "Off", "checkpoint.everySteps is 0: only the end is saved"),
        None => told("Unknown", "NoneYet", "no checkpoint is committed yet"),
    }
}

fn failed(facts: &Facts) -> Told {
    let state = &facts.decision.state;
    let Some(JobOutcome::Failed(reason)) = state.outcome() else {
        return told("False", "NotFailed", "the job has not failed");
    };
    let cause = state.last_failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default();
    let why = match reason {
        JobFailureReason::InvalidConfig => "a stage found the job invalid",
        JobFailureReason::ExitCodeRule => "a rule of restart.exitCodes says so",
        JobFailureReason::Deterministic => "the same failure came again at the same step",
        JobFailureReason::BudgetExhausted => "restart.maxRestarts is used up",
        JobFailureReason::DeadlineExceeded => "activeDeadlineSeconds have passed",
    };
    let message = if cause.is_empty() { why.to_owned() } else { format!("{why}: {cause}") };
    told("True", format!("{reason:?}"), message)
}
