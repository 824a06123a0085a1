//! Carrying out what was decided. Every write may be repeated: a crash between any two of them changes nothing.

mod collection;
mod create;
mod gangs;
mod start;

use futures::future::try_join_all;
use kube::api::{DeleteParams, Preconditions};
use stagecoach_lifecycle::AttemptAction;

pub(crate) use create::Kinds;
pub(crate) use gangs::Gangs;

use crate::build::{BuildError, Readers};
use crate::job::Job;
use crate::observe::{Look, Trouble};

/// Why an action was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// The API server could not be asked, or something changed meanwhile: try again.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The cluster refuses: its users must change something.
    #[error("{}: {}", .0.reason, .0.message)]
    Refused(Trouble),
}

impl From<BuildError> for ApplyError {
    fn from(error: BuildError) -> ApplyError {
        ApplyError::Refused(Trouble { reason: "InvalidBlueprint".into(), message: error.to_string() })
    }
}

/// What actions are carried out with.
pub(crate) struct Means<'a> {
    /// The API.
    pub kinds: &'a Kinds,
    /// Which schedulers there are.
    pub gangs: &'a Gangs,
    /// Who may read the trainers' status.
    pub readers: &'a Readers,
    /// What the trainer runs where the job names nothing.
    pub image: &'a str,
}

/// Carries out `actions`, in their order.
///
/// # Errors
/// The first that fails; what follows it is decided anew.
pub(crate) async fn apply(
    means: &Means<'_>,
    job: &Job,
    look: &Look,
    actions: &[AttemptAction],
) -> Result<(), ApplyError> {
    for action in actions {
        match *action {
            AttemptAction::StartAttempt { number, stages } => start::start(means, job, look, number, stages).await?,
            AttemptAction::DeleteInstances { attempt, grace_seconds } => {
                delete(means.kinds, look, attempt, grace_seconds).await?
            }
            // a pod that was asked to leave is killed by its kubelet; on a dead node nobody can
            AttemptAction::KillInstances { .. } => {}
        }
    }
    Ok(())
}

/// Asks the pods of an attempt to leave, and removes those that have ended.
async fn delete(kinds: &Kinds, look: &Look, attempt: u64, grace_seconds: u64) -> kube::Result<()> {
    let there = look.of(attempt).filter(|pod| !pod.gone && !pod.leaving);
    let each = there.map(async |pod| {
        let mut how = DeleteParams::default().grace_period(u32::try_from(grace_seconds).unwrap_or(u32::MAX));
        // this pod and no later one of its name
        how.preconditions = Some(Preconditions { uid: Some(pod.uid.clone()), ..Preconditions::default() });
        match kinds.pods.delete(&pod.name, &how).await {
            // another pod of its name
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            other => other,
        }
    });
    try_join_all(each).await.map(drop)
}
