//! A Workload of Kueue's API `kueue.x-k8s.io/v1beta2`, as far as the operator reads it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::{Resource, ResourceExt};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use stagecoach_api::contract::Mesh;

use super::keys::{DATA_PARALLEL_ANNOTATION, SLICE_NAME_ANNOTATION, STAGES_ANNOTATION};
use super::pod_sets::SPARES;

/// The group and version of Kueue's API.
pub(crate) const KUEUE_API_VERSION: &str = "kueue.x-k8s.io/v1beta2";

/// The types of a Workload's conditions.
pub(crate) mod condition_type {
    pub(crate) const QUOTA_RESERVED: &str = "QuotaReserved";
    pub(crate) const ADMITTED: &str = "Admitted";
    pub(crate) const EVICTED: &str = "Evicted";
    pub(crate) const FINISHED: &str = "Finished";
    pub(crate) const PODS_READY: &str = "PodsReady";
    pub(crate) const REQUEUED: &str = "Requeued";
}

/// A Workload: what a job asks of its queue, and what the queue answers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Workload {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: WorkloadSpec,
    #[serde(default)]
    pub(crate) status: WorkloadStatus,
}

/// The part of the spec that the operator reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WorkloadSpec {
    pub(crate) queue_name: String,
    pub(crate) priority_class_ref: Option<PriorityClassRef>,
    pub(crate) priority: Option<i32>,
    pub(crate) pod_sets: Vec<PodSetCount>,
}

/// The class of a Workload's priority.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct PriorityClassRef {
    pub(crate) kind: String,
    pub(crate) name: String,
}

/// Name and counts of a pod set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodSetCount {
    pub(crate) name: String,
    /// Kueue's default is 1.
    #[serde(default = "one")]
    pub(crate) count: u32,
    #[serde(default)]
    pub(crate) min_count: Option<u32>,
}

const fn one() -> u32 {
    1
}

/// The part of the status that the operator reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WorkloadStatus {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) admission: Option<QueueAdmission>,
    pub(crate) admission_checks: Vec<AdmissionCheckState>,
    pub(crate) reclaimable_pods: Vec<PodSetCount>,
}

/// The admission of a Workload.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct QueueAdmission {
    pub(crate) cluster_queue: String,
    pub(crate) pod_set_assignments: Vec<PodSetAssignment>,
}

impl QueueAdmission {
    /// The names that decide where the pods run.
    fn placement(&self) -> impl Iterator<Item = &str> {
        let sets = self.pod_set_assignments.iter();
        let flavors = sets.flat_map(|set| {
            let flavors = set.flavors.iter().flat_map(|(resource, flavor)| [resource.as_str(), flavor.as_str()]);
            std::iter::once(set.name.as_str()).chain(flavors)
        });
        std::iter::once(self.cluster_queue.as_str()).chain(flavors)
    }
}

/// The resources that a pod set gets.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSetAssignment {
    pub(crate) name: String,
    /// The ResourceFlavor of each resource.
    pub(crate) flavors: BTreeMap<String, String>,
    pub(crate) count: Option<u32>,
    #[serde(deserialize_with = "is_present")]
    pub(crate) topology_assignment: bool,
}

/// Whether a field of any form is given.
fn is_present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<IgnoredAny>::deserialize(deserializer)?.is_some())
}

/// The state of an admission check.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AdmissionCheckState {
    pub(crate) name: String,
    pub(crate) pod_set_updates: Vec<PodSetUpdate>,
}

/// The changes that an admission check wants of the pods of a pod set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSetUpdate {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) node_selector: BTreeMap<String, String>,
    pub(crate) tolerations: Vec<Value>,
}

impl Workload {
    /// The condition of this type.
    pub(crate) fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.type_ == kind)
    }

    fn is_true(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == "True")
    }

    /// Whether the Workload takes part in the queue: it is neither finished nor being deleted.
    pub(crate) fn is_unfinished(&self) -> bool {
        !self.is_finished() && self.metadata.deletion_timestamp.is_none()
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.is_true(condition_type::FINISHED)
    }

    pub(crate) fn is_evicted(&self) -> bool {
        self.is_true(condition_type::EVICTED)
    }

    /// Whether quota is reserved for the Workload.
    pub(crate) fn has_reservation(&self) -> bool {
        self.is_true(condition_type::QUOTA_RESERVED)
    }

    /// Whether the job may have the pods of this Workload.
    pub(crate) fn is_admitted(&self) -> bool {
        let is_admitted = self.is_true(condition_type::ADMITTED) && self.status.admission.is_some();
        self.is_unfinished() && self.has_reservation() && is_admitted && !self.is_evicted()
    }

    /// The number that identifies the admissions of this Workload and of all slices of its chain with the same
    /// placement: an attempt continues under another slice. An evicted Workload gives its reservation back only after the
    /// job has stopped, so that the admissions before and after an eviction never meet in one attempt. The number is
    /// below 2^53 and not 0.
    pub(crate) fn admission_id(&self) -> u64 {
        let chain = self.annotations().get(SLICE_NAME_ANNOTATION).cloned().or(self.uid()).unwrap_or_default();
        let admission = self.status.admission.as_ref();
        let mut hasher = blake3::Hasher::new();
        for part in admission.into_iter().flat_map(QueueAdmission::placement).chain([chain.as_str()]) {
            hasher.update(part.as_bytes()).update(b"\n");
        }
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        (u64::from_le_bytes(bytes) >> 11).max(1)
    }

    /// The stages and replicas that the counts of the spec stand for.
    pub(crate) fn mesh(&self) -> Option<Mesh> {
        let number = |key: &str| self.annotations().get(key)?.parse().ok();
        Some(Mesh { stages: number(STAGES_ANNOTATION)?, data_parallel: number(DATA_PARALLEL_ANNOTATION)? })
    }

    /// The stages and replicas that are admitted. With a partial admission, the replicas are fewer than those of the
    /// spec. Pods that make no complete replica do not count.
    pub(crate) fn admitted_mesh(&self) -> Option<Mesh> {
        let asked = self.mesh()?;
        let replicas = |set: &PodSetCount| {
            let admitted = self.admitted_count(set);
            let full = u64::from(asked.data_parallel) * u64::from(admitted);
            u32::try_from(full.checked_div(u64::from(set.count)).unwrap_or(0)).unwrap_or(u32::MAX)
        };
        let stages = self.spec.pod_sets.iter().filter(|set| set.name != SPARES);
        let data_parallel = stages.map(replicas).min()?.min(asked.data_parallel);
        Some(Mesh { stages: asked.stages, data_parallel }).filter(|mesh| mesh.data_parallel > 0)
    }

    /// The number of admitted pods of a pod set that the job has given back.
    pub(crate) fn surrendered(&self, set: &PodSetCount) -> u32 {
        self.status.reclaimable_pods.iter().find(|given| given.name == set.name).map_or(0, |given| given.count)
    }

    /// The number of admitted pods of a pod set. After a pod set became smaller in place, the admission still has the
    /// former number.
    pub(crate) fn admitted_count(&self, set: &PodSetCount) -> u32 {
        let assignments = self.status.admission.iter().flat_map(|admission| &admission.pod_set_assignments);
        let assigned = assignments.filter(|assigned| assigned.name == set.name).find_map(|assigned| assigned.count);
        assigned.map_or(set.count, |assigned| assigned.min(set.count))
    }
}

impl Resource for Workload {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Workload".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        KUEUE_API_VERSION.split_once('/').unwrap_or_default().0.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        KUEUE_API_VERSION.split_once('/').unwrap_or_default().1.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "workloads".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
