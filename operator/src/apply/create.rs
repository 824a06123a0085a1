//! Creates the objects of a job. If an object of the same name exists and the job does not own it, the operator does
//! not modify that object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stagecoach_api::job::condition_reason;

use super::{ApplyContext, ApplyError};
use crate::build::{self, JobReference};
use crate::json_api::{JsonApi, is_rejection};
use crate::observe::{BlockingReason, OwnedObject};

/// Creates `object`, unless it exists already. Returns the stored object.
///
/// # Errors
/// Returns `Rejected` if the API server rejects the object, or if an object that the job does not own has the same
/// name.
pub(crate) async fn create_owned<T: DeserializeOwned>(
    api: &JsonApi,
    job: &JobReference,
    object: &(impl Serialize + ResourceExt),
) -> Result<T, ApplyError> {
    match api.create(object).await {
        Ok(created) => Ok(created),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            match get_owned(api, job, &object.name_any()).await? {
                Some(existing) => Ok(serde_json::from_value(existing).map_err(kube::Error::SerdeError)?),
                // the object was deleted between the two calls
                None => Err(kube::Error::Api(status).into()),
            }
        }
        Err(kube::Error::Api(status)) if is_rejection(&status) => {
            let reason = match status.message.contains("exceeded quota") {
                true => condition_reason::QUOTA_EXCEEDED.to_owned(),
                false => status.reason.clone(),
            };
            Err(ApplyError::Rejected(BlockingReason { reason, message: status.message.clone() }))
        }
        Err(other) => Err(other.into()),
    }
}

/// Returns the stored object with the name of `object`, or creates `object` if no such object exists. The function
/// first tries to read the object, because the object usually exists.
///
/// # Errors
/// Returns the same errors as [`create_owned`].
pub(super) async fn get_or_create<T: DeserializeOwned>(
    api: &JsonApi,
    job: &JobReference,
    object: &(impl Serialize + ResourceExt),
) -> Result<T, ApplyError> {
    match get_owned(api, job, &object.name_any()).await? {
        Some(existing) => Ok(serde_json::from_value(existing).map_err(kube::Error::SerdeError)?),
        None => create_owned(api, job, object).await,
    }
}

/// Returns the object with this name; `None` if no object has the name.
///
/// # Errors
/// Returns `Rejected` if the job does not own the object.
pub(super) async fn get_owned(api: &JsonApi, job: &JobReference, name: &str) -> Result<Option<Value>, ApplyError> {
    let Some(existing) = api.get(name).await? else { return Ok(None) };
    let metadata: ObjectMeta = ObjectMeta::deserialize(&existing["metadata"]).map_err(kube::Error::SerdeError)?;
    if build::is_controlled_by(&metadata, &job.uid) {
        return Ok(Some(existing));
    }
    let mut message = format!("the {} {name} exists and does not belong to this job", api.kind());
    message += match metadata.deletion_timestamp.is_none() {
        true => ": delete it, or give the job another name",
        false => "; it is being deleted, and the operator waits for its end",
    };
    Err(ApplyError::Rejected(BlockingReason { reason: condition_reason::NAME_TAKEN.into(), message }))
}

/// Creates `object`. If the object exists already and differs from `object` in a label or spec field that `object`
/// sets, updates it. With `create_first`, the function tries to create the object before it looks for an existing one.
///
/// # Errors
/// Returns the same errors as [`create_owned`].
pub(super) async fn create_or_update<K: OwnedObject + Serialize + DeserializeOwned>(
    context: &ApplyContext<'_>,
    api: &JsonApi,
    object: &K,
    create_first: bool,
) -> Result<(), ApplyError> {
    let job = &context.job.reference;
    let name = object.name_any();
    let mut stored: Value = match create_first {
        true => create_owned(api, job, object).await?,
        false => get_or_create(api, job, object).await?,
    };
    let desired = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    let mut updated = stored.clone();
    for (part, fields) in [("spec", &desired["spec"]), ("labels", &desired["metadata"]["labels"])] {
        let stored_part = if part == "spec" { &mut updated["spec"] } else { &mut updated["metadata"]["labels"] };
        for (field, value) in fields.as_object().into_iter().flatten() {
            stored_part[field] = value.clone();
        }
    }
    if updated != stored {
        // the write has the resourceVersion of the read: if another client has changed the object since the read, the
        // write fails, and the next reconcile repeats it
        stored = api.replace(&name, &updated).await?;
    }
    let stored = serde_json::from_value::<K>(stored).map_err(kube::Error::SerdeError)?;
    context.add_known(context.known(&stored).written_as(object.fingerprint()));
    Ok(())
}
