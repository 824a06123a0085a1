//! Computes the conditions of the status.

mod objects;
mod outcome;
mod pods;
mod training;

use serde::Deserialize;
use serde_json::{Value, json};
use stagecoach_api::job::{Condition, JobPhase, ScheduleSpec, condition_reason as reason, condition_type as kind};
use stagecoach_api::{PipelineJobStatus, visible};
use stagecoach_lifecycle::UnixMillis;

use super::{StatusInputs, to_rfc3339};
use crate::build::surplus_gpus;

/// Whether a condition only reports the normal start-up of pods.
pub(super) fn is_normal_startup(condition: &Condition) -> bool {
    let reason = condition.reason.as_str();
    match condition.kind.as_str() {
        kind::SCHEDULED => [reason::CREATING, reason::WAITING, reason::ALL_SCHEDULED].contains(&reason),
        kind::RUNNING => condition.status == "False",
        kind::REPRODUCIBLE | kind::AUDITS_EQUAL => condition.status != "False",
        kind::PROGRESSING => {
            [JobPhase::Starting.as_str(), JobPhase::Restarting.as_str(), reason::NOT_HEARD].contains(&reason)
        }
        _ => false,
    }
}

/// The status, the reason and the message of a condition.
struct ConditionValue {
    status: &'static str,
    reason: String,
    message: String,
}

fn value(status: &'static str, reason: impl Into<String>, message: impl Into<String>) -> ConditionValue {
    ConditionValue { status, reason: reason.into(), message: message.into() }
}

/// The longest message that a condition of kstatus repeats, in characters. kstatus is the library with which tools such
/// as Flux read the status of any object.
const MAX_REPEATED: usize = 300;

/// Returns `value` with its message cut to `MAX_REPEATED` characters. The condition `source` has the whole message.
/// Without the cut, the three conditions of kstatus would repeat kilobytes.
fn abridged(value: ConditionValue, source: &str) -> ConditionValue {
    match value.message.char_indices().nth(MAX_REPEATED) {
        Some((end, _)) => {
            let message = format!("{}… (the condition {source} has the whole message)", &value.message[..end]);
            ConditionValue { message, ..value }
        }
        None => value,
    }
}

/// Returns all conditions. `lastTransitionTime` changes only with the condition's status.
pub(super) fn conditions(inputs: &StatusInputs, new: &PipelineJobStatus) -> Vec<Condition> {
    let values = [
        (kind::ACCEPTED, accepted(inputs)),
        (kind::SCHEDULED, pods::scheduled(inputs)),
        (kind::RUNNING, pods::running(inputs, new)),
        (kind::PROGRESSING, training::progressing(inputs)),
        (kind::CHECKPOINTS_HEALTHY, training::checkpoints_healthy(inputs, new)),
        (kind::REPRODUCIBLE, training::reproducible(inputs)),
        (kind::AUDITS_EQUAL, training::audits_equal(inputs)),
        (kind::OBJECTS_IN_SYNC, objects::in_sync(inputs)),
        (kind::SUSPENDED, outcome::suspended(inputs)),
        (kind::COMPLETE, outcome::complete(inputs, new)),
        (kind::FAILED, outcome::failed(inputs)),
        (kind::READY, outcome::ready(inputs, new)),
        (kind::RECONCILING, outcome::reconciling(inputs, new)),
        (kind::STALLED, outcome::stalled(inputs)),
    ];
    let (old, generation, now) = (&inputs.job.status.conditions, inputs.job.generation, inputs.pods.observed_at);
    let [accepted, others @ ..] = values;
    let admitted = admitted(inputs).map(|value| (kind::ADMITTED, value));
    let all = std::iter::once(accepted).chain(admitted).chain(others);
    all.map(|(kind, value)| condition(kind, value, old, generation, now)).collect()
}

/// Returns the status of a job that the operator can't accept: `old` with new values of the conditions `Accepted`,
/// `Ready`, `Reconciling` and `Stalled`. `old` is untyped JSON, because another version of the operator may have
/// written it.
pub(crate) fn not_accepted(old: &Value, reason: &str, message: &str, generation: i64, now: UnixMillis) -> Value {
    let all = old["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let replaced =
        [(kind::ACCEPTED, "False"), (kind::READY, "False"), (kind::RECONCILING, "False"), (kind::STALLED, "True")];
    let is_replaced = |other: &Value| replaced.iter().any(|(kind, _)| other["type"] == *kind);
    let (before, others): (Vec<&Value>, Vec<&Value>) = all.iter().partition(|other| is_replaced(other));
    let before: Vec<Condition> = before.into_iter().filter_map(|before| Condition::deserialize(before).ok()).collect();
    let rejected = replaced.map(|(name, status)| {
        let value = value(status, reason, message);
        let value = if name == kind::ACCEPTED { value } else { abridged(value, kind::ACCEPTED) };
        condition(name, value, &before, generation, now)
    });
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
        message: visible(&value.message).into_owned(),
    }
}

/// Returns the condition `Admitted`; `None` for a job without a queue.
fn admitted(inputs: &StatusInputs) -> Option<ConditionValue> {
    let queue = inputs.queue.as_ref()?;
    Some(value(if queue.is_admitted { "True" } else { "False" }, &queue.reason, &queue.message))
}

fn accepted(inputs: &StatusInputs) -> ConditionValue {
    let unknown = &inputs.job.unknown_fields;
    if !unknown.is_empty() {
        let message = format!("this version of the operator ignores unknown fields: {}", unknown.join(", "));
        return value("True", reason::UNKNOWN_FIELDS, message);
    }
    let spec = &inputs.job.manifest.spec;
    if let Some(surplus) = surplus_gpus(spec) {
        return value("True", reason::SURPLUS_GPUS, surplus);
    }
    // the schedule `Auto` may choose a number of chunks that fits the partition
    let chunks = (spec.stages * spec.pipeline.virtual_stages()) as usize;
    let has_choice = matches!(spec.pipeline.schedule, ScheduleSpec::Auto);
    match spec.pipeline.partition_mismatch(chunks).filter(|_| !has_choice) {
        Some(unfitting) => value("True", reason::PARTITION_COMPUTED, unfitting),
        None => value("True", reason::VALID, "the job is valid"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_message_has_300_characters_and_names_its_source() {
        let abridged_message = |message: String| abridged(value("False", "Error", message), kind::FAILED).message;
        let (whole, long) = ("\u{e9}".repeat(300), "\u{e9}".repeat(301));
        assert_eq!(abridged_message(whole.clone()), whole);
        assert_eq!(abridged_message(long), format!("{whole}… (the condition Failed has the whole message)"));
    }
}
