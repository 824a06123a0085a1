//! A PipelineJob as the API server has it, read part by part: an unreadable spec is a sentence, never an error.

mod object;

use kube::{Resource, ResourceExt};
use serde::Deserialize;
use serde_json::Value;
use stagecoach_api::job::Phase;
use stagecoach_api::{PipelineJob, PipelineJobSpec, PipelineJobStatus};
use stagecoach_lifecycle::{AttemptPhase, Desired, JobState};

pub(crate) use object::JobObject;

use crate::build::{self, Owner};

/// Who is to run a job that names nobody.
pub(crate) const MANAGER: &str = "stagecoach.dev/operator";

/// The parts of the spec that a running attempt has read and can't adopt.
const READ_AT_START: [&str; 8] =
    ["trainer", "model", "data", "training", "pipeline", "checkpoint", "storage", "template"];

/// A job, and what was recorded about it.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Who owns what is made for it.
    pub owner: Owner,
    /// The job itself, without status.
    pub job: PipelineJob,
    /// Raised with every change of the spec.
    pub generation: i64,
    /// What was reported last.
    pub status: PipelineJobStatus,
    /// What was decided last.
    pub state: JobState,
    /// What identifies those parts of the spec that a running attempt can't adopt.
    revision: u64,
}

/// Why a job can't be acted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// Its owner must change the spec.
    Spec(String),
    /// The status is not one of this operator's.
    Status(String),
    /// The record in the status is not one of this operator's.
    Record(String),
}

/// Whose a job is: `spec.managedBy`, read without the rest.
pub(crate) fn is_ours(object: &JobObject) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Spec {
        managed_by: Option<String>,
    }
    let spec: Spec = serde_json::from_str(object.spec()).unwrap_or_default();
    spec.managed_by.is_none_or(|manager| manager == MANAGER)
}

/// The status; the default one if none was written yet.
///
/// # Errors
/// `Status`, if it can't be read: it must not count as never written, since the job could start again from nothing.
pub(crate) fn status(object: &JobObject) -> Result<PipelineJobStatus, Unusable> {
    let status: Option<PipelineJobStatus> = serde_json::from_str(object.status()).map_err(|error| {
        Unusable::Status(format!(
            "status can't be read: {}; it was written by another version of the operator, or by somebody else: run that \
             version, or correct the status. Until then nothing is done for this job",
            without_place(&error)
        ))
    })?;
    Ok(status.unwrap_or_default())
}

/// The phase, from the status alone: the default one if none was written yet, none if it can't be read.
pub(crate) fn phase(object: &JobObject) -> Option<Phase> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        phase: Phase,
    }
    serde_json::from_str::<Option<Status>>(object.status()).ok().map(|status| status.unwrap_or_default().phase)
}

/// An error of text that nobody has seen, so that the place in it means nothing.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text).to_owned()
}

/// The job that `object` is.
///
/// # Errors
/// A sentence that says what to change.
pub(crate) fn read(object: &JobObject) -> Result<Job, Unusable> {
    let meta = object.meta();
    let status = status(object)?;
    let read: PipelineJobSpec = serde_json::from_str(object.spec()).map_err(|error| {
        let why = without_place(&error);
        Unusable::Spec(format!("spec can't be read: {why}; change it, or use the CRD of this operator's version"))
    })?;
    let mut job = PipelineJob::new(object.name_any(), read);
    job.metadata.namespace = meta.namespace.clone();
    job.metadata.uid = meta.uid.clone();
    job.metadata.generation = meta.generation;
    let told: Vec<String> = job.validate().iter().map(ToString::to_string).chain(build::missing(&job.spec)).collect();
    if !told.is_empty() {
        return Err(Unusable::Spec(told.join("; ")));
    }
    let state = match &status.record {
        None => JobState::default(),
        Some(record) => serde_json::from_value(record.clone()).map_err(|e| {
            Unusable::Record(format!(
                "status.record can't be read ({e}): it was written by another version of the operator"
            ))
        })?,
    };
    let owner = Owner {
        name: object.name_any(),
        namespace: meta.namespace.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
    };
    let generation = meta.generation.unwrap_or_default();
    let same = status.attempt.as_ref().is_some_and(|attempt| attempt.generation == Some(generation));
    // as long as the user changed nothing, a new operator's defaults are no change either
    let revision = if same { state.attempt.revision } else { revision(object.spec()) };
    Ok(Job { owner, job, generation, status, state, revision })
}

impl Job {
    /// All pods of an attempt were seen, which may not be recorded yet.
    pub(crate) fn note_created(&mut self, attempt: u64) {
        match &mut self.state.attempt_phase {
            AttemptPhase::Running { all_created, .. } if self.state.attempt.number == attempt => *all_created = true,
            _ => {}
        }
    }

    /// What the user wants.
    pub(crate) fn desired(&self) -> Desired {
        let spec = &self.job.spec;
        Desired { stages: spec.stages, revision: self.revision, suspend: spec.suspend }
    }
}

/// A number below 2^53, which JSON holds exactly.
fn revision(spec: &str) -> u64 {
    let spec: Value = serde_json::from_str(spec).unwrap_or_default();
    let mut hasher = blake3::Hasher::new();
    for part in READ_AT_START {
        hasher.update(spec[part].to_string().as_bytes());
        hasher.update(b"\n");
    }
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(bytes) >> 11
}
