//! The PodGroup for gang scheduling, in the APIs of several schedulers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodSchedulingGroup;
use k8s_openapi::api::scheduling::v1alpha2::{
    GangSchedulingPolicy, PodGroupSchedulingPolicy, PodGroupSpec as NativePodGroupSpec,
};
use kube::api::{ApiResource, GroupVersionKind, NotUsed, Object};
use serde::Serialize;
use serde_json::{Map, Value};

use super::json::to_json;
use super::{AttemptTemplate, JobReference, attempt_name, names};

/// The API of a PodGroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodGroupApi {
    /// The API of Kubernetes itself, in the newest version that the cluster serves.
    Native(&'static str),
    /// The API of Volcano.
    Volcano,
    /// The API of the coscheduling plugin of the Kubernetes project scheduler-plugins.
    Coscheduling,
}

/// A PodGroup of any [`PodGroupApi`].
pub(crate) type PodGroup = Object<PodGroupSpec, NotUsed>;

/// The spec of a PodGroup.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum PodGroupSpec {
    /// A PodGroup of Kubernetes' own API; the fields that the operator uses are the same in all versions of this API.
    Native(Box<NativePodGroupSpec>),
    /// A PodGroup of Volcano's API or of the coscheduling plugin's API.
    #[serde(rename_all = "camelCase")]
    MinMember {
        /// The number of pods that are scheduled together.
        min_member: u32,
        /// The queue, for Volcano only; `None` means Volcano's default queue.
        #[serde(skip_serializing_if = "Option::is_none")]
        queue: Option<String>,
        /// The priority class of the group, for Volcano only.
        #[serde(skip_serializing_if = "Option::is_none")]
        priority_class_name: Option<String>,
    },
}

/// The annotation from which Volcano reads the queue of a pod, if no PodGroup names the queue. In the pod template, the
/// annotation names the queue of the PodGroup.
const VOLCANO_QUEUE: &str = "scheduling.volcano.sh/queue-name";

impl PodGroupApi {
    /// All APIs. The newer version of Kubernetes' own API comes first, so that the operator prefers it.
    pub(crate) const ALL: [PodGroupApi; 4] = [
        PodGroupApi::Native("scheduling.k8s.io/v1beta1"),
        PodGroupApi::Native("scheduling.k8s.io/v1alpha2"),
        PodGroupApi::Volcano,
        PodGroupApi::Coscheduling,
    ];

    /// Returns the group and version, which the attempt template also stores.
    pub(crate) const fn api_version(self) -> &'static str {
        match self {
            PodGroupApi::Native(version) => version,
            PodGroupApi::Volcano => "scheduling.volcano.sh/v1beta1",
            PodGroupApi::Coscheduling => "scheduling.x-k8s.io/v1alpha1",
        }
    }

    /// Returns the API of this group and version; `None` for an unknown API.
    pub(crate) fn from_api_version(version: &str) -> Option<PodGroupApi> {
        PodGroupApi::ALL.into_iter().find(|api| api.api_version() == version)
    }

    /// Returns the PodGroup resource of this API.
    pub(crate) fn resource(self) -> ApiResource {
        let (group, version) = self.api_version().split_once('/').unwrap_or_default();
        ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, "PodGroup"))
    }

    /// Sets the scheduler of the group's pods, unless their template names one.
    pub(super) fn choose_scheduler(self, spec: &mut Map<String, Value>) {
        if self == PodGroupApi::Volcano {
            spec.entry("schedulerName").or_insert_with(|| "volcano".into());
        }
    }

    /// Adds a pod to the group.
    pub(super) fn add_pod(
        self,
        name: String,
        labels: &mut BTreeMap<String, String>,
        annotations: &mut BTreeMap<String, String>,
        spec: &mut Map<String, Value>,
    ) {
        match self {
            PodGroupApi::Native(_) => {
                let group = PodSchedulingGroup { pod_group_name: Some(name) };
                spec.insert("schedulingGroup".into(), to_json(&group));
            }
            PodGroupApi::Volcano => {
                annotations.insert("scheduling.k8s.io/group-name".into(), name);
            }
            PodGroupApi::Coscheduling => drop(labels.insert("scheduling.x-k8s.io/pod-group".into(), name)),
        }
    }
}

/// Returns the PodGroup of an attempt, in the form of `api`. Only Volcano's PodGroup has a queue and a priority class,
/// which come from the pod template.
pub(super) fn pod_group(job: &JobReference, api: PodGroupApi, attempt: &AttemptTemplate) -> PodGroup {
    let template_field = |part: &str, field: &[&str]| {
        let value = field.iter().try_fold(attempt.pod_template.get(part)?, |value, name| value.get(name));
        value?.as_str().map(str::to_owned)
    };
    let spec = match api {
        PodGroupApi::Native(_) => {
            let gang = GangSchedulingPolicy { min_count: i32::try_from(attempt.gang_size).unwrap_or(i32::MAX) };
            let scheduling_policy = PodGroupSchedulingPolicy { gang: Some(gang), basic: None };
            let native = NativePodGroupSpec { scheduling_policy, ..NativePodGroupSpec::default() };
            PodGroupSpec::Native(Box::new(native))
        }
        PodGroupApi::Volcano => PodGroupSpec::MinMember {
            min_member: attempt.gang_size,
            queue: template_field("metadata", &["annotations", VOLCANO_QUEUE]),
            priority_class_name: template_field("spec", &["priorityClassName"]),
        },
        PodGroupApi::Coscheduling => {
            PodGroupSpec::MinMember { min_member: attempt.gang_size, queue: None, priority_class_name: None }
        }
    };
    let name = attempt_name(job, attempt.number);
    let mut group = PodGroup::new(&name, &api.resource(), spec);
    group.metadata = names::metadata(job, name, Some(attempt.number));
    group
}
