//! Applies the actions that `lifecycle::decide` has decided. Every write is idempotent, so a crash between two writes
//! is harmless.

mod create;
mod pod_group_discovery;
mod repair;
mod start;

use std::collections::BTreeSet;

use futures::future::try_join_all;
use kube::api::{DeleteParams, Preconditions};
use stagecoach_api::job::condition_reason;
use stagecoach_lifecycle::{AttemptAction, InstanceId, MIN_GRACE_SECONDS};

pub(crate) use create::create_owned;
pub(crate) use pod_group_discovery::PodGroupDiscovery;
pub(crate) use repair::{Repair, repair, repairs};

use crate::build::kueue::PodSetPlacements;
use crate::build::{BuildError, PolicyPeers};
use crate::clients::Clients;
use crate::job::ParsedJob;
use crate::observe::{BlockingReason, KnownObject, LogTails, ObservedPod, ObservedPods, OwnedObject, OwnedObjects};
use crate::rejection::CreationResults;

/// The reason why an action failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// The API server could not be reached, or another client changed an object between a read and a write. The
    /// operator tries again.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The API server rejected an object, or another object has the same name. A user must change something.
    #[error("{}: {}", .0.reason, .0.message)]
    Rejected(BlockingReason),
}

impl From<BuildError> for ApplyError {
    fn from(error: BuildError) -> ApplyError {
        ApplyError::Rejected(BlockingReason {
            reason: condition_reason::INVALID_ATTEMPT_TEMPLATE.into(),
            message: error.to_string(),
        })
    }
}

/// The inputs of all actions and repairs of one job.
pub(crate) struct ApplyContext<'a> {
    /// The job.
    pub job: &'a ParsedJob,
    /// The job's observed pods.
    pub pods: &'a ObservedPods,
    /// API clients of the job's namespace.
    pub clients: &'a Clients,
    /// The PodGroup APIs that the cluster serves.
    pub pod_group_discovery: &'a PodGroupDiscovery,
    /// The known Services, NetworkPolicies and ConfigMaps of all jobs.
    pub owned_objects: &'a OwnedObjects,
    /// The reads of the logs of failed pods.
    pub log_tails: &'a LogTails,
    /// The placement of the pods that the job's queue has admitted, or the reason why no placement is possible. `None`
    /// for a job without a queue, and for actions that create no pod.
    pub placement: Option<&'a Result<PodSetPlacements, BlockingReason>>,
    /// The peers outside the job with which its NetworkPolicy allows traffic.
    pub peers: PolicyPeers<'a>,
    /// The trainer's image if the pod template names no image and `kept_image` is `None`.
    pub default_image: &'a str,
    /// The image of the attempt, if its pods have an image already. For a new attempt, the image of the previous
    /// attempt, if training has progressed with that image.
    pub kept_image: Option<&'a str>,
    /// The nodes on which the job's pods must not run.
    pub excluded_nodes: &'a BTreeSet<String>,
}

impl ApplyContext<'_> {
    /// Returns the state that the operator remembers of `stored`, an object that the API server returned.
    fn known(&self, stored: &impl OwnedObject) -> KnownObject {
        KnownObject::new(stored, self.clients.field_manager())
    }

    /// Adds an object of the job to the known objects before the watch delivers it.
    fn add_known(&self, known: KnownObject) {
        let reference = &self.job.reference;
        self.owned_objects.insert(&reference.uid, &reference.namespace, known);
    }
}

/// The grace period, in seconds, of removed spares, which have no state to save.
const SPARE_GRACE_SECONDS: u64 = MIN_GRACE_SECONDS;

