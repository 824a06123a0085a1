//! The PodGroup for gang scheduling, in the APIs of several schedulers.

use serde_json::{Map, Value, json};

use super::{Owner, names};

/// The API of a PodGroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodGroupApi {
    /// Kubernetes' own, in the newest version that is served.
    Native(&'static str),
    /// Volcano's.
    Volcano,
    /// The scheduler-plugins'.
    Coscheduling,
}

impl PodGroupApi {
    /// All, the newest first.
    pub(crate) const ALL: [PodGroupApi; 4] = [
        PodGroupApi::Native("scheduling.k8s.io/v1beta1"),
        PodGroupApi::Native("scheduling.k8s.io/v1alpha2"),
        PodGroupApi::Volcano,
        PodGroupApi::Coscheduling,
    ];

    /// Group and version; also stored in the blueprint.
    pub(crate) const fn api_version(self) -> &'static str {
        match self {
            PodGroupApi::Native(version) => version,
            PodGroupApi::Volcano => "scheduling.volcano.sh/v1beta1",
            PodGroupApi::Coscheduling => "scheduling.x-k8s.io/v1alpha1",
        }
    }

    /// The API of this group and version.
    pub(crate) fn from_api_version(version: &str) -> Option<PodGroupApi> {
        PodGroupApi::ALL.into_iter().find(|api| api.api_version() == version)
    }

    /// Adds a pod to the group.
    pub(super) fn add_pod(
        self,
        name: &str,
        labels: &mut Map<String, Value>,
        annotations: &mut Map<String, Value>,
        spec: &mut Map<String, Value>,
    ) {
        match self {
            PodGroupApi::Native(_) => drop(spec.insert("schedulingGroup".into(), json!({ "podGroupName": name }))),
            PodGroupApi::Volcano => {
                annotations.insert("scheduling.k8s.io/group-name".into(), name.into());
                spec.entry("schedulerName").or_insert_with(|| "volcano".into());
            }
            PodGroupApi::Coscheduling => drop(labels.insert("scheduling.x-k8s.io/pod-group".into(), name.into())),
        }
    }
}

/// The PodGroup of an attempt.
pub(crate) fn pod_group(owner: &Owner, api: PodGroupApi, attempt: u64, stages: u32) -> Value {
    let spec = match api {
        PodGroupApi::Native(_) => json!({ "schedulingPolicy": { "gang": { "minCount": stages } } }),
        PodGroupApi::Volcano | PodGroupApi::Coscheduling => json!({ "minMember": stages }),
    };
    json!({
        "apiVersion": api.api_version(),
        "kind": "PodGroup",
        "metadata": names::metadata(owner, &names::attempt_name(owner, attempt), Some(attempt)),
        "spec": spec,
    })
}
