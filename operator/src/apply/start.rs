//! Starts an attempt: creates the objects that its pods need, then the pods.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::DeleteParams;
use kube::core::PartialObjectMeta;
use serde::de::IgnoredAny;
use stagecoach_api::contract::{ATTEMPT_LABEL, Mesh};
use stagecoach_api::job::NetworkPolicyMode;
use stagecoach_lifecycle::{Attempt, InstanceId};

use super::create::{create_or_update, create_owned, get_or_create, get_owned};
use super::{ApplyContext, ApplyError};
use crate::build::{self, AttemptObjects, AttemptTemplate, JobReference, PodRole, build};
use crate::clients::Clients;

/// Creates the missing objects of attempt `number` and the missing pods of `incarnations`, which maps each rank to the
/// number of the pod that runs the rank: 0 for the first pod, and a higher number for each replacement.
pub(super) async fn start(
    context: &ApplyContext<'_>,
    number: u64,
    mesh: Mesh,
    incarnations: &BTreeMap<u32, u32>,
) -> Result<(), ApplyError> {
    let ApplyContext { job, pods, clients, .. } = *context;
    // only `StartAttempt` includes the first pod of rank 0; when stages are replaced or replicas are added later, the
    // attempt's objects exist already
    let is_new = incarnations.get(&0) == Some(&0);
    let is_first = number == 1 && is_new;
    let attempt = Attempt { mesh, ..job.desired().attempt(number) };
    let mut template = attempt_template(context, attempt).await?;
    let older = if is_first { Vec::new() } else { older_attempts(clients, &job.reference, number).await? };
    let before = older.iter().filter_map(|(_, template)| template.as_ref()).max_by_key(|template| template.number);
    if let Some(before) = before.filter(|_| context.kept_image.is_some()) {
        template = template.with_job_file_of(before);
    }
    let template = create_objects(context, &template, is_new).await?;
    // delete older attempts before creating the pods: once all pods exist, `lifecycle` does not decide `StartAttempt`
    // again, and a failed deletion would not be repeated
    delete_attempts(clients, &job.reference, older).await?;
    let exists = |instance| pods.of_attempt(number).any(|pod| pod.instance_id() == Some(instance));
    let instances = incarnations.iter().map(|(&rank, &incarnation)| InstanceId { rank, incarnation });
    let missing: Vec<_> = instances.filter(|instance| !exists(*instance)).map(PodRole::Stage).collect();
    create_pods(context, &template, &missing).await
}

/// Returns the template of `attempt` according to the current spec.
pub(super) async fn attempt_template(
    context: &ApplyContext<'_>,
    attempt: Attempt,
) -> Result<AttemptTemplate, ApplyError> {
    let manifest = &context.job.manifest;
    let pod_group_api =
        context.pod_group_discovery.choose(&context.clients.client, manifest.spec.scheduling.gang).await?;
    let image = context.kept_image.unwrap_or(context.default_image);
    let mut template = AttemptTemplate::new(manifest, attempt, image, pod_group_api)?;
    template.excluded_nodes.clone_from(context.excluded_nodes);
    template.placement = context.placement.cloned().transpose().map_err(ApplyError::Rejected)?;
    Ok(template)
}

/// Creates the objects of an attempt except its pods. An object may exist already; unless the attempt `is_new`, all
/// objects usually exist. Returns the stored template, because an earlier call may have stored a template that was
/// built from an older spec, or by another version of the operator.
async fn create_objects(
    context: &ApplyContext<'_>,
    template: &AttemptTemplate,
    is_new: bool,
) -> Result<AttemptTemplate, ApplyError> {
    let ApplyContext { job, clients, peers, .. } = *context;
    let reference = &job.reference;
    let has_policy = job.manifest.spec.network_policy.mode != NetworkPolicyMode::None;
    let peers = has_policy.then_some(peers);
    let is_first = template.number == 1 && is_new;
    // the two patterns of `AttemptObjects` in this function have no `..`, so that the compiler reports a new kind of
    // object that this function does not handle
    let AttemptObjects { service, network_policy, config_map, pod_group: _ } = build(reference, template, peers);
    let policy = async {
        let Some(policy) = network_policy else { return Ok(()) };
        create_or_update(context, &clients.network_policies, &policy, is_first).await
    };
    let service = create_or_update(context, &clients.services, &service, is_first);
    let stored = async {
        match is_new {
            true => create_owned::<ConfigMap>(&clients.config_maps, reference, &config_map).await,
            false => get_or_create(&clients.config_maps, reference, &config_map).await,
        }
    };
    let ((), (), stored) = tokio::try_join!(policy, service, stored)?;
    let metadata = stored.metadata.clone();
    context.add_known(context.known(&PartialObjectMeta::<ConfigMap> { metadata, ..Default::default() }));

    let template = AttemptTemplate::from_config_map(&stored)?;
    let AttemptObjects { service: _, network_policy: _, config_map: _, pod_group } = build(reference, &template, peers);
    if let (Some(api), Some(group)) = (template.pod_group_api, pod_group) {
        let pod_groups = clients.pod_groups(api);
        match is_new {
            true => create_owned::<IgnoredAny>(&pod_groups, reference, &group).await?,
            false => get_or_create(&pod_groups, reference, &group).await?,
        };
    }
    Ok(template)
}

