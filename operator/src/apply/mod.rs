//! Applies the decided actions. Every write is idempotent, so a crash between two writes is harmless.

mod create;
mod pod_group_discovery;
mod start;

use futures::future::try_join_all;
use kube::api::{DeleteParams, Preconditions};
use stagecoach_lifecycle::AttemptAction;

pub(crate) use pod_group_discovery::PodGroupDiscovery;

use crate::build::{BuildError, StatusReaders};
use crate::clients::Clients;
use crate::job::ObservedJob;
use crate::observe::{BlockingReason, JobSnapshot};

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
    /// Who may read the trainers' status.
    pub readers: &'a StatusReaders,
    /// The trainer's image if the pod template names none.
    pub image: &'a str,
}

/// Applies `actions`, in their order.
///
/// # Errors
/// The first that fails; the remaining actions are decided again.
pub(crate) async fn apply(
    context: &ApplyContext<'_>,
    job: &ObservedJob,
    snapshot: &JobSnapshot,
    actions: &[AttemptAction],
) -> Result<(), ApplyError> {
    for action in actions {
        match *action {
            AttemptAction::StartAttempt { number, stages } => {
                start::start(context, job, snapshot, number, stages).await?
            }
            AttemptAction::DeleteInstances { attempt, grace_seconds } => {
                delete(context.clients, snapshot, attempt, grace_seconds).await?
            }
            // the kubelet sends SIGKILL after the grace period
            AttemptAction::KillInstances { .. } => {}
        }
    }
    Ok(())
}

/// Deletes the pods of an attempt with this grace period, exited ones included.
async fn delete(clients: &Clients, snapshot: &JobSnapshot, attempt: u64, grace_seconds: u64) -> kube::Result<()> {
    let existing = snapshot.pods_of_attempt(attempt).filter(|pod| !pod.deleted && !pod.terminating);
    let deletions = existing.map(async |pod| {
        let mut params = DeleteParams::default().grace_period(u32::try_from(grace_seconds).unwrap_or(u32::MAX));
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
