//! Writes the status and publishes events.

use kube::ResourceExt;
use serde::Serialize;
use serde_json::Value;
use stagecoach_api::PipelineJobStatus;
use stagecoach_api::job::condition_reason;

use crate::clients::Clients;
use crate::context::Context;
use crate::errors::ReconcileError;
use crate::job::{self, InvalidJob, ParsedJob, RawPipelineJob};
use crate::json_api::write_params;
use crate::observe::now;
use crate::status::{self, StatusInputs};

/// Writes the status if it has changed. Otherwise, if other objects will be written, verifies that the stored
/// `status.record` still equals the record that was read.
pub(crate) async fn persist_status(
    object: &RawPipelineJob,
    inputs: &StatusInputs<'_>,
    status: &PipelineJobStatus,
    writes_objects: bool,
    clients: &Clients,
    context: &Context,
) -> Result<(), ReconcileError> {
    if *status != inputs.job.status {
        write_status(object, clients, context, status).await?;
        context.telemetry.status_written(inputs, status);
    } else if writes_objects && !record_is_current(inputs.job, clients).await? {
        return Err(ReconcileError::Conflict);
    }
    Ok(())
}

/// Whether the stored `status.record` still equals the record that was read. The watch may be stale, and the operator
/// must not act on an old record.
async fn record_is_current(job: &ParsedJob, clients: &Clients) -> Result<bool, ReconcileError> {
    let stored = clients.jobs.get_opt(&job.reference.name).await?;
    Ok(stored.is_some_and(|stored| {
        let same_record = job::status(&stored).is_ok_and(|status| status.record == job.status.record);
        same_record && stored.uid().as_deref() == Some(job.reference.uid.as_str())
    }))
}

/// Writes the status, conditional on the resourceVersion that was read.
async fn write_status(
    object: &RawPipelineJob,
    clients: &Clients,
    context: &Context,
    status: &impl Serialize,
) -> kube::Result<()> {
    let updated = object.with_status(status).map_err(kube::Error::SerdeError)?;
    let params = write_params(clients.field_manager());
    let written = clients.jobs.replace_status(&object.name_any(), &params, &updated).await?;
    context.write_cache.insert(written);
    Ok(())
}

/// Sets `Accepted=False` with a message that names the necessary change. The function does not touch running pods, and
/// keeps the parts of the status that it can't read.
pub(crate) async fn write_not_accepted(
    object: &RawPipelineJob,
    clients: &Clients,
    context: &Context,
    invalid: &InvalidJob,
) -> kube::Result<()> {
    let (reason, message) = match invalid {
        InvalidJob::Spec(message) => (condition_reason::INVALID_SPEC, message),
        InvalidJob::Status(message) => (condition_reason::UNKNOWN_STATUS, message),
        InvalidJob::Record(message) => (condition_reason::UNKNOWN_RECORD, message),
        InvalidJob::Folder(taken) => (condition_reason::FOLDER_TAKEN, &taken.message),
    };
    let generation = object.metadata.generation.unwrap_or_default();
    let old: Value = serde_json::from_str(object.status()).map_err(kube::Error::SerdeError)?;
    let status = status::not_accepted(&old, reason, message, generation, now());
    if status == old {
        return Ok(());
    }
    tracing::info!(job = object.name_any(), namespace = object.namespace(), "not accepted: {message}");
    write_status(object, clients, context, &status).await
}

/// Publishes the events of a written status. An unchanged status has no events.
pub(crate) async fn publish_events(context: &Context, inputs: &StatusInputs<'_>, status: &PipelineJobStatus) {
    if *status == inputs.job.status {
        return;
    }
    for event in status::events(inputs, status) {
        let job = &inputs.job.reference;
        tracing::info!(job = job.name, namespace = job.namespace, reason = event.reason, "{}", event.note);
        context.publish(job, &event).await;
    }
}
