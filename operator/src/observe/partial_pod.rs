//! The fields of an API pod that the operator reads. The operator stores no other fields, because a watch may deliver
//! thousands of pods.

use std::collections::BTreeMap;

use k8s_openapi::Resource;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use crate::json_api::namespaced_resource;

/// The fields of a pod that the operator reads.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PartialPod {
    #[serde(deserialize_with = "metadata")]
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: PartialPodSpec,
    #[serde(default)]
    pub(super) status: PodStatus,
}

impl PartialPod {
    /// Returns the condition of this type.
    pub(super) fn condition(&self, kind: &str) -> Option<&PodCondition> {
        self.status.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
    }
}

/// The fields of a pod's spec that the operator reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PartialPodSpec {
    pub(super) termination_grace_period_seconds: Option<u64>,
    pub(super) node_name: Option<String>,
    #[serde(default)]
    pub(super) containers: Vec<PartialContainer>,
    #[serde(default)]
    pub(super) init_containers: Vec<PartialContainer>,
    #[serde(default)]
    pub(super) scheduling_gates: Vec<IgnoredAny>,
}

/// The fields of a container that the operator reads.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PartialContainer {
    pub(super) name: String,
    pub(super) image: Option<String>,
    /// `Always` for an init container that is a sidecar.
    pub(super) restart_policy: Option<String>,
}

/// Deserialises metadata without `managedFields`, which are the largest part of the metadata.
fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct PartialMetadata {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        labels: Option<BTreeMap<String, String>>,
        owner_references: Option<Vec<OwnerReference>>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        deletion_grace_period_seconds: Option<i64>,
    }
    let read = PartialMetadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: read.name,
        namespace: read.namespace,
        uid: read.uid,
        resource_version: read.resource_version,
        labels: read.labels,
        owner_references: read.owner_references,
        creation_timestamp: read.creation_timestamp,
        deletion_timestamp: read.deletion_timestamp,
        deletion_grace_period_seconds: read.deletion_grace_period_seconds,
        ..ObjectMeta::default()
    })
}

namespaced_resource!(PartialPod, Pod::API_VERSION, Pod::KIND, "pods");
