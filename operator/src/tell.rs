//! What a reconcile tells: the status, events, and the end of a failed stage's log.

use std::time::Duration;

use kube::ResourceExt;
use kube::api::{LogParams, PostParams};
use serde::Serialize;
use serde_json::Value;
use stagecoach_api::PipelineJobStatus;
use stagecoach_api::contract::CONTAINER_NAME;
use stagecoach_lifecycle::AttemptFailure;

use crate::apply::Kinds;
use crate::context::Context;
use crate::job::{JobObject, Unusable};
use crate::observe::{Look, now};
use crate::report::{self, Facts};

/// Lines and bytes of a log that go into the status.
const TAIL: (i64, i64) = (20, 2048);

/// One write, against the version that was read.
pub(crate) async fn write(
    object: &JobObject,
    kinds: &Kinds,
    context: &Context,
    status: &impl Serialize,
) -> kube::Result<()> {
    let wanted = object.with_status(status).map_err(kube::Error::SerdeError)?;
    let written = kinds.jobs.replace_status(&object.name_any(), &PostParams::default(), &wanted).await?;
    context.written.note(written);
    Ok(())
}

/// Tells the user what to change. Pods that run stay as they are, and so does what can't be read of the status.
pub(crate) async fn refuse(
    object: &JobObject,
    kinds: &Kinds,
    context: &Context,
    unusable: &Unusable,
) -> kube::Result<()> {
    let (reason, message) = match unusable {
        Unusable::Spec(message) => ("InvalidSpec", message),
        Unusable::Status(message) => ("UnknownStatus", message),
        Unusable::Record(message) => ("UnknownRecord", message),
    };
    let generation = object.metadata.generation.unwrap_or_default();
    let old: Value = serde_json::from_str(object.status()).map_err(kube::Error::SerdeError)?;
    let status = report::refused(&old, reason, message, generation, now());
    if status == old {
        return Ok(());
    }
    tracing::info!(job = object.name_any(), namespace = object.namespace(), "not accepted: {message}");
    write(object, kinds, context, &status).await
}

/// The end of the log of the stage that failed.
pub(crate) async fn log_tail(kinds: &Kinds, look: &Look, failure: &AttemptFailure) -> Option<String> {
    let pod = look.of(failure.attempt).find(|pod| Some(pod.instance.stage) == failure.stage && !pod.gone)?;
    let how = LogParams {
        container: Some(CONTAINER_NAME.into()),
        tail_lines: Some(TAIL.0),
        limit_bytes: Some(TAIL.1),
        ..LogParams::default()
    };
    let logs = tokio::time::timeout(Duration::from_secs(3), kinds.logs.logs(&pod.name, &how)).await;
    logs.ok()?.ok().filter(|log| !log.is_empty())
}

/// Tells events about what the status has.
pub(crate) async fn publish(context: &Context, facts: &Facts<'_>, status: &PipelineJobStatus) {
    for event in report::events(facts, status) {
        let owner = &facts.job.owner;
        tracing::info!(job = owner.name, namespace = owner.namespace, reason = event.reason, "{}", event.note);
        if let Err(error) = context.recorder.publish(&event.published(), &report::reference(owner)).await {
            tracing::debug!("an event was not published: {error}");
        }
    }
}
