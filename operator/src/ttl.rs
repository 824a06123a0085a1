//! `ttlSecondsAfterFinished`: deletes a finished job when its time to live is over.

use std::time::Duration;

use kube::ResourceExt;
use kube::api::{DeleteParams, Preconditions};
use stagecoach_api::PipelineJobStatus;
use stagecoach_lifecycle::UnixMillis;

use crate::build::JobReference;
use crate::build::kueue::keys::MULTI_KUEUE_ORIGIN_LABEL;
use crate::clients::Clients;
use crate::job::RawPipelineJob;

/// Returns the time until the operator deletes a finished job; `None` if the job has no TTL or has not finished. Also
/// returns `None` for a job that MultiKueue has copied into this cluster: MultiKueue deletes the copy after it has read
/// the end of the job. If the operator deleted the copy earlier, MultiKueue would run the job again.
pub(crate) fn remaining_ttl(
    object: &RawPipelineJob,
    ttl_seconds: Option<u64>,
    status: &PipelineJobStatus,
    now: UnixMillis,
) -> Option<Duration> {
    let seconds = ttl_seconds.filter(|_| !object.labels().contains_key(MULTI_KUEUE_ORIGIN_LABEL))?;
    let finished: jiff::Timestamp = status.completion_time.as_ref()?.parse().ok()?;
    let expiry = UnixMillis::from_signed(finished.as_millisecond())?.plus_seconds(seconds);
    Some(Duration::from_millis(expiry.0.saturating_sub(now.0)))
}

/// Deletes the job with background propagation: Kubernetes then garbage-collects the objects that the job owns.
///
/// # Errors
/// Returns the error of the API server, unless the job is already deleted.
pub(crate) async fn delete_job(job: &JobReference, clients: &Clients) -> kube::Result<()> {
    let mut params = DeleteParams::background();
    params.preconditions = Some(Preconditions { uid: Some(job.uid.clone()), ..Preconditions::default() });
    match clients.jobs.delete(&job.name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}
