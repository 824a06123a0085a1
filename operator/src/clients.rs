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
    /// Workloads of Kueue.
    pub workloads: JsonApi,
    /// Logs of pods.
    pub pod_logs: Api<Pod>,
    /// The client that the other fields use.
    pub client: Client,
    namespace: String,
    field_manager: String,
}

impl Clients {
    /// The clients of `namespace`. Their writes have this field manager.
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

    /// Objects of a kind of Kueue that has no namespace.
    pub(crate) fn of_kueue(&self, kind: &str) -> Api<DynamicObject> {
        let (group, version) = KUEUE_API_VERSION.split_once('/').unwrap_or_default();
        Api::all_with(self.client.clone(), &ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)))
    }

    /// The field manager of the writes.
    pub(crate) fn field_manager(&self) -> &str {
        &self.field_manager
    }

    /// PodGroups of an API that the cluster serves.
    pub(crate) fn pod_groups(&self, api: PodGroupApi) -> JsonApi {
        JsonApi::new::<PodGroup>(&self.client, &self.namespace, &api.resource(), &self.field_manager)
    }
}
