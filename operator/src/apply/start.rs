//! Starting an attempt: what its pods need, then the pods.

use futures::future::try_join_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DeleteParams, GroupVersionKind};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use stagecoach_api::job::NetworkPolicyMode;

use super::collection::Collection;
use super::create::{create, ensure};
use super::{ApplyError, Kinds, Means};
use crate::build::{self, Blueprint, Gang};
use crate::job::Job;
use crate::observe::Look;

/// Creates what is missing of attempt `number`. Its pods are made from its ConfigMap, which is never written again: no
/// attempt mixes two versions of a spec, or two default images.
pub(super) async fn start(
    means: &Means<'_>,
    job: &Job,
    look: &Look,
    number: u64,
    stages: u32,
) -> Result<(), ApplyError> {
    let Means { kinds, gangs, readers, image } = *means;
    let owner = &job.owner;
    let first = number == 1;
    let mut blueprint = Blueprint::new(&job.job, number, stages, image)?;
    blueprint.gang = gangs.choose(&kinds.client, job.job.spec.scheduling.gang).await?;
    let policy = async {
        if job.job.spec.network_policy.mode == NetworkPolicyMode::None {
            return Ok(());
        }
        let policy = build::network_policy(owner, readers);
        ensure(&kinds.network_policies, owner, &policy, "ingress", first).await
    };
    let service = build::service(owner, number);
    let service = ensure(&kinds.services, owner, &service, "selector", first);
    let config_map = build::config_map(owner, &blueprint);
    let kept = create::<Value>(&kinds.config_maps, owner, &config_map);
    let ((), (), kept) = tokio::try_join!(policy, service, kept)?;
    let blueprint = build::read_config_map(&kept)?;
    if let Some(gang) = blueprint.gang {
        let group = build::pod_group(owner, gang, number, stages);
        create::<IgnoredAny>(&pod_groups(kinds, gang), owner, &group).await?;
    }
    // before the pods: once they are all there, nobody comes here again
    if !first {
        sweep(kinds, job, &blueprint).await?;
    }
    let missing = (0..stages).filter(|stage| look.of(number).all(|pod| pod.instance.stage != *stage));
    let pods: Vec<_> = missing.map(|stage| build::pod(owner, &blueprint, stage)).collect();
    try_join_all(pods.iter().map(|pod| create::<IgnoredAny>(&kinds.pods, owner, pod))).await?;
    Ok(())
}

/// Removes the blueprints and PodGroups of attempts that are over.
async fn sweep(kinds: &Kinds, job: &Job, now: &Blueprint) -> Result<(), ApplyError> {
    let selector = format!("{},{}!={}", build::pod_query(&job.owner), build::ATTEMPT, now.attempt);
    for old in kinds.config_maps.list(&selector).await? {
        let metadata = ObjectMeta::deserialize(&old["metadata"]).map_err(kube::Error::SerdeError)?;
        if !build::is_controlled_by(&metadata, &job.owner.uid) {
            continue;
        }
        let then = build::read_config_map(&old).ok();
        if let Some((gang, attempt)) = then.and_then(|then| Some((then.gang?, then.attempt))) {
            pod_groups(kinds, gang).delete(&build::attempt_name(&job.owner, attempt), &DeleteParams::default()).await?;
        }
        // last: it tells what else there is
        let name = metadata.name.unwrap_or_default();
        kinds.config_maps.delete(&name, &DeleteParams::default()).await?;
    }
    Ok(())
}

fn pod_groups(kinds: &Kinds, gang: Gang) -> Collection {
    let (group, version) = gang.api_version().split_once('/').unwrap_or_default();
    kinds.of(&ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, "PodGroup")))
}
