//! Applies the decided actions. Every write is idempotent, so a crash between two writes is harmless.

mod create;
mod pod_group_discovery;
mod repair;
mod start;

use std::collections::BTreeSet;

use futures::future::try_join_all;
use kube::api::{DeleteParams, Preconditions};
use stagecoach_lifecycle::{AttemptAction, InstanceId, MIN_GRACE_SECONDS};

pub(crate) use pod_group_discovery::PodGroupDiscovery;
pub(crate) use repair::{Repair, repair, repairs};

use crate::build::{BuildError, JobReference, PolicyPeers};
use crate::clients::Clients;
use crate::job::ObservedJob;
use crate::observe::{BlockingReason, JobSnapshot, KnownObject, LogTails, ObservedPod, OwnedObject, OwnedObjects};

/// Why an action failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// The API server could not be reached, or an object changed meanwhile: try again.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The API server rejected an object: a user must change something.
    #[error("{}: {}", .0.reason, .0.message)]
    Rejected(BlockingReason),
}

impl From<BuildError> for ApplyError {
    fn from(error: BuildError) -> ApplyError {
        ApplyError::Rejected(BlockingReason { reason: "InvalidBlueprint".into(), message: error.to_string() })
    }
}

/// Shared inputs of all actions.
pub(crate) struct ApplyContext<'a> {
    /// API clients of the job's namespace.
    pub clients: &'a Clients,
    /// Which PodGroup APIs the cluster serves.
    pub pod_group_discovery: &'a PodGroupDiscovery,
    /// The jobs' other objects.
    pub owned_objects: &'a OwnedObjects,
    /// The logs that are being read.
    pub log_tails: &'a LogTails,
    /// Whom the jobs' NetworkPolicies let through.
    pub peers: PolicyPeers<'a>,
    /// The trainer's image if neither the pod template names one nor the job keeps one.
    pub default_image: &'a str,
    /// The image that the job keeps: it has trained with it.
    pub kept_image: Option<&'a str>,
    /// The nodes that the job's pods keep off.
    pub excluded_nodes: &'a BTreeSet<String>,
}

impl ApplyContext<'_> {
    /// Records an object as the API server answered it, before the watch delivers it.
    fn note(&self, job: &JobReference, stored: &impl OwnedObject) {
        self.owned_objects.insert(&job.uid, &job.namespace, KnownObject::new(stored));
    }
}

/// Grace period of spares that are not wanted: they have nothing to save.
const SPARE_GRACE_SECONDS: u64 = MIN_GRACE_SECONDS;

/// Applies `actions`, in their order. Returns why the API server rejected a spare, if it did: the job goes on without.
///
/// # Errors
/// The first that fails; the remaining actions are decided again.
pub(crate) async fn apply(
    context: &ApplyContext<'_>,
    job: &ObservedJob,
    snapshot: &JobSnapshot,
    actions: &[AttemptAction],
) -> Result<Option<BlockingReason>, ApplyError> {
    let mut rejected_spare = None;
    for action in actions {
        match *action {
            AttemptAction::StartAttempt { number, mesh } => {
                let pods = (0..mesh.ranks()).map(|rank| (rank, 0)).collect();
                start::start(context, job, snapshot, number, mesh, &pods).await?
            }
            AttemptAction::ReplaceStages { attempt, ref incarnations } => {
                start::start(context, job, snapshot, attempt, job.state.attempt.mesh, incarnations).await?
            }
            AttemptAction::RemoveReplaced { attempt, ref incarnations } => {
                let is_before = |InstanceId { rank, incarnation }: InstanceId| {
                    incarnations.get(&rank).is_some_and(|kept| incarnation < *kept)
                };
                let is_replaced = |pod: &&ObservedPod| pod.instance_id().is_some_and(is_before);
                let replaced = snapshot.pods_of_attempt(attempt).filter(is_replaced);
                delete_pods(context, job, replaced, &DeleteParams::default()).await?
            }
            AttemptAction::DeleteInstances { attempt, grace_seconds, unready_grace_seconds } => {
                let (unready, others): (Vec<_>, Vec<_>) =
                    snapshot.pods_of_attempt(attempt).partition(|pod| pod.state.is_unready());
                let (soon, later) = (within(unready_grace_seconds), within(grace_seconds));
                tokio::try_join!(
                    delete_pods(context, job, unready.into_iter(), &soon),
                    delete_pods(context, job, others.into_iter(), &later),
                )?;
            }
            AttemptAction::StartSpares { attempt, ref numbers } => {
                match start::start_spares(context, job, snapshot, attempt, numbers).await {
                    Err(ApplyError::Rejected(reason)) => rejected_spare = Some(reason),
                    other => other?,
                }
            }
            AttemptAction::RemoveSpares { attempt, ref numbers } => {
                let is_one = |pod: &&ObservedPod| pod.spare().is_some_and(|number| numbers.contains(&number));
                let params = within(SPARE_GRACE_SECONDS);
                delete_pods(context, job, snapshot.pods_of_attempt(attempt).filter(is_one), &params).await?
            }
            // the kubelet sends SIGKILL after the grace period
            AttemptAction::KillInstances { .. } => {}
        }
    }
    Ok(rejected_spare)
}

/// Deletion with this grace period. Exited pods are deleted too, unless their log is being read.
fn within(grace_seconds: u64) -> DeleteParams {
    DeleteParams::default().grace_period(u32::try_from(grace_seconds).unwrap_or(u32::MAX))
}

/// Deletes the pods of a finished job that run on although their trainer has ended: a sidecar must not keep what they hold.
/// Those that end by themselves stay for their logs.
pub(crate) async fn delete_lingering_pods(
    context: &ApplyContext<'_>,
    job: &ObservedJob,
    snapshot: &JobSnapshot,
) -> kube::Result<()> {
    let lingering = snapshot.pods.iter().filter(|pod| pod.has_exited() && !pod.ends_by_itself);
    delete_pods(context, job, lingering, &DeleteParams::default()).await
}

/// Deletes those of the pods that exist, unless their log is being read.
async fn delete_pods(
    context: &ApplyContext<'_>,
    job: &ObservedJob,
    pods: impl Iterator<Item = &ObservedPod>,
    params: &DeleteParams,
) -> kube::Result<()> {
    let clients = context.clients;
    let is_read = |pod: &ObservedPod| pod.has_exited() && context.log_tails.is_reading(&job.reference.uid, &pod.uid);
    let existing = pods.filter(|pod| !pod.deleted && !pod.terminating && !is_read(pod));
    let deletions = existing.map(async |pod| {
        let mut params = params.clone();
        // only this pod, not a later one of the same name
        params.preconditions = Some(Preconditions { uid: Some(pod.uid.clone()), ..Preconditions::default() });
        match clients.pods.delete(&pod.name, &params).await {
            // another pod of the same name
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            other => other,
        }
    });
    try_join_all(deletions).await.map(drop)
}
