//! Constructs the Kubernetes objects of an attempt, which is one start of all stages of a job. The construction is
//! pure: the same job and attempt template give the same objects.

mod attempt_template;
mod container;
mod job_file;
mod json;
pub(crate) mod kueue;
mod names;
mod network_policy;
mod pod;
mod pod_group;
mod service;

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;

pub(crate) use attempt_template::{AttemptTemplate, BuildError};
pub use names::{JobReference, labels};
pub(crate) use names::{PodRole, attempt_name, is_controlled_by, metadata, pod_label_selector};
pub use network_policy::{PolicyPeers, network_policy};
pub(crate) use pod::{missing_gpu, missing_volume, pod, surplus_gpus, template_of_stage, workspace_claim};
pub(crate) use pod_group::{PodGroup, PodGroupApi};
pub(crate) use service::service;

/// All objects of one attempt except its pods.
#[derive(Clone, Debug)]
pub(crate) struct AttemptObjects {
    /// The Service that selects stage 0 of the first replica in the attempt. All attempts of the job share one Service.
    pub(crate) service: Service,
    /// The NetworkPolicy that all attempts of the job share; `None` if the job has no NetworkPolicy.
    pub(crate) network_policy: Option<NetworkPolicy>,
    /// The ConfigMap that stores the attempt template.
    pub(crate) config_map: ConfigMap,
    /// The PodGroup; `None` without gang scheduling.
    pub(crate) pod_group: Option<PodGroup>,
}

/// Returns the objects of the attempt that `attempt` describes. `peers` is `None` for a job without a NetworkPolicy.
pub(crate) fn build(job: &JobReference, attempt: &AttemptTemplate, peers: Option<PolicyPeers<'_>>) -> AttemptObjects {
    AttemptObjects {
        service: service(job, attempt.number, attempt.mesh),
        network_policy: peers.map(|peers| network_policy(job, peers)),
        config_map: attempt.to_config_map(job),
        pod_group: attempt.pod_group_api.map(|api| pod_group::pod_group(job, api, attempt)),
    }
}

#[cfg(test)]
mod tests;