/// Creates the missing spares among `numbers`. The other objects of the attempt exist already.
pub(super) async fn start_spares(
    context: &ApplyContext<'_>,
    attempt: u64,
    numbers: &BTreeSet<u32>,
) -> Result<(), ApplyError> {
    let ApplyContext { job, pods, clients, .. } = *context;
    let name = build::attempt_name(&job.reference, attempt);
    // without the ConfigMap, create no spare now: another client has deleted the ConfigMap, and `repair` restores it
    let Some(stored) = get_owned(&clients.config_maps, &job.reference, &name).await? else { return Ok(()) };
    let stored = serde_json::from_value(stored).map_err(kube::Error::SerdeError)?;
    let template = AttemptTemplate::from_config_map(&stored)?;
    let exists = |number: u32| pods.of_attempt(attempt).any(|pod| !pod.deleted && pod.spare() == Some(number));
    let missing: Vec<_> = numbers.iter().copied().filter(|number| !exists(*number)).map(PodRole::Spare).collect();
    create_pods(context, &template, &missing).await
}

/// Creates the pods of an attempt for these roles.
async fn create_pods(
    context: &ApplyContext<'_>,
    attempt: &AttemptTemplate,
    roles: &[PodRole],
) -> Result<(), ApplyError> {
    let job = &context.job.reference;
    let pods: Vec<_> = roles.iter().map(|role| build::pod(job, attempt, *role)).collect();
    let api = &context.clients.pods;
    try_join_all(pods.iter().map(|pod| create_owned::<IgnoredAny>(api, job, pod))).await?;
    Ok(())
}

/// An attempt's ConfigMap and the template in it. The template is `None` if it can't be parsed because another client
/// has changed the ConfigMap.
type StoredAttempt = (ConfigMap, Option<AttemptTemplate>);

/// Returns the ConfigMaps of the job's attempts other than `current`, with the templates in them.
async fn older_attempts(clients: &Clients, job: &JobReference, current: u64) -> kube::Result<Vec<StoredAttempt>> {
    let selector = format!("{},{}!={current}", build::pod_label_selector(job), ATTEMPT_LABEL);
    let listed = clients.config_maps.list::<ConfigMap>(&selector).await?.into_iter();
    let own = listed.filter(|stored| build::is_controlled_by(&stored.metadata, &job.uid));
    let with_template = |stored| {
        let template = AttemptTemplate::from_config_map(&stored).ok();
        (stored, template)
    };
    Ok(own.map(with_template).collect())
}

/// Deletes the objects of attempts that are over.
async fn delete_attempts(
    clients: &Clients,
    job: &JobReference,
    attempts: Vec<StoredAttempt>,
) -> Result<(), ApplyError> {
    for (config_map, template) in attempts {
        if let Some(template) = template {
            // the Service and the NetworkPolicy belong to the job, and `DeleteInstances` deletes pods
            let AttemptObjects { service: _, network_policy: _, config_map: _, pod_group } =
                build(job, &template, None);
            if let (Some(api), Some(group)) = (template.pod_group_api, pod_group) {
                clients.pod_groups(api).delete(&group.name_any(), &DeleteParams::default()).await?;
            }
        }
        // delete the ConfigMap last: it stores which other objects the attempt has
        clients.config_maps.delete(&config_map.name_any(), &DeleteParams::default()).await?;
    }
    Ok(())
}
