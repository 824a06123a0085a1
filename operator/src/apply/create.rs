//! Creates the objects of a job. An existing object of the same name that the job does not own is never modified.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ApplyError;
use crate::build::{self, Owner};
use crate::json_api::JsonApi;
use crate::observe::BlockingReason;

/// Creates `object` unless it exists. Returns the stored object.
///
/// # Errors
/// `Rejected` if the API server rejects it, or an object that the job does not own has its name.
pub(super) async fn create_owned<T: DeserializeOwned>(
    api: &JsonApi,
    owner: &Owner,
    object: &Value,
) -> Result<T, ApplyError> {
    match api.create(object).await {
        Ok(created) => Ok(created),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            match get_owned(api, owner, object).await? {
                Some(existing) => Ok(serde_json::from_value(existing).map_err(kube::Error::SerdeError)?),
                // deleted between the two calls
                None => Err(kube::Error::Api(status).into()),
            }
        }
        // 403: quota, pod security or missing permission; 400, 422: the template gives an invalid object
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => {
            let reason = match status.message.contains("exceeded quota") {
                true => "QuotaExceeded".to_owned(),
                false => status.reason.clone(),
            };
            Err(ApplyError::Rejected(BlockingReason { reason, message: status.message.clone() }))
        }
        Err(other) => Err(other.into()),
    }
}

/// The object of this name, if it exists.
///
/// # Errors
/// `Rejected` if the job does not own it.
pub(super) async fn get_owned(api: &JsonApi, owner: &Owner, object: &Value) -> Result<Option<Value>, ApplyError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let Some(existing) = api.get(name).await? else { return Ok(None) };
    let metadata: ObjectMeta = ObjectMeta::deserialize(&existing["metadata"]).map_err(kube::Error::SerdeError)?;
    if build::is_controlled_by(&metadata, &owner.uid) {
        return Ok(Some(existing));
    }
    let kind = object["kind"].as_str().unwrap_or_default();
    let mut message = format!("the {kind} {name} exists and does not belong to this job");
    message += match metadata.deletion_timestamp.is_none() {
        true => ": delete it, or give the job another name",
        false => "; it is being deleted and is waited for",
    };
    Err(ApplyError::Rejected(BlockingReason { reason: "NameTaken".into(), message }))
}

/// Creates `object`, or updates `spec.<field>` of the existing one if it differs. At most one write if it exists.
///
/// # Errors
/// As [`create_owned`].
pub(super) async fn ensure(
    api: &JsonApi,
    owner: &Owner,
    object: &Value,
    field: &str,
    create_first: bool,
) -> Result<(), ApplyError> {
    let existing: Value = match create_first {
        true => create_owned(api, owner, object).await?,
        false => match get_owned(api, owner, object).await? {
            Some(existing) => existing,
            None => create_owned(api, owner, object).await?,
        },
    };
    let wanted = &object["spec"][field];
    if existing["spec"][field] == *wanted {
        return Ok(());
    }
    // with the resourceVersion that was read: if it changed meanwhile, the write fails and is repeated
    let mut updated = existing;
    updated["spec"][field] = wanted.clone();
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    api.replace(name, &updated).await?;
    Ok(())
}
