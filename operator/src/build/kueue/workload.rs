//! A Workload of Kueue's API `kueue.x-k8s.io/v1beta2`, with the fields that the operator reads.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::ResourceExt;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use stagecoach_api::contract::Mesh;

use crate::json_api::namespaced_resource;

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

/// A Workload: the request of a job to its queue, and the answer of the queue.
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
    pub(crate) pod_sets: Vec<PodSetCount>,
}

/// The class of a Workload's priority.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct PriorityClassRef {
    pub(crate) kind: String,
    pub(crate) name: String,
}

/// The name and the counts of a pod set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodSetCount {
    pub(crate) name: String,
    /// The number of pods. Kueue's default is 1.
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
    /// Returns the names that decide where the pods run.
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

/// Deserialises a field of any type to a bool: whether the field has a value.
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

/// The changes that an admission check demands for the pods of a pod set.
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
    /// Returns the condition of this type.
    pub(crate) fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.type_ == kind)
    }

    fn is_true(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == "True")
    }

    /// Whether the Workload is neither finished nor being deleted.
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

    /// Whether Kueue allows the job to run the pods of this Workload.
    pub(crate) fn is_admitted(&self) -> bool {
        let is_admitted = self.is_true(condition_type::ADMITTED) && self.status.admission.is_some();
        self.is_unfinished() && self.has_reservation() && is_admitted && !self.is_evicted()
    }

    /// Returns the id of this Workload's admission. The id is below 2^53 and not 0. An elastic job has a chain of
    /// Workload slices, each of which replaces the previous slice. The slices of a chain that have the same placement
    /// share one id, because an attempt continues when one slice replaces another. An admission after an eviction may
    /// repeat the id. No attempt can mix the two admissions, because an evicted Workload keeps its reservation until
    /// the job has stopped.
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

    /// Returns the stages and replicas from which the operator derived the counts of the spec; `None` if the Workload
    /// has no annotations of the operator.
    pub(crate) fn mesh(&self) -> Option<Mesh> {
        let number = |key: &str| self.annotations().get(key)?.parse().ok();
        Some(Mesh { stages: number(STAGES_ANNOTATION)?, data_parallel: number(DATA_PARALLEL_ANNOTATION)? })
    }

    /// Returns the admitted stages and replicas; `None` if they are unknown, or if no complete replica is admitted. A
    /// partial admission has fewer replicas than the spec. Pods of an incomplete replica do not count.
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

    /// Returns the number of pods in a pod set whose quota the job has released.
    pub(crate) fn reclaimable_count(&self, set: &PodSetCount) -> u32 {
        self.status.reclaimable_pods.iter().find(|given| given.name == set.name).map_or(0, |given| given.count)
    }

    /// Returns the number of admitted pods of a pod set. If the operator has reduced the count in the spec, the
    /// admission still has the larger count, and the reduced count applies.
    pub(crate) fn admitted_count(&self, set: &PodSetCount) -> u32 {
        let assignments = self.status.admission.iter().flat_map(|admission| &admission.pod_set_assignments);
        let assigned = assignments.filter(|assigned| assigned.name == set.name).find_map(|assigned| assigned.count);
        assigned.map_or(set.count, |assigned| assigned.min(set.count))
    }
}

namespaced_resource!(Workload, KUEUE_API_VERSION, "Workload", "workloads");
