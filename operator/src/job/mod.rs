//! Parses a PipelineJob of the API. An unreadable spec or status is an [`InvalidJob`], which the operator reports in
//! the condition `Accepted`.

mod raw;

use std::collections::BTreeMap;

use kube::{Resource, ResourceExt};
use serde::Deserialize;
use stagecoach_api::contract::Mesh;
use stagecoach_api::job::{JobPhase, attempt_fields};
use stagecoach_api::{PipelineJob, PipelineJobSpec, PipelineJobStatus, StoredSpec};
use stagecoach_lifecycle::{Admission, AttemptPhase, Desired, JobState};

pub(crate) use raw::RawPipelineJob;

use crate::build::kueue::Demand;
use crate::build::{self, JobReference};

/// The default of `spec.managedBy`.
pub(crate) const MANAGER: &str = "stagecoach.dev/operator";
/// The value of `spec.managedBy` for a job that Kueue runs in another cluster.
const MULTI_KUEUE: &str = "kueue.x-k8s.io/multikueue";

/// A valid job: its spec, status and stored state.
#[derive(Clone, Debug)]
pub(crate) struct ParsedJob {
    /// The job's name, namespace and UID.
    pub reference: JobReference,
    /// The job as a typed manifest, without status.
    pub manifest: PipelineJob,
    /// `metadata.generation`
    pub generation: i64,
    /// The status that was written last.
    pub status: PipelineJobStatus,
    /// `status.record`: the stored state of the state machine.
    pub state: JobState,
    /// The paths of the spec's fields that are unknown to this version of the operator. Such fields have no effect.
    pub unknown_fields: Vec<String>,
    /// Whether the job's attempt runs the current spec.
    pub runs: bool,
    /// The pods for which the job asks its queue; `None` for a job without a queue.
    pub demand: Option<Demand>,
    /// The grant of the queue.
    pub grant: Grant,
    /// The hash of the fields of the spec whose change starts a new attempt.
    revision: u64,
}

/// The grant of a job's queue: whether the job may run, and with how many pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Whether the job may run.
    pub admission: Admission,
    /// The stages and replicas with which the job may run; `None` means the numbers of the spec.
    pub mesh: Option<Mesh>,
    /// The number of replicas that an elastic job may run; `None` means the replicas of `mesh`.
    pub replicas: Option<u32>,
    /// The number of spares that the job may have; `None` means the number of the spec.
    pub spares: Option<u32>,
}

/// The reason why a job waits for its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FolderTaken {
    /// A sentence that names the other job.
    pub message: String,
    /// Whether the other job has left the folder, and only its pods still use the folder.
    pub is_leaving: bool,
}

/// The reason why a job can't be reconciled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvalidJob {
    /// The spec is invalid; the user must change it.
    Spec(String),
    /// The status can't be read by this version of the operator.
    Status(String),
    /// `status.record` can't be read by this version of the operator.
    Record(String),
    /// Another job holds this job's folder.
    Folder(FolderTaken),
}

/// The controller that `spec.managedBy` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manager {
    /// This operator.
    Stagecoach,
    /// MultiKueue. The job runs in another cluster, and this operator manages only the job's Workload.
    MultiKueue,
    /// Another controller. This operator does not manage the job.
    Other,
}

/// Returns the controller that `spec.managedBy` names. The function parses only this field, so that the result is right
/// even for an invalid spec.
pub(crate) fn manager(object: &RawPipelineJob) -> Manager {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct ManagedBySpec {
        managed_by: Option<String>,
    }
    let spec: ManagedBySpec = serde_json::from_str(object.spec()).unwrap_or_default();
    match spec.managed_by.as_deref() {
        None | Some(MANAGER) => Manager::Stagecoach,
        Some(MULTI_KUEUE) => Manager::MultiKueue,
        Some(_) => Manager::Other,
    }
}

/// Whether this operator runs the job.
pub(crate) fn is_managed_here(object: &RawPipelineJob) -> bool {
    manager(object) == Manager::Stagecoach
}

/// Returns the status, or the default status if no status was written.
///
/// # Errors
/// Returns `Status` if the status can't be parsed. The operator must not treat such a status as unwritten, because the
/// operator would then start the job again from attempt 1.
pub(crate) fn status(object: &RawPipelineJob) -> Result<PipelineJobStatus, InvalidJob> {
    let status: Option<PipelineJobStatus> = serde_json::from_str(object.status()).map_err(|error| {
        InvalidJob::Status(format!(
            "status can't be read: {}; it was written by another version of the operator, or by another client: run that \
             version, or correct the status. Until then, the operator does not reconcile this job",
            without_position(&error)
        ))
    })?;
    Ok(status.unwrap_or_default())
}

