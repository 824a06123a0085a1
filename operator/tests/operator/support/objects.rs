//! Jobs and volumes of the tests, the paths of objects in the API, and the conditions and failures in a job's status.

use serde_json::{Value, json};
use stagecoach_cluster::{ControlPlane, condition_of, merge, pipeline_job};

/// Creates the claim `training` in a namespace, and the volume to which it is bound.
pub(super) fn volume(plane: &ControlPlane, namespace: &str) {
    let spec = json!({"accessModes": ["ReadWriteMany"], "storageClassName": ""});
    let mut bound = spec.clone();
    bound["volumeName"] = namespace.into();
    bound["resources"] = json!({"requests": {"storage": "1Gi"}});
    let mut volume = spec;
    volume["capacity"] = json!({"storage": "1Gi"});
    volume["hostPath"] = json!({"path": "/nonexistent"});
    let volumes = "/api/v1/persistentvolumes".to_owned();
    let claims = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
    // requests without kubectl, because a test may create a hundred namespaces
    for (path, kind, name, spec) in
        [(volumes, "PersistentVolume", namespace, volume), (claims, "PersistentVolumeClaim", "training", bound)]
    {
        let object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        plane.client().create(&path, &object).unwrap_or_else(|refusal| panic!("{kind} {name}: {refusal}"));
    }
}

/// Splits `namespace/name`. A name without a namespace is in `default`.
pub(super) fn split(name: &str) -> (&str, &str) {
    name.split_once('/').unwrap_or(("default", name))
}

/// Returns the path of the jobs of a namespace.
pub fn jobs(namespace: &str) -> String {
    format!("/apis/stagecoach.dev/v1alpha1/namespaces/{namespace}/pipelinejobs")
}

/// Returns the path of a job.
pub fn path(name: &str) -> String {
    let (namespace, name) = split(name);
    format!("{}/{name}", jobs(namespace))
}

/// Returns the path of the ConfigMap of a job's attempt.
pub fn config_map(name: &str, attempt: u64) -> String {
    let (namespace, name) = split(name);
    format!("/api/v1/namespaces/{namespace}/configmaps/{name}-{attempt}")
}

/// Returns the path of the NetworkPolicy of a job.
pub fn network_policy(name: &str) -> String {
    let (namespace, name) = split(name);
    format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/{name}")
}

/// Returns a small job of two stages, with `changes` merged into its spec.
pub fn job(name: &str, changes: Value) -> Value {
    let (namespace, name) = split(name);
    let quick = json!({
        // the simulated kubelet runs no trainers, so no group can form again around a single new stage: a failure
        // restarts all stages; tests that replace a single stage set another `reformTimeoutSeconds`
        "restart": {"maxRestarts": 3, "reformTimeoutSeconds": 0, "backoff": {"initialSeconds": 0, "maxSeconds": 1}, "terminationTimeoutSeconds": 60},
        "template": {"spec": {"terminationGracePeriodSeconds": 5}},
    });
    let mut object = pipeline_job(name, quick);
    object["metadata"]["namespace"] = namespace.into();
    merge(&mut object["spec"], changes);
    object
}

/// Whether the condition of type `kind` has this status and reason.
pub fn has_condition(object: &Value, kind: &str, status: &str, reason: &str) -> bool {
    condition_of(object, kind).is_some_and(|condition| condition["status"] == status && condition["reason"] == reason)
}

/// Returns `status.lastFailure`, the root cause of the job's last failure.
pub fn last_failure(job: &Value) -> &Value {
    &job["status"]["lastFailure"]
}
