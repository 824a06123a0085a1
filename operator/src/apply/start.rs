//! Starts an attempt: first the objects that its pods need, then the pods.

use futures::future::try_join_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DeleteParams, GroupVersionKind};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use stagecoach_api::job::NetworkPolicyMode;

use super::create::{create_owned, ensure};
use super::{ApplyContext, ApplyError};
use crate::build::{self, Blueprint, PodGroupApi};
use crate::clients::Clients;
use crate::job::ObservedJob;
use crate::json_api::JsonApi;
use crate::observe::JobSnapshot;

/// Creates the missing objects of attempt `number`. Its pods are made from its ConfigMap, which is immutable: no attempt
/// mixes two versions of a spec, or two default images.
pub(super) async fn start(
    context: &ApplyContext<'_>,
    job: &ObservedJob,
    snapshot: &JobSnapshot,
    number: u64,
    stages: u32,
) -> Result<(), ApplyError> {
    let ApplyContext { clients, pod_group_discovery, readers, image } = *context;
    let owner = &job.owner;
    let first = number == 1;
    let mut blueprint = Blueprint::new(&job.manifest, number, stages, image)?;
    blueprint.pod_group_api = pod_group_discovery.choose(&clients.client, job.manifest.spec.scheduling.gang).await?;
    let policy = async {
        if job.manifest.spec.network_policy.mode == NetworkPolicyMode::None {
            return Ok(());
        }
        let policy = build::network_policy(owner, readers);
        ensure(&clients.network_policies, owner, &policy, "ingress", first).await
    };
    let service = build::service(owner, number);
    let service = ensure(&clients.services, owner, &service, "selector", first);
    let config_map = build::config_map(owner, &blueprint);
    let stored = create_owned::<Value>(&clients.config_maps, owner, &config_map);
    let ((), (), stored) = tokio::try_join!(policy, service, stored)?;
    let blueprint = build::read_config_map(&stored)?;
    if let Some(api) = blueprint.pod_group_api {
        let group = build::pod_group(owner, api, number, stages);
        create_owned::<IgnoredAny>(&pod_groups(clients, api), owner, &group).await?;
    }
    // before the pods: once all pods exist, StartAttempt is not decided again
    if !first {
        delete_old_attempts(clients, job, &blueprint).await?;
    }
    let missing = (0..stages).filter(|stage| snapshot.pods_of_attempt(number).all(|pod| pod.instance.stage != *stage));
    let pods: Vec<_> = missing.map(|stage| build::pod(owner, &blueprint, stage)).collect();
    try_join_all(pods.iter().map(|pod| create_owned::<IgnoredAny>(&clients.pods, owner, pod))).await?;
    Ok(())
}

/// Deletes the ConfigMaps and PodGroups of older attempts.
async fn delete_old_attempts(clients: &Clients, job: &ObservedJob, current: &Blueprint) -> Result<(), ApplyError> {
    let selector = format!("{},{}!={}", build::pod_label_selector(&job.owner), build::ATTEMPT_LABEL, current.attempt);
    for old in clients.config_maps.list(&selector).await? {
        let metadata = ObjectMeta::deserialize(&old["metadata"]).map_err(kube::Error::SerdeError)?;
        if !build::is_controlled_by(&metadata, &job.owner.uid) {
            continue;
        }
        let old_blueprint = build::read_config_map(&old).ok();
        if let Some((api, attempt)) = old_blueprint.and_then(|old| Some((old.pod_group_api?, old.attempt))) {
            pod_groups(clients, api)
                .delete(&build::attempt_name(&job.owner, attempt), &DeleteParams::default())
                .await?;
        }
        // last: the ConfigMap names the attempt's PodGroup
        let name = metadata.name.unwrap_or_default();
        clients.config_maps.delete(&name, &DeleteParams::default()).await?;
    }
    Ok(())
}

fn pod_groups(clients: &Clients, api: PodGroupApi) -> JsonApi {
    let (group, version) = api.api_version().split_once('/').unwrap_or_default();
    clients.dynamic(&ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, "PodGroup")))
}
