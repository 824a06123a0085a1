//! Names, labels and owner references of the objects of a job.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use stagecoach_api::contract::{
    ATTEMPT_LABEL, INCARNATION_LABEL, JOB_LABEL, JOB_UID_LABEL, Mesh, RANK_LABEL, REPLICA_LABEL, SPARE_LABEL,
    STAGE_LABEL,
};
use stagecoach_api::job::{API_VERSION, KIND};
use stagecoach_lifecycle::InstanceId;

/// The identity of a PipelineJob, which is the controller in the owner references of all its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobReference {
    /// `metadata.name`
    pub name: String,
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.uid`
    pub uid: String,
}

/// The role for which a pod of an attempt is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodRole {
    /// A stage.
    Stage(InstanceId),
    /// The spare with this number. A spare that replaces a lost stage keeps its pod.
    Spare(u32),
}

impl PodRole {
    /// Returns the name of the pod.
    pub(crate) fn pod_name(self, job: &JobReference, attempt: u64, mesh: Mesh) -> String {
        match self {
            PodRole::Stage(InstanceId { rank, incarnation }) => {
                let replica = mesh.replica(rank).map(|replica| format!("-{replica}")).unwrap_or_default();
                let again = if incarnation == 0 { String::new() } else { format!("-{incarnation}") };
                format!("{}{replica}-{}-{attempt}{again}", job.name, mesh.stage(rank))
            }
            PodRole::Spare(number) => format!("{}-spare-{number}-{attempt}", job.name),
        }
    }

    /// Returns the labels that store the role.
    pub(super) fn labels(self, mesh: Mesh) -> Vec<(String, String)> {
        let label = |name: &str, value: u32| (name.to_owned(), value.to_string());
        match self {
            PodRole::Stage(InstanceId { rank, incarnation }) => {
                let mut labels = vec![label(STAGE_LABEL, mesh.stage(rank)), label(INCARNATION_LABEL, incarnation)];
                if let Some(replica) = mesh.replica(rank) {
                    labels.extend([label(REPLICA_LABEL, replica), label(RANK_LABEL, rank)]);
                }
                labels
            }
            PodRole::Spare(number) => vec![label(SPARE_LABEL, number)],
        }
    }

    /// Returns the role of a pod with these labels; `None` if the labels name no role.
    pub(crate) fn from_labels(labels: &BTreeMap<String, String>) -> Option<PodRole> {
        let number = |label: &str| labels.get(label).and_then(|value| value.parse().ok());
        match number(RANK_LABEL).or_else(|| number(STAGE_LABEL)) {
            // pods that an older operator created have no incarnation label
            Some(rank) => {
                Some(PodRole::Stage(InstanceId { rank, incarnation: number(INCARNATION_LABEL).unwrap_or(0) }))
            }
            None => number(SPARE_LABEL).map(PodRole::Spare),
        }
    }
}

/// Returns the name of the Service of stage 0 of the first replica, which is the MASTER_ADDR of all attempts.
pub(super) fn service_name(job: &JobReference) -> String {
    job.name.clone()
}

/// Returns the name of an attempt's ConfigMap and PodGroup.
pub(crate) fn attempt_name(job: &JobReference, attempt: u64) -> String {
    format!("{}-{attempt}", job.name)
}

/// Returns the labels of an object of the job. An object of one attempt also has the attempt's label.
pub fn labels(job: &JobReference, attempt: Option<u64>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        ("app.kubernetes.io/name".to_owned(), "stagecoach".to_owned()),
        ("app.kubernetes.io/component".to_owned(), "trainer".to_owned()),
        ("app.kubernetes.io/managed-by".to_owned(), "stagecoach-operator".to_owned()),
        (JOB_LABEL.to_owned(), job.name.clone()),
        (JOB_UID_LABEL.to_owned(), job.uid.clone()),
    ]);
    labels.extend(attempt.map(|attempt| (ATTEMPT_LABEL.to_owned(), attempt.to_string())));
    labels
}

/// Returns the labels that select all pods of the job.
pub(super) fn pod_match_labels(job: &JobReference) -> BTreeMap<String, String> {
    BTreeMap::from([(JOB_UID_LABEL.to_owned(), job.uid.clone())])
}

/// Returns the label selector for all pods of the job, in the form for a list or for `kubectl --selector`.
pub(crate) fn pod_label_selector(job: &JobReference) -> String {
    format!("{JOB_UID_LABEL}={}", job.uid)
}

/// Returns the labels that select, in one attempt, the pod that was created as stage 0 of the first replica.
pub(super) fn stage_0_match_labels(job: &JobReference, attempt: u64, mesh: Mesh) -> BTreeMap<String, String> {
    let mut selector = pod_match_labels(job);
    selector.insert(ATTEMPT_LABEL.to_owned(), attempt.to_string());
    selector.insert(STAGE_LABEL.to_owned(), "0".to_owned());
    if mesh.data_parallel > 1 {
        selector.insert(REPLICA_LABEL.to_owned(), "0".to_owned());
    }
    selector
}

/// Returns the metadata of an object that the job owns. The object is garbage-collected with the job.
pub(crate) fn metadata(job: &JobReference, name: String, attempt: Option<u64>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(job.namespace.clone()),
        labels: Some(labels(job, attempt)),
        owner_references: Some(vec![owner_reference(job)]),
        ..ObjectMeta::default()
    }
}

/// Whether the job with this UID is the object's controller.
pub(crate) fn is_controlled_by(metadata: &ObjectMeta, job_uid: &str) -> bool {
    let references = metadata.owner_references.iter().flatten();
    references.into_iter().any(|reference| reference.controller == Some(true) && reference.uid == job_uid)
}

fn owner_reference(job: &JobReference) -> OwnerReference {
    OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: KIND.to_owned(),
        name: job.name.clone(),
        uid: job.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
