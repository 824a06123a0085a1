//! Names and labels of the objects of a job.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};
use stagecoach_api::job::{API_VERSION, KIND};

use super::Owner;

/// Label with the job's UID: selects its objects, also if another job had the same name.
pub(crate) const JOB_UID_LABEL: &str = "stagecoach.dev/job-uid";
/// Label with the job's name.
pub(crate) const JOB_LABEL: &str = "stagecoach.dev/job";
/// Label with the attempt number.
pub(crate) const ATTEMPT_LABEL: &str = "stagecoach.dev/attempt";
/// Label with the stage.
pub(crate) const STAGE_LABEL: &str = "stagecoach.dev/stage";

/// Name of a pod.
pub(crate) fn pod_name(owner: &Owner, stage: u32, attempt: u64) -> String {
    format!("{}-{stage}-{attempt}", owner.name)
}

/// Name of the Service of stage 0: the MASTER_ADDR of all attempts.
pub(crate) fn service_name(owner: &Owner) -> String {
    owner.name.clone()
}

/// Name of an attempt's ConfigMap and PodGroup.
pub(crate) fn attempt_name(owner: &Owner, attempt: u64) -> String {
    format!("{}-{attempt}", owner.name)
}

/// The labels of an object of the job; of one attempt, and of one stage, where it belongs to one.
pub fn labels(owner: &Owner, attempt: Option<u64>, stage: Option<u32>) -> Map<String, Value> {
    let mut labels = Map::new();
    let mut put = |key: &str, value: String| drop(labels.insert(key.to_owned(), value.into()));
    put("app.kubernetes.io/name", "stagecoach".into());
    put("app.kubernetes.io/component", "trainer".into());
    put("app.kubernetes.io/managed-by", "stagecoach-operator".into());
    put(JOB_LABEL, owner.name.clone());
    put(JOB_UID_LABEL, owner.uid.clone());
    if let Some(attempt) = attempt {
        put(ATTEMPT_LABEL, attempt.to_string());
    }
    if let Some(stage) = stage {
        put(STAGE_LABEL, stage.to_string());
    }
    labels
}

/// Selects all pods of the job.
pub(crate) fn pod_match_labels(owner: &Owner) -> Map<String, Value> {
    Map::from_iter([(JOB_UID_LABEL.to_owned(), owner.uid.clone().into())])
}

/// The same as a label selector of a list or `kubectl --selector`.
pub(crate) fn pod_label_selector(owner: &Owner) -> String {
    format!("{JOB_UID_LABEL}={}", owner.uid)
}

/// Selects the pod of stage 0 of one attempt.
pub(crate) fn stage_0_match_labels(owner: &Owner, attempt: u64) -> Map<String, Value> {
    let mut selector = pod_match_labels(owner);
    selector.insert(ATTEMPT_LABEL.to_owned(), attempt.to_string().into());
    selector.insert(STAGE_LABEL.to_owned(), "0".into());
    selector
}

/// The metadata of an object that the job owns: it is garbage-collected with the job.
pub(super) fn metadata(owner: &Owner, name: &str, attempt: Option<u64>) -> Value {
    json!({
        "name": name,
        "namespace": owner.namespace,
        "labels": labels(owner, attempt, None),
        "ownerReferences": [owner_reference(owner)],
    })
}

/// Whether the job with the UID `job` is the object's controller.
pub(crate) fn is_controlled_by(metadata: &ObjectMeta, job: &str) -> bool {
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
