//! `ttlSecondsAfterFinished`: deletes a finished job when its time to live is over.

use std::time::Duration;

use kube::api::{DeleteParams, Preconditions};
use stagecoach_api::PipelineJobStatus;
use stagecoach_lifecycle::UnixMillis;

use crate::clients::Clients;
use crate::job::ParsedJob;

/// The time until a finished job is deleted; `None` if the job has no TTL or has not finished.
pub(crate) fn remaining_ttl(job: &ParsedJob, status: &PipelineJobStatus, now: UnixMillis) -> Option<Duration> {
    let seconds = job.manifest.spec.ttl_seconds_after_finished?;
    let finished: jiff::Timestamp = status.completion_time.as_ref()?.parse().ok()?;
    let expiry = UnixMillis(u64::try_from(finished.as_millisecond()).ok()?).plus_seconds(seconds);
    Some(Duration::from_millis(expiry.0.saturating_sub(now.0)))
}

/// Deletes the job in the background; owned objects are garbage-collected.
///
/// # Errors
/// The error of the API server, unless the job is already deleted.
pub(crate) async fn delete_job(job: &ParsedJob, clients: &Clients) -> kube::Result<()> {
    let mut params = DeleteParams::background();
    params.preconditions = Some(Preconditions { uid: Some(job.reference.uid.clone()), ..Preconditions::default() });
    match clients.jobs.delete(&job.reference.name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}
