//! A pod of the API, as far as it is read: a watch brings thousands of them, and most of each is of no use here.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

/// What is read of a pod.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PodObject {
    #[serde(deserialize_with = "metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Value,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Spec {
    #[serde(default)]
    containers: Vec<Container>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Container {
    name: String,
    image: Option<String>,
}

impl PodObject {
    /// As plain JSON.
    pub(super) fn into_value(self) -> Value {
        json!({ "metadata": self.metadata, "spec": self.spec, "status": self.status })
    }
}

/// Without who manages which field, which is most of it.
fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Read {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        labels: Option<BTreeMap<String, String>>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        deletion_grace_period_seconds: Option<i64>,
    }
    let read = Read::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: read.name,
        namespace: read.namespace,
        uid: read.uid,
        resource_version: read.resource_version,
        labels: read.labels,
        creation_timestamp: read.creation_timestamp,
        deletion_timestamp: read.deletion_timestamp,
        deletion_grace_period_seconds: read.deletion_grace_period_seconds,
        ..ObjectMeta::default()
    })
}

impl Resource for PodObject {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_read_of_a_pod_is_kept() {
        let metadata = json!({
            "name": "a-0-1", "namespace": "ml", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"},
            "creationTimestamp": "2026-01-01T00:00:01Z", "deletionTimestamp": "2026-01-01T00:00:09Z",
            "deletionGracePeriodSeconds": 5,
        });
        let status = json!({"phase": "Running", "podIP": "127.0.0.1"});
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status,
            "spec": {"nodeName": "n", "containers": [{"name": "trainer", "image": "i:1", "env": [{"name": "A"}]}]},
        });
        pod["metadata"]["managedFields"] = json!([{"manager": "kubelet", "operation": "Update"}]);
        let read: PodObject = serde_json::from_value(pod).unwrap();
        let containers = json!([{"name": "trainer", "image": "i:1"}]);
        assert_eq!(
            read.into_value(),
            json!({"metadata": metadata, "spec": {"containers": containers}, "status": status})
        );
    }
}
