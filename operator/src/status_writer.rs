//! Writes the status and publishes events; reads the log tail of a failed stage.

use std::time::Duration;

use kube::ResourceExt;
use kube::api::{LogParams, PostParams};
use serde::Serialize;
use serde_json::Value;
use stagecoach_api::PipelineJobStatus;
use stagecoach_api::contract::CONTAINER_NAME;
use stagecoach_lifecycle::AttemptFailure;

use crate::clients::Clients;
use crate::context::Context;
use crate::job::{InvalidJob, RawPipelineJob};
use crate::observe::{JobSnapshot, now};
use crate::report::{self, StatusInputs};

/// Limits of the log tail in the status.
const LOG_TAIL_LINES: i64 = 20;
const LOG_TAIL_BYTES: i64 = 2048;
/// Time limit of the request for a log.
const LOG_TIMEOUT: Duration = Duration::from_secs(3);

/// Writes the status, conditional on the resourceVersion that was read.
pub(crate) async fn write_status(
    object: &RawPipelineJob,
    clients: &Clients,
    context: &Context,
    status: &impl Serialize,
) -> kube::Result<()> {
    let updated = object.with_status(status).map_err(kube::Error::SerdeError)?;
    let written = clients.jobs.replace_status(&object.name_any(), &PostParams::default(), &updated).await?;
    context.write_cache.insert(written);
    Ok(())
}

/// Sets `Accepted=False` with what to change. Running pods are left alone, and so are unreadable parts of the status.
pub(crate) async fn report_invalid_job(
    object: &RawPipelineJob,
    clients: &Clients,
    context: &Context,
    invalid: &InvalidJob,
) -> kube::Result<()> {
    let (reason, message) = match invalid {
        InvalidJob::Spec(message) => ("InvalidSpec", message),
        InvalidJob::Status(message) => ("UnknownStatus", message),
        InvalidJob::Record(message) => ("UnknownRecord", message),
    };
    let generation = object.metadata.generation.unwrap_or_default();
    let old: Value = serde_json::from_str(object.status()).map_err(kube::Error::SerdeError)?;
    let status = report::rejected(&old, reason, message, generation, now());
    if status == old {
        return Ok(());
    }
    tracing::info!(job = object.name_any(), namespace = object.namespace(), "not accepted: {message}");
    write_status(object, clients, context, &status).await
}

/// The end of the log of the stage that caused `failure`, if it can be read.
pub(crate) async fn fetch_log_tail(
    clients: &Clients,
    snapshot: &JobSnapshot,
    failure: Option<&AttemptFailure>,
) -> Option<String> {
    let failure = failure?;
    let pod = snapshot
        .pods_of_attempt(failure.attempt)
        .find(|pod| Some(pod.instance.stage) == failure.stage && !pod.deleted)?;
    let params = LogParams {
        container: Some(CONTAINER_NAME.into()),
        tail_lines: Some(LOG_TAIL_LINES),
        limit_bytes: Some(LOG_TAIL_BYTES),
        ..LogParams::default()
    };
    let logs = tokio::time::timeout(LOG_TIMEOUT, clients.pod_logs.logs(&pod.name, &params)).await;
    logs.ok()?.ok().filter(|log| !log.is_empty())
}

/// Publishes the events of a status that was written; none if it has not changed.
pub(crate) async fn publish_events(context: &Context, inputs: &StatusInputs<'_>, status: &PipelineJobStatus) {
    if *status == inputs.job.status {
        return;
    }
    for event in report::events(inputs, status) {
        let job = &inputs.job.reference;
        tracing::info!(job = job.name, namespace = job.namespace, reason = event.reason, "{}", event.note);
        if let Err(error) = context.recorder.publish(&event.to_api(), &report::object_reference(job)).await {
            tracing::debug!("an event was not published: {error}");
        }
    }
}
