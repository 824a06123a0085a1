//! API clients of one namespace.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::{Client, Resource};

use crate::job::RawPipelineJob;
use crate::json_api::JsonApi;
use crate::observe::PartialPod;

/// API clients of the kinds that the operator uses, in one namespace.
#[derive(Clone)]
pub(crate) struct Clients {
    /// PipelineJobs.
    pub jobs: Api<RawPipelineJob>,
    /// Pods, to create and delete them.
    pub pods: JsonApi,
    /// Pods, to list them.
    pub pod_reader: Api<PartialPod>,
    /// The Service of stage 0.
    pub services: JsonApi,
    /// The attempts' ConfigMaps.
    pub config_maps: JsonApi,
    /// NetworkPolicies.
    pub network_policies: JsonApi,
    /// Logs of pods.
    pub pod_logs: Api<Pod>,
    /// The client that all others use.
    pub client: Client,
    namespace: String,
}

impl Clients {
    /// The clients of `namespace`.
    pub(crate) fn new(client: &Client, namespace: &str) -> Clients {
        fn json_api<K: Resource<DynamicType = ()>>(client: &Client, namespace: &str) -> JsonApi {
            JsonApi::new(client, K::url_path(&(), Some(namespace)))
        }
        Clients {
            jobs: Api::namespaced(client.clone(), namespace),
            pods: json_api::<Pod>(client, namespace),
            pod_reader: Api::namespaced(client.clone(), namespace),
            services: json_api::<Service>(client, namespace),
            config_maps: json_api::<ConfigMap>(client, namespace),
            network_policies: json_api::<NetworkPolicy>(client, namespace),
            pod_logs: Api::namespaced(client.clone(), namespace),
            client: client.clone(),
            namespace: namespace.to_owned(),
        }
    }

    /// The client of a kind that not every cluster has.
    pub(crate) fn dynamic(&self, resource: &ApiResource) -> JsonApi {
        JsonApi::new(&self.client, DynamicObject::url_path(resource, Some(&self.namespace)))
    }
}
