//! Names and labels: the only place that spells them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};
use stagecoach_api::job::{API_VERSION, KIND};

use super::Owner;

/// The job's UID: what selects its objects, also when another job had the same name.
pub const JOB_UID: &str = "stagecoach.dev/job-uid";
/// The job's name.
pub const JOB: &str = "stagecoach.dev/job";
/// The attempt.
pub const ATTEMPT: &str = "stagecoach.dev/attempt";
/// The stage.
pub const STAGE: &str = "stagecoach.dev/stage";

/// A pod of an attempt.
pub fn pod_name(owner: &Owner, stage: u32, attempt: u64) -> String {
    format!("{}-{stage}-{attempt}", owner.name)
}

/// The Service in front of stage 0: the MASTER_ADDR of all attempts.
pub fn service_name(owner: &Owner) -> String {
    owner.name.clone()
}

/// The ConfigMap of an attempt, and its PodGroup.
pub fn attempt_name(owner: &Owner, attempt: u64) -> String {
    format!("{}-{attempt}", owner.name)
}

/// The labels of an object of the job; of one attempt, and of one stage, where it belongs to one.
pub fn labels(owner: &Owner, attempt: Option<u64>, stage: Option<u32>) -> Map<String, Value> {
    let mut labels = Map::new();
    let mut put = |key: &str, value: String| drop(labels.insert(key.to_owned(), value.into()));
    put("app.kubernetes.io/name", "stagecoach".into());
    put("app.kubernetes.io/component", "trainer".into());
    put("app.kubernetes.io/managed-by", "stagecoach-operator".into());
    put(JOB, owner.name.clone());
    put(JOB_UID, owner.uid.clone());
    if let Some(attempt) = attempt {
        put(ATTEMPT, attempt.to_string());
    }
    if let Some(stage) = stage {
        put(STAGE, stage.to_string());
    }
    labels
}

/// Selects all pods of the job.
pub fn pod_selector(owner: &Owner) -> Map<String, Value> {
    Map::from_iter([(JOB_UID.to_owned(), owner.uid.clone().into())])
}

/// The same in the form that a list and `kubectl --selector` take.
pub fn pod_query(owner: &Owner) -> String {
    format!("{JOB_UID}={}", owner.uid)
}

/// Selects the coordinator's pod of one attempt.
pub fn stage_0_selector(owner: &Owner, attempt: u64) -> Map<String, Value> {
    let mut selector = pod_selector(owner);
    selector.insert(ATTEMPT.to_owned(), attempt.to_string().into());
    selector.insert(STAGE.to_owned(), "0".into());
    selector
}

/// The metadata of an object that the job owns: it goes with the job.
pub(super) fn metadata(owner: &Owner, name: &str, attempt: Option<u64>) -> Value {
    json!({
        "name": name,
        "namespace": owner.namespace,
        "labels": labels(owner, attempt, None),
        "ownerReferences": [owner_reference(owner)],
    })
}

/// Whether the job with the UID `job` controls the object: the operator made it, and it goes with the job.
pub fn is_controlled_by(metadata: &ObjectMeta, job: &str) -> bool {
    let references = metadata.owner_references.iter().flatten();
    references.into_iter().any(|reference| reference.controller == Some(true) && reference.uid == job)
}

pub(super) fn owner_reference(owner: &Owner) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": owner.name,
        "uid": owner.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}
