//! Starts an attempt: first the objects that its pods need, then the pods.

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
use crate::build::{self, AttemptObjects, AttemptTemplate, PodRole, build};
use crate::clients::Clients;
use crate::job::ObservedJob;
use crate::observe::JobSnapshot;

/// Creates the missing objects of attempt `number`, which has the processes of `mesh`, and of its pods those of `incarnations`, by rank.
pub(super) async fn start(
    context: &ApplyContext<'_>,
    job: &ObservedJob,
    snapshot: &JobSnapshot,
    number: u64,
    mesh: Mesh,
    incarnations: &BTreeMap<u32, u32>,
) -> Result<(), ApplyError> {
    let ApplyContext { clients, pod_group_discovery, peers, default_image, kept_image, excluded_nodes, .. } = *context;
    let spec = &job.manifest.spec;
    // where stages are replaced, the attempt's objects are there already
    let is_new = incarnations.values().all(|incarnation| *incarnation == 0);
    let first = number == 1 && is_new;
    let peers = (spec.network_policy.mode != NetworkPolicyMode::None).then_some(peers);
    let pod_group_api = pod_group_discovery.choose(&clients.client, spec.scheduling.gang).await?;
    let older = if first { Vec::new() } else { older_attempts(clients, job, number).await? };
    let attempt = Attempt { number, mesh, revision: job.desired().revision };
    let mut template =
        AttemptTemplate::new(&job.manifest, attempt, kept_image.unwrap_or(default_image), pod_group_api)?;
    template.excluded_nodes.clone_from(excluded_nodes);
    let before = older.iter().filter_map(|(_, template)| template.as_ref()).max_by_key(|template| template.number);
    if let Some(before) = before.filter(|_| kept_image.is_some()) {
        template = template.with_job_file_of(before);
    }

    // Both destructure without `..`: each kind of object is created by the one or the other.
    let AttemptObjects { service, network_policy, config_map, pod_group: _ } = build(&job.reference, &template, peers);
    let policy = async {
        let Some(policy) = network_policy else { return Ok(()) };
        create_or_update(context, &clients.network_policies, &job.reference, &policy, first).await
    };
    let service = create_or_update(context, &clients.services, &job.reference, &service, first);
    let stored = async {
        match is_new {
            true => create_owned::<ConfigMap>(&clients.config_maps, &job.reference, &config_map).await,
            false => get_or_create(&clients.config_maps, &job.reference, &config_map).await,
        }
    };
    let ((), (), stored) = tokio::try_join!(policy, service, stored)?;

    context.note(
        &job.reference,
        &PartialObjectMeta::<ConfigMap> { metadata: stored.metadata.clone(), ..Default::default() },
    );
    // The attempt may have been started before, from an older spec or by another version of the operator.
    let template = AttemptTemplate::from_config_map(&stored)?;
    let AttemptObjects { service: _, network_policy: _, config_map: _, pod_group } =
        build(&job.reference, &template, peers);
    if let (Some(api), Some(group)) = (template.pod_group_api, pod_group) {
        let pod_groups = clients.pod_groups(api);
        match is_new {
            true => create_owned::<IgnoredAny>(&pod_groups, &job.reference, &group).await?,
            false => get_or_create(&pod_groups, &job.reference, &group).await?,
        };
    }
    // before the pods: once all pods exist, StartAttempt is not decided again
    delete_attempts(clients, job, older).await?;
    let exists = |instance| snapshot.pods_of_attempt(number).any(|pod| pod.instance_id() == Some(instance));
    let instances = incarnations.iter().map(|(&rank, &incarnation)| InstanceId { rank, incarnation });
    let missing: Vec<_> = instances.filter(|instance| !exists(*instance)).map(PodRole::Stage).collect();
    create_pods(context, job, &template, &missing).await
}

/// Creates the missing ones of these spares of an attempt, whose other objects exist.
pub(super) async fn start_spares(
    context: &ApplyContext<'_>,
    job: &ObservedJob,
    snapshot: &JobSnapshot,
    attempt: u64,
    numbers: &BTreeSet<u32>,
) -> Result<(), ApplyError> {
    let name = build::attempt_name(&job.reference, attempt);
    // one that another client has deleted is made again by `repair`
    let Some(stored) = get_owned(&context.clients.config_maps, &job.reference, &name).await? else { return Ok(()) };
    let stored = serde_json::from_value(stored).map_err(kube::Error::SerdeError)?;
    let template = AttemptTemplate::from_config_map(&stored)?;
    let exists = |number: u32| snapshot.pods_of_attempt(attempt).any(|pod| !pod.deleted && pod.spare() == Some(number));
    let missing: Vec<_> = numbers.iter().copied().filter(|number| !exists(*number)).map(PodRole::Spare).collect();
    create_pods(context, job, &template, &missing).await
}

/// Creates these pods of an attempt.
async fn create_pods(
    context: &ApplyContext<'_>,
    job: &ObservedJob,
    attempt: &AttemptTemplate,
    roles: &[PodRole],
) -> Result<(), ApplyError> {
    let pods: Vec<_> = roles.iter().map(|role| build::pod(&job.reference, attempt, *role)).collect();
    let api = &context.clients.pods;
    try_join_all(pods.iter().map(|pod| create_owned::<IgnoredAny>(api, &job.reference, pod))).await?;
    Ok(())
}

/// An attempt's ConfigMap, and the template that it stores unless another client changed it.
type StoredAttempt = (ConfigMap, Option<AttemptTemplate>);

/// What is stored of the attempts before `current`.
async fn older_attempts(clients: &Clients, job: &ObservedJob, current: u64) -> kube::Result<Vec<StoredAttempt>> {
    let selector = format!("{},{}!={current}", build::pod_label_selector(&job.reference), ATTEMPT_LABEL);
    let listed = clients.config_maps.list::<ConfigMap>(&selector).await?.into_iter();
    let own = listed.filter(|stored| build::is_controlled_by(&stored.metadata, &job.reference.uid));
    let with_template = |stored| {
        let template = AttemptTemplate::from_config_map(&stored).ok();
        (stored, template)
    };
    Ok(own.map(with_template).collect())
}

/// Deletes the objects of attempts that are over.
async fn delete_attempts(clients: &Clients, job: &ObservedJob, attempts: Vec<StoredAttempt>) -> Result<(), ApplyError> {
    for (config_map, template) in attempts {
        if let Some(template) = template {
            // the Service and the NetworkPolicy are the job's, and pods are deleted by `DeleteInstances`
            let AttemptObjects { service: _, network_policy: _, config_map: _, pod_group } =
                build(&job.reference, &template, None);
            if let (Some(api), Some(group)) = (template.pod_group_api, pod_group) {
                clients.pod_groups(api).delete(&group.name_any(), &DeleteParams::default()).await?;
            }
        }
        // last: it says which other objects the attempt has
        clients.config_maps.delete(&config_map.name_any(), &DeleteParams::default()).await?;
    }
    Ok(())
}
