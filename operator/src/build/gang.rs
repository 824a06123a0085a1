//! The PodGroup that makes a scheduler place all stages of an attempt or none, in the forms that schedulers know.

use serde_json::{Map, Value, json};

use super::{Owner, names};

/// Whose PodGroup it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gang {
    /// Kubernetes' own, in the first version of its API that is served.
    Native(&'static str),
    /// Volcano's.
    Volcano,
    /// The scheduler-plugins'.
    Coscheduling,
}

impl Gang {
    /// All, the newest first.
    pub const ALL: [Gang; 4] = [
        Gang::Native("scheduling.k8s.io/v1beta1"),
        Gang::Native("scheduling.k8s.io/v1alpha2"),
        Gang::Volcano,
        Gang::Coscheduling,
    ];

    /// Group and version of its API, which also stands for it in a blueprint.
    pub const fn api_version(self) -> &'static str {
        match self {
            Gang::Native(version) => version,
            Gang::Volcano => "scheduling.volcano.sh/v1beta1",
            Gang::Coscheduling => "scheduling.x-k8s.io/v1alpha1",
        }
    }

    /// The gang of this API version.
    pub fn from_api_version(version: &str) -> Option<Gang> {
        Gang::ALL.into_iter().find(|gang| gang.api_version() == version)
    }

    /// Makes a pod a member.
    pub(super) fn join(
        self,
        name: &str,
        labels: &mut Map<String, Value>,
        annotations: &mut Map<String, Value>,
        spec: &mut Map<String, Value>,
    ) {
        match self {
            Gang::Native(_) => drop(spec.insert("schedulingGroup".into(), json!({ "podGroupName": name }))),
            Gang::Volcano => {
                annotations.insert("scheduling.k8s.io/group-name".into(), name.into());
                spec.entry("schedulerName").or_insert_with(|| "volcano".into());
            }
            Gang::Coscheduling => drop(labels.insert("scheduling.x-k8s.io/pod-group".into(), name.into())),
        }
    }
}

/// The PodGroup of an attempt.
pub fn pod_group(owner: &Owner, gang: Gang, attempt: u64, stages: u32) -> Value {
    let spec = match gang {
        Gang::Native(_) => json!({ "schedulingPolicy": { "gang": { "minCount": stages } } }),
        Gang::Volcano | Gang::Coscheduling => json!({ "minMember": stages }),
    };
    json!({
        "apiVersion": gang.api_version(),
        "kind": "PodGroup",
        "metadata": names::metadata(owner, &names::attempt_name(owner, attempt), Some(attempt)),
        "spec": spec,
    })
}