/// Applies `actions` in their order until the API server rejects a start. A rejected spare does not stop the actions,
/// because the job continues without the spare. The function adds the results of starts and spares to `created`.
///
/// # Errors
/// Returns the first error of the API server. The next reconcile decides the remaining actions again.
pub(crate) async fn apply(
    context: &ApplyContext<'_>,
    actions: &[AttemptAction],
    created: &mut CreationResults,
) -> kube::Result<()> {
    for action in actions {
        match *action {
            AttemptAction::StartAttempt { number, mesh, instances } => {
                let incarnations = (0..instances).map(|rank| (rank, 0)).collect();
                created.start = Some(rejected(start::start(context, number, mesh, &incarnations).await)?);
            }
            AttemptAction::ReplaceStages { attempt, ref incarnations } => {
                let mesh = context.job.state.attempt.mesh;
                created.start = Some(rejected(start::start(context, attempt, mesh, incarnations).await)?);
            }
            AttemptAction::RemoveReplaced { attempt, ref incarnations } => {
                let is_before = |InstanceId { rank, incarnation }: InstanceId| {
                    incarnations.get(&rank).is_some_and(|kept| incarnation < *kept)
                };
                let is_replaced = |pod: &&ObservedPod| pod.instance_id().is_some_and(is_before);
                let replaced = context.pods.of_attempt(attempt).filter(is_replaced);
                delete_pods(context, replaced, DeleteParams::default()).await?;
            }
            AttemptAction::DeleteInstances { attempt, grace_seconds, unready_grace_seconds } => {
                let (unready, others): (Vec<_>, Vec<_>) =
                    context.pods.of_attempt(attempt).partition(|pod| pod.state.is_unready());
                tokio::try_join!(
                    delete_pods(context, unready.into_iter(), with_grace_period(unready_grace_seconds)),
                    delete_pods(context, others.into_iter(), with_grace_period(grace_seconds)),
                )?;
            }
            AttemptAction::StartSpares { attempt, ref numbers } => {
                created.spares = Some(rejected(start::start_spares(context, attempt, numbers).await)?);
            }
            AttemptAction::RemoveSpares { attempt, ref numbers } => {
                let is_one = |pod: &&ObservedPod| pod.spare().is_some_and(|number| numbers.contains(&number));
                let removed = context.pods.of_attempt(attempt).filter(is_one);
                delete_pods(context, removed, with_grace_period(SPARE_GRACE_SECONDS)).await?;
            }
            // nothing to do: the kubelet sends SIGKILL after the grace period
            AttemptAction::KillInstances { .. } => {}
        }
        if created.is_start_rejected() {
            break;
        }
    }
    Ok(())
}

/// Separates a rejection from other errors. The inner error is the reason why the API server rejected an object.
///
/// # Errors
/// Returns the error of the API if the API server neither accepted nor rejected the object.
fn rejected(result: Result<(), ApplyError>) -> kube::Result<Result<(), BlockingReason>> {
    match result {
        Ok(()) => Ok(Ok(())),
        Err(ApplyError::Rejected(reason)) => Ok(Err(reason)),
        Err(ApplyError::Api(error)) => Err(error),
    }
}

/// Returns the parameters of a deletion with this grace period, in seconds.
fn with_grace_period(seconds: u64) -> DeleteParams {
    DeleteParams::default().grace_period(u32::try_from(seconds).unwrap_or(u32::MAX))
}

/// In a finished job, deletes the pods whose trainer has exited while a sidecar still runs, so that these pods release
/// their resources. A pod whose containers have all ended is kept, so that users can read its log.
pub(crate) async fn delete_lingering_pods(context: &ApplyContext<'_>) -> kube::Result<()> {
    let lingering = context.pods.all.iter().filter(|pod| pod.has_exited() && !pod.ends_by_itself);
    delete_pods(context, lingering, DeleteParams::default()).await
}

/// Deletes each of `pods` that is neither deleted nor being deleted, except an exited pod whose log is being read.
async fn delete_pods(
    context: &ApplyContext<'_>,
    pods: impl Iterator<Item = &ObservedPod>,
    params: DeleteParams,
) -> kube::Result<()> {
    let job = &context.job.reference.uid;
    let is_read = |pod: &ObservedPod| pod.has_exited() && context.log_tails.is_reading(job, &pod.uid);
    let existing = pods.filter(|pod| !pod.deleted && !pod.terminating && !is_read(pod));
    let deletions = existing.map(async |pod| {
        let mut params = params.clone();
        // delete only this pod, not a later pod of the same name
        params.preconditions = Some(Preconditions { uid: Some(pod.uid.clone()), ..Preconditions::default() });
        match context.clients.pods.delete(&pod.name, &params).await {
            // the UID differs: another pod has the name now
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            other => other,
        }
    });
    try_join_all(deletions).await.map(drop)
}
