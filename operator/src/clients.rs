//! API clients of one namespace.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};

use crate::build::kueue::{KUEUE_API_VERSION, Workload};
use crate::build::{PodGroup, PodGroupApi};
use crate::job::RawPipelineJob;
use crate::json_api::JsonApi;
use crate::observe::PartialPod;

/// API clients of the kinds that the operator uses, in one namespace.
#[derive(Clone)]
pub(crate) struct Clients {
    /// The client for PipelineJobs.
    pub jobs: Api<RawPipelineJob>,
    /// The client that creates and deletes pods.
    pub pods: JsonApi,
    /// The client that lists pods.
    pub pod_reader: Api<PartialPod>,
    /// The client for the Services of the jobs. Each selects stage 0 of the first replica.
    pub services: JsonApi,
    /// The client for the attempts' ConfigMaps.
    pub config_maps: JsonApi,
    /// The client for NetworkPolicies.
    pub network_policies: JsonApi,
    /// The client for Kueue's Workloads.
    pub workloads: JsonApi,
    /// The client for the logs of pods.
    pub pod_logs: Api<Pod>,
    /// The connection that all clients use.
    pub client: Client,
    namespace: String,
    field_manager: String,
}

impl Clients {
    /// Creates the clients of `namespace`. Their writes have this field manager.
    pub(crate) fn new(client: &Client, namespace: &str, field_manager: &str) -> Clients {
        Clients {
            jobs: Api::namespaced(client.clone(), namespace),
            pods: JsonApi::new::<Pod>(client, namespace, &(), field_manager),
            pod_reader: Api::namespaced(client.clone(), namespace),
            services: JsonApi::new::<Service>(client, namespace, &(), field_manager),
            config_maps: JsonApi::new::<ConfigMap>(client, namespace, &(), field_manager),
            network_policies: JsonApi::new::<NetworkPolicy>(client, namespace, &(), field_manager),
            workloads: JsonApi::new::<Workload>(client, namespace, &(), field_manager),
            pod_logs: Api::namespaced(client.clone(), namespace),
            client: client.clone(),
            namespace: namespace.to_owned(),
            field_manager: field_manager.to_owned(),
        }
    }

    /// Returns a client for a cluster-scoped kind of Kueue's API.
    pub(crate) fn of_kueue(&self, kind: &str) -> Api<DynamicObject> {
        let (group, version) = KUEUE_API_VERSION.split_once('/').unwrap_or_default();
        Api::all_with(self.client.clone(), &ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)))
    }

    /// Returns the field manager of the writes.
    pub(crate) fn field_manager(&self) -> &str {
        &self.field_manager
    }

    /// Returns a client for the PodGroups of `api`.
    pub(crate) fn pod_groups(&self, api: PodGroupApi) -> JsonApi {
        JsonApi::new::<PodGroup>(&self.client, &self.namespace, &api.resource(), &self.field_manager)
    }
}
