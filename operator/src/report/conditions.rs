//! Computes the conditions of the status.

use serde::Deserialize;
use serde_json::{Value, json};
use stagecoach_api::PipelineJobStatus;
use stagecoach_api::contract::{FailureKind, SuspectedStage};
use stagecoach_api::job::{Condition, JobPhase, ScheduleSpec};
use stagecoach_display::Replicas;
use stagecoach_lifecycle::{AttemptPhase, InstanceId, InstanceState, JobOutcome, UnixMillis};

use super::{StatusInputs, first_blocked, to_rfc3339};
use crate::observe::BlockingReason;

/// The reason of `CheckpointsHealthy` while no checkpoint can be saved.
pub(super) const SAVING_FAILS: &str = "SavingFails";

/// Whether all that a second stage has computed again was the same.
const AUDITS_EQUAL: &str = "AuditsEqual";
/// The reason of `Running` while the job trains without some of its replicas.
pub(super) const REPLICAS_MISSING: &str = "ReplicasMissing";

/// The reason of `Progressing` before stage 0 answers.
const NOT_HEARD: &str = "NotHeard";

/// Reasons of `Scheduled` during a normal start-up.
const NORMAL_STARTUP_REASONS: [&str; 3] = ["Creating", "Waiting", "AllScheduled"];

/// Whether a condition only reports the normal start-up of pods.
pub(super) fn is_normal_startup(condition: &Condition) -> bool {
    let reason = condition.reason.as_str();
    match condition.kind.as_str() {
        "Scheduled" => NORMAL_STARTUP_REASONS.contains(&reason),
        "Running" => condition.status == "False",
        "Reproducible" | AUDITS_EQUAL => condition.status != "False",
        "Progressing" => ["Starting", "Restarting", NOT_HEARD].contains(&reason),
        _ => false,
    }
}

/// Status, reason and message of a condition.
struct ConditionValue {
    status: &'static str,
    reason: String,
    message: String,
}

fn value(status: &'static str, reason: impl Into<String>, message: impl Into<String>) -> ConditionValue {
    ConditionValue { status, reason: reason.into(), message: message.into() }
}

/// All conditions. `lastTransitionTime` changes only with the condition's status.
pub(super) fn conditions(inputs: &StatusInputs, new: &PipelineJobStatus) -> Vec<Condition> {
    let phase = inputs.decision.job_phase;
    let values = [
        ("Accepted", accepted(inputs)),
        ("Scheduled", scheduled(inputs)),
        ("Running", running(inputs, new)),
        ("Progressing", progressing(inputs)),
        ("CheckpointsHealthy", checkpoints(inputs, new)),
        ("Reproducible", reproducible(inputs)),
        (AUDITS_EQUAL, audits_equal(inputs)),
        (
            "Suspended",
            match phase {
                JobPhase::Suspended => value("True", "Suspended", "the job is suspended"),
                _ => value("False", "NotSuspended", "the job is not suspended"),
            },
        ),
        (
            "Complete",
            match phase {
                JobPhase::Complete => value("True", "Complete", "training is complete"),
                _ => value("False", "NotComplete", "training is not complete"),
            },
        ),
        ("Failed", failed(inputs)),
        ("Ready", ready(inputs)),
        ("Reconciling", reconciling(inputs)),
        ("Stalled", stalled(inputs)),
    ];
    let old = &inputs.job.status.conditions;
    values.into_iter().map(|(kind, value)| condition(kind, value, old, inputs.job.generation, inputs.now)).collect()
}