/// Returns the job's name, namespace and UID.
pub(crate) fn reference(object: &RawPipelineJob) -> JobReference {
    JobReference {
        name: object.name_any(),
        namespace: object.namespace().unwrap_or_default(),
        uid: object.uid().unwrap_or_default(),
    }
}

/// Returns the phase, or the default phase if no status was written. The function parses only this field. Returns
/// `None` if the phase can't be parsed.
pub(crate) fn phase(object: &RawPipelineJob) -> Option<JobPhase> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct PhaseStatus {
        phase: JobPhase,
    }
    serde_json::from_str::<Option<PhaseStatus>>(object.status()).ok().map(|status| status.unwrap_or_default().phase)
}

/// Returns the text of the error without line and column, which refer to JSON that the user has never seen.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text).to_owned()
}

/// Parses and validates `object`.
///
/// # Errors
/// Returns a message that shows the user what to change.
pub(crate) fn parse(object: &RawPipelineJob) -> Result<ParsedJob, InvalidJob> {
    let meta = object.meta();
    let status = status(object)?;
    let StoredSpec { spec, unknown_fields } = StoredSpec::from_json(object.spec()).map_err(|error| {
        let why = without_position(&error);
        InvalidJob::Spec(format!("spec can't be read: {why}; change it, or use the CRD of this operator's version"))
    })?;
    let mut manifest = PipelineJob::new(object.name_any(), spec);
    manifest.metadata.namespace = meta.namespace.clone();
    manifest.metadata.uid = meta.uid.clone();
    manifest.metadata.generation = meta.generation;
    let state = match &status.record {
        None => JobState::default(),
        Some(record) => serde_json::from_str(record).map_err(|e| {
            InvalidJob::Record(format!(
                "status.record can't be read ({e}): it was written by another version of the operator"
            ))
        })?,
    };
    let reference = reference(object);
    let generation = meta.generation.unwrap_or_default();
    let same = status.attempt.as_ref().is_some_and(|attempt| attempt.generation == Some(generation));
    // if the attempt runs this generation of the spec, keep the attempt's revision: a version of the operator that
    // computes another hash must not restart the attempt
    let revision = if same { state.attempt.revision } else { revision(&manifest.spec) };
    // do not validate a spec that already runs: another version of the operator may have accepted it by other rules
    let runs =
        state.attempt.number > 0 && (state.attempt.revision, state.attempt.mesh) == (revision, manifest.spec.mesh());
    let problems = match runs {
        true => Vec::new(),
        false => {
            let missing = [build::missing_volume(&manifest.spec), build::missing_gpu(&manifest.spec)];
            manifest.validate().iter().map(ToString::to_string).chain(missing.into_iter().flatten()).collect()
        }
    };
    if !problems.is_empty() {
        return Err(InvalidJob::Spec(problems.join("; ")));
    }
    let demand = Demand::new(object.labels(), object.annotations(), &manifest.spec);
    let grant = Grant::default();
    Ok(ParsedJob { reference, manifest, generation, status, state, unknown_fields, runs, demand, grant, revision })
}

/// An attempt all of whose pods the operator has observed. `incarnations` maps each rank to the number of the rank's
/// newest pod in the attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreatedAttempt {
    attempt: u64,
    incarnations: BTreeMap<u32, u32>,
}

impl CreatedAttempt {
    /// Returns the attempt and the incarnations of `state`.
    pub(crate) fn of(state: &JobState) -> CreatedAttempt {
        CreatedAttempt { attempt: state.attempt.number, incarnations: state.incarnations.clone() }
    }
}

impl ParsedJob {
    /// Marks all pods of the current attempt as created, if `created` is this attempt. The status may not record this
    /// fact yet.
    pub(crate) fn mark_all_created(&mut self, created: &CreatedAttempt) {
        let is_same_attempt = *created == CreatedAttempt::of(&self.state);
        match &mut self.state.attempt_phase {
            AttemptPhase::Running { all_created, .. } if is_same_attempt => *all_created = true,
            _ => {}
        }
    }

    /// Returns the desired state of the job.
    pub(crate) fn desired(&self) -> Desired {
        let (spec, grant) = (&self.manifest.spec, self.grant);
        Desired {
            mesh: grant.mesh.unwrap_or_else(|| spec.mesh()),
            revision: self.revision,
            suspend: spec.suspend,
            admission: grant.admission,
            admitted_replicas: grant.replicas,
        }
    }
}

/// Returns a hash of the spec's fields that define an attempt. The hash is below 2^53, so that JSON represents it
/// exactly. Fields at their default are omitted, so that a version of the operator with more fields computes the same
/// hash.
fn revision(spec: &PipelineJobSpec) -> u64 {
    let spec = spec.without_defaults();
    let mut hasher = blake3::Hasher::new();
    for part in attempt_fields() {
        hasher.update(spec[part].to_string().as_bytes());
        hasher.update(b"\n");
    }
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(bytes) >> 11
}
