//! Events: what happened, for `kubectl describe`. Told after the status has landed.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::EventType;
use stagecoach_api::PipelineJobStatus;
use stagecoach_api::job::{API_VERSION, Condition, KIND, Phase};

use super::Facts;
use super::conditions::{SAVING_FAILS, is_usual};
use crate::build::Owner;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// One word.
    pub reason: &'static str,
    /// A sentence.
    pub note: String,
    /// Whether something is wrong.
    pub warning: bool,
}

/// What the step from the old status to `new` is worth telling.
pub(crate) fn events(facts: &Facts, new: &PipelineJobStatus) -> Vec<Event> {
    let (old, state) = (&facts.job.status, &facts.decision.state);
    let mut all = Vec::new();
    let mut tell = |reason, note: String, warning| all.push(Event { reason, note, warning });
    if let Some(failure) = super::new_failure(facts.job, facts.decision) {
        let stage = failure.stage.map(|stage| format!("stage {stage}: ")).unwrap_or_default();
        tell(
            "AttemptFailed",
            format!("attempt {}: {stage}{}: {}", failure.attempt, failure.label(), failure.message),
            true,
        );
    }
    if state.attempt.number > facts.job.state.attempt.number {
        let note = format!("attempt {} with {} stages", state.attempt.number, state.attempt.stages);
        tell("AttemptStarted", note, false);
    }
    if new.phase != old.phase {
        match facts.decision.job_phase {
            Phase::Running => tell("Running", "all stages are ready".into(), false),
            Phase::Draining => tell("Draining", "all stages were asked to save and leave".into(), false),
            Phase::Suspended => tell("Suspended", "the job is suspended".into(), false),
            Phase::Complete => tell("Complete", "training is complete".into(), false),
            Phase::Failed => {
                let why = condition(new, "Failed");
                tell("Failed", why.map(|why| why.message.clone()).unwrap_or_default(), true);
            }
            Phase::Pending | Phase::Starting | Phase::Restarting => {}
        }
    }
    let failing = |status| condition(status, "CheckpointsHealthy").filter(|told| told.reason == SAVING_FAILS);
    match (failing(old), failing(new)) {
        (None, Some(told)) => tell(SAVING_FAILS, told.message.clone(), true),
        (Some(_), None) => tell("SavingWorksAgain", "checkpoints are committed again".into(), false),
        _ => {}
    }
    let trouble = |status: &PipelineJobStatus| {
        let scheduled = condition(status, "Scheduled");
        scheduled
            .filter(|condition| condition.reason != "NotWanted" && !is_usual(condition))
            .map(|c| (c.reason.clone(), c.message.clone()))
    };
    if let Some((reason, message)) =
        trouble(new).filter(|(reason, _)| trouble(old).is_none_or(|(old, _)| old != *reason))
    {
        tell("NotScheduled", format!("{reason}: {message}"), true);
    }
    all
}

fn condition<'s>(status: &'s PipelineJobStatus, kind: &str) -> Option<&'s Condition> {
    status.conditions.iter().find(|condition| condition.kind == kind)
}

impl Event {
    /// As the API has it; `cut` to the kilobyte it allows.
    pub(crate) fn published(&self) -> kube::runtime::events::Event {
        let note: String = self.note.chars().take(900).collect();
        kube::runtime::events::Event {
            type_: if self.warning { EventType::Warning } else { EventType::Normal },
            reason: self.reason.into(),
            note: Some(note),
            action: "Reconcile".into(),
            secondary: None,
        }
    }
}

/// The job, as an event refers to it.
pub(crate) fn reference(owner: &Owner) -> ObjectReference {
    ObjectReference {
        api_version: Some(API_VERSION.into()),
        kind: Some(KIND.into()),
        name: Some(owner.name.clone()),
        namespace: Some(owner.namespace.clone()),
        uid: Some(owner.uid.clone()),
        ..ObjectReference::default()
    }
}