/// The status of a job that can't be acted on: `old`, which may not be readable, with `Accepted` as `False`.
pub(crate) fn rejected(old: &Value, reason: &str, message: &str, generation: i64, now: UnixMillis) -> Value {
    let all = old["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let of_rejection = [("Accepted", "False"), ("Ready", "False"), ("Reconciling", "False"), ("Stalled", "True")];
    let is_replaced = |other: &Value| of_rejection.iter().any(|(kind, _)| other["type"] == *kind);
    let (before, others): (Vec<&Value>, Vec<&Value>) = all.iter().partition(|other| is_replaced(other));
    let before: Vec<Condition> = before.into_iter().filter_map(|before| Condition::deserialize(before).ok()).collect();
    let rejected =
        of_rejection.map(|(kind, status)| condition(kind, value(status, reason, message), &before, generation, now));
    let mut status = old.as_object().cloned().unwrap_or_default();
    status.entry("phase").or_insert_with(|| json!(JobPhase::default()));
    status.insert("observedGeneration".into(), json!(generation));
    status.insert(
        "conditions".into(),
        rejected.into_iter().map(|condition| json!(condition)).chain(others.into_iter().cloned()).collect(),
    );
    status.into()
}

fn condition(kind: &str, value: ConditionValue, old: &[Condition], generation: i64, now: UnixMillis) -> Condition {
    let before = old.iter().find(|condition| condition.kind == kind && condition.status == value.status);
    let since = before.and_then(|condition| condition.last_transition_time.clone());
    Condition {
        kind: kind.into(),
        status: value.status.into(),
        observed_generation: Some(generation),
        last_transition_time: since.or_else(|| Some(to_rfc3339(now))),
        reason: value.reason,
        message: value.message,
    }
}

fn accepted(inputs: &StatusInputs) -> ConditionValue {
    let unknown = &inputs.job.unknown_fields;
    if !unknown.is_empty() {
        let message =
            format!("the job runs without what this version of the operator does not know: {}", unknown.join(", "));
        return value("True", "UnknownFields", message);
    }
    let spec = &inputs.job.manifest.spec;
    // the schedule Auto may choose as many chunks as the partition is for
    let chunks = (spec.stages * spec.pipeline.virtual_stages) as usize;
    let has_choice = matches!(spec.pipeline.schedule, ScheduleSpec::Auto);
    match spec.pipeline.unfitting_partition(chunks).filter(|_| !has_choice) {
        Some(unfitting) => value("True", "PartitionComputed", unfitting),
        None => value("True", "Valid", "the job is valid"),
    }
}

fn scheduled(inputs: &StatusInputs) -> ConditionValue {
    let attempt = inputs.decision.state.attempt;
    let AttemptPhase::Running { all_created, .. } = inputs.decision.state.attempt_phase else {
        return value("False", "NotWanted", "no pods are wanted");
    };
    if let Some(BlockingReason { reason, message }) = inputs.rejection {
        return value("False", reason.clone(), message.clone());
    }
    let stages = || inputs.snapshot.pods_of_attempt(attempt.number).filter(|pod| pod.instance_id().is_some());
    if let Some((pod, BlockingReason { reason, message })) = first_blocked(stages()) {
        return value("False", reason, format!("pod {pod}: {message}"));
    }
    let pending = stages().filter(|pod| pod.state.is_pending()).count();
    match pending {
        0 if all_created => {
            let all = "all pods are scheduled and have their image".to_owned();
            let message = spares_missing(inputs).map_or(all, |why| format!("all stages are scheduled; {why}"));
            value("True", "AllScheduled", message)
        }
        0 => value("False", "Creating", "pods are being created"),
        n => value(
            "False",
            "Waiting",
            format!("{n} of {} pods are not scheduled or wait for their image", attempt.mesh.ranks()),
        ),
    }
}

/// Why spares are missing that the cluster does not create or schedule: the stages train without them.
fn spares_missing(inputs: &StatusInputs) -> Option<String> {
    if let Some(BlockingReason { reason, message }) = inputs.spare_rejection {
        return Some(format!("a spare can't be created: {reason}: {message}"));
    }
    let attempt = inputs.decision.state.attempt.number;
    let spares = inputs.snapshot.pods_of_attempt(attempt).filter(|pod| pod.instance_id().is_none());
    let (pod, BlockingReason { reason, message }) = first_blocked(spares)?;
    Some(format!("spare pod {pod}: {reason}: {message}"))
}

/// How many of the wanted spares would take a place at once; nothing of a job without.
fn spares_standing_by(inputs: &StatusInputs) -> String {
    let attempt = inputs.decision.state.attempt;
    let wanted = inputs.job.manifest.spec.spares;
    let waiting = inputs.snapshot.pods_of_attempt(attempt.number).filter(|pod| pod.instance_id().is_none());
    let ready = waiting.filter(|pod| pod.state == InstanceState::Ready).count();
    if wanted == 0 { String::new() } else { format!("; {ready} of {wanted} spares stand by") }
}

/// That the job trains without some of its replicas, if it does.
pub(super) fn missing_replicas(inputs: &StatusInputs) -> Option<String> {
    Replicas::of(inputs.decision.state.attempt.mesh, inputs.training_replicas())?.missing()
}

fn running(inputs: &StatusInputs, new: &PipelineJobStatus) -> ConditionValue {
    let (ready, stages) = (new.ready_stages.unwrap_or_default(), inputs.decision.state.attempt.mesh.ranks());
    match inputs.decision.job_phase {
        JobPhase::Running => {
            let spares = spares_standing_by(inputs);
            match missing_replicas(inputs) {
                Some(words) => value("True", REPLICAS_MISSING, format!("{words}{spares}")),
                None => value("True", "AllReady", format!("all {stages} stages are ready{spares}")),
            }
        }
        phase => value("False", phase.to_string(), format!("{ready} of {stages} stages are ready")),
    }
}

fn progressing(inputs: &StatusInputs) -> ConditionValue {
    let alive = matches!(inputs.decision.job_phase, JobPhase::Running | JobPhase::Starting | JobPhase::Draining);
    let Some(polled) = inputs.snapshot.leader_status.as_ref().filter(|_| alive) else {
        return match inputs.decision.job_phase {
            JobPhase::Running => value("Unknown", NOT_HEARD, "stage 0 has not answered yet"),
            _ if alive && inputs.snapshot.leader_is_silent => {
                value("Unknown", NOT_HEARD, "stage 0 runs and has not answered yet")
            }
            phase => value("False", phase.to_string(), "nothing is being trained"),
        };
    };
    match (polled.is_reachable, polled.is_training()) {
        (false, _) => value("Unknown", "StatusUnreachable", "stage 0 does not answer: training may go on all the same"),
        (true, true) => value("True", "Training", "steps are being trained"),
        (true, false) => {
            let stage_phase = polled.status.phase.to_string();
            let message =
                if polled.status.message.is_empty() { stage_phase.clone() } else { polled.status.message.clone() };
            value("True", stage_phase, message)
        }
    }
}

fn checkpoints(inputs: &StatusInputs, new: &PipelineJobStatus) -> ConditionValue {
    let off = inputs.job.manifest.spec.checkpoint.every_steps == 0;
    let failing = inputs.snapshot.leader_status.as_ref().and_then(|polled| polled.status.save_failure.clone());
    if let Some(message) = failing {
        return value("False", SAVING_FAILS, message);
    }
    // the condition stays until a checkpoint is committed, also across attempts
    let before = inputs.job.status.conditions.iter().find(|old| old.reason == SAVING_FAILS);
    let present = inputs.decision.state.attempt.number;
    let known = inputs.snapshot.leader_status.as_ref().and_then(|polled| polled.status.checkpoint.as_ref());
    let saved =
        known.is_some_and(|known| known.attempt == Some(present)) || new.checkpoint != inputs.job.status.checkpoint;
    if let Some(before) = before.filter(|_| !saved) {
        return value("False", SAVING_FAILS, before.message.clone());
    }
    match &new.checkpoint {
        Some(checkpoint) => value("True", "Committed", format!("step {} is committed", checkpoint.step)),
        None if off => value("Unknown", "Off", "checkpoint.everySteps is 0: only the end is saved"),
        None => value("Unknown", "NoneYet", "no checkpoint is committed yet"),
    }
}

/// Whether the job is as the spec wants it; with the next two what kstatus, and so Flux, reads of any object. Reasons stay the
/// same through a start: how far it is, the other conditions say.
fn ready(inputs: &StatusInputs) -> ConditionValue {
    match inputs.decision.job_phase {
        JobPhase::Running => {
            value("True", "Running", missing_replicas(inputs).unwrap_or_else(|| "all stages are ready".into()))
        }
        JobPhase::Suspended => value("True", "Suspended", "the job is suspended, as spec.suspend wants it"),
        JobPhase::Complete => value("True", "Complete", "training is complete"),
        JobPhase::Failed => ConditionValue { status: "False", ..failed(inputs) },
        JobPhase::Pending | JobPhase::Starting | JobPhase::Restarting | JobPhase::Draining => {
            value("False", "Progressing", "stages are being started or stopped")
        }
    }
}

fn reconciling(inputs: &StatusInputs) -> ConditionValue {
    let ready = ready(inputs);
    match ready.reason.as_str() {
        "Progressing" => ConditionValue { status: "True", ..ready },
        _ => ConditionValue { status: "False", ..ready },
    }
}

fn stalled(inputs: &StatusInputs) -> ConditionValue {
    match failed(inputs) {
        failed if failed.status == "True" => failed,
        _ => value("False", "NotStalled", "the operator can go on"),
    }
}

fn reproducible(inputs: &StatusInputs) -> ConditionValue {
    let polled = inputs.snapshot.leader_status.as_ref();
    match polled.and_then(|polled| polled.status.environment_differences.as_deref()) {
        Some([]) => value("True", "OneEnvironment", "all that changes bits was the same since the first step"),
        Some(differences) => value(
            "False",
            "EnvironmentChanged",
            format!("the numbers may differ from a run's in one environment: {}", differences.join(", ")),
        ),
        // what was known stays, also when the job is over
        None => match inputs.job.status.conditions.iter().find(|old| old.kind == "Reproducible") {
            Some(Condition { status, reason, message, .. }) if status == "True" => value("True", reason, message),
            Some(Condition { status, reason, message, .. }) if status == "False" => value("False", reason, message),
            _ => value("Unknown", NOT_HEARD, "stage 0 has not said in what environment it trains"),
        },
    }
}

fn audits_equal(inputs: &StatusInputs) -> ConditionValue {
    let spec = &inputs.job.manifest.spec;
    let found = inputs.snapshot.leader_status.as_ref().and_then(|polled| polled.status.audit.as_ref());
    let difference = found.and_then(|audit| Some((audit.differences.last()?.clone(), audit.suspects.clone())));
    // stage 0 may have ended with it before it was asked
    let failure = inputs.decision.state.last_failure.as_ref();
    let failure = failure.filter(|failure| failure.kind == Some(FailureKind::WrongResult));
    let of_failure = || {
        let instance = failure?.instance_id()?;
        let suspect = SuspectedStage { stage: instance.rank, incarnation: instance.incarnation };
        Some((failure?.message.clone(), vec![suspect]))
    };
    let before = inputs.job.status.conditions.iter().find(|old| old.kind == AUDITS_EQUAL);
    let known = |status: &str| before.filter(|old| old.status == status);
    match difference.or_else(of_failure) {
        Some((message, suspects)) => match known("False").filter(|old| old.message.starts_with(&message)) {
            Some(old) => value("False", &old.reason, &old.message),
            None => value("False", "StageDiffers", message + &on_nodes(inputs, &suspects)),
        },
        // it stays: what was computed wrong may be in the weights
        None => match known("False") {
            Some(old) => value("False", &old.reason, &old.message),
            None if found.is_some() || known("True").is_some() => {
                value("True", "Equal", "all that a second stage has computed again was the same, bit for bit")
            }
            None if spec.audit().is_none() => {
                value("Unknown", "Off", "training.audit is not given, or there is no second stage")
            }
            None => value("Unknown", "NoneYet", "nothing was audited yet"),
        },
    }
}

/// On which nodes the pods of these stages are, as far as they are still there.
fn on_nodes(inputs: &StatusInputs, suspects: &[SuspectedStage]) -> String {
    let attempt = inputs.decision.state.last_failure.as_ref().map_or(0, |failure| failure.attempt);
    let attempts = [inputs.decision.state.attempt.number, attempt];
    let name = |suspect: &SuspectedStage| {
        let instance = InstanceId { rank: suspect.stage, incarnation: suspect.incarnation };
        let mut pods = attempts.iter().flat_map(|&attempt| inputs.snapshot.pods_of_attempt(attempt));
        let pod = pods.find(|pod| pod.instance_id() == Some(instance))?;
        Some(format!("pod {} is on node {}", pod.name, pod.node.as_ref()?))
    };
    let named: Vec<String> = suspects.iter().filter_map(name).collect();
    if named.is_empty() { String::new() } else { format!("; {}", named.join(", ")) }
}

fn failed(inputs: &StatusInputs) -> ConditionValue {
    let state = &inputs.decision.state;
    let Some(JobOutcome::Failed(reason)) = state.outcome() else {
        return value("False", "NotFailed", "the job has not failed");
    };
    let cause = state.last_failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default();
    let why = reason.explanation();
    let message = if cause.is_empty() { why.to_owned() } else { format!("{why}: {cause}") };
    value("True", format!("{reason:?}"), message)
}
