//! The fields of an API pod that the operator reads. A watch delivers thousands of pods, and the operator does not need
//! their other fields.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

/// The fields of a pod that are read.
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
    /// The condition of this type.
    pub(super) fn condition(&self, kind: &str) -> Option<&PodCondition> {
        self.status.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
    }
}

/// The fields of a pod's spec that are read.
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

/// The fields of a container that are read.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PartialContainer {
    pub(super) name: String,
    pub(super) image: Option<String>,
    /// `Always` for an init container that is a sidecar.
    pub(super) restart_policy: Option<String>,
}

/// Metadata without `managedFields`, which are the largest part of the metadata.
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

impl Resource for PartialPod {
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
