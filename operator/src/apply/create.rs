//! Creating the objects of a job. An object of the same name that is somebody else's is never taken over.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::{Client, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ApplyError;
use super::collection::Collection;
use crate::build::{self, Owner};
use crate::job::JobObject;
use crate::observe::{PodObject, Trouble};

/// The kinds that the operator works with, in one namespace.
#[derive(Clone)]
pub(crate) struct Kinds {
    /// The jobs.
    pub jobs: Api<JobObject>,
    /// Stages, to be made.
    pub pods: Collection,
    /// Stages, to be looked at.
    pub seen_pods: Api<PodObject>,
    /// In front of stage 0.
    pub services: Collection,
    /// An attempt's blueprint.
    pub config_maps: Collection,
    /// Who may talk to the stages.
    pub network_policies: Collection,
    /// For logs.
    pub logs: Api<Pod>,
    pub(super) client: Client,
    namespace: String,
}

impl Kinds {
    /// Those of `namespace`.
    pub(crate) fn new(client: &Client, namespace: &str) -> Kinds {
        fn all<K: Resource<DynamicType = ()>>(client: &Client, namespace: &str) -> Collection {
            Collection::new(client, K::url_path(&(), Some(namespace)))
        }
        Kinds {
            jobs: Api::namespaced(client.clone(), namespace),
            pods: all::<Pod>(client, namespace),
            seen_pods: Api::namespaced(client.clone(), namespace),
            services: all::<Service>(client, namespace),
            config_maps: all::<ConfigMap>(client, namespace),
            network_policies: all::<NetworkPolicy>(client, namespace),
            logs: Api::namespaced(client.clone(), namespace),
            client: client.clone(),
            namespace: namespace.to_owned(),
        }
    }

    /// Objects of a kind that not every cluster has.
    pub(super) fn of(&self, resource: &ApiResource) -> Collection {
        Collection::new(&self.client, DynamicObject::url_path(resource, Some(&self.namespace)))
    }
}

/// Creates `object` unless it is there already; what is there then, as far as it is read.
///
/// # Errors
/// `Refused` if the cluster won't have it, or somebody else's object has its name.
pub(super) async fn create<T: DeserializeOwned>(
    all: &Collection,
    owner: &Owner,
    object: &Value,
) -> Result<T, ApplyError> {
    match all.create(object).await {
        Ok(created) => Ok(created),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            match get(all, owner, object).await? {
                Some(there) => Ok(serde_json::from_value(there).map_err(kube::Error::SerdeError)?),
                // gone between the two calls
                None => Err(kube::Error::Api(status).into()),
            }
        }
        // 403: quota, pod security, no right to it; 422 and 400: a template that makes no valid object
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => {
            let reason = match status.message.contains("exceeded quota") {
                true => "QuotaExceeded".to_owned(),
                false => status.reason.clone(),
            };
            Err(ApplyError::Refused(Trouble { reason, message: status.message.clone() }))
        }
        Err(other) => Err(other.into()),
    }
}

/// The object of this name, if it is there.
///
/// # Errors
/// `Refused` if it is somebody else's.
pub(super) async fn get(all: &Collection, owner: &Owner, object: &Value) -> Result<Option<Value>, ApplyError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let Some(there) = all.get(name).await? else { return Ok(None) };
    let metadata: ObjectMeta = ObjectMeta::deserialize(&there["metadata"]).map_err(kube::Error::SerdeError)?;
    if build::is_controlled_by(&metadata, &owner.uid) {
        return Ok(Some(there));
    }
    let kind = object["kind"].as_str().unwrap_or_default();
    let mut message = format!("the {kind} {name} exists and does not belong to this job");
    message += match metadata.deletion_timestamp.is_none() {
        true => ": delete it, or give the job another name",
        false => "; it is being deleted and is waited for",
    };
    Err(ApplyError::Refused(Trouble { reason: "NameTaken".into(), message }))
}

/// Sees to it that `object` is there with the fields of its spec that `wanted` names. One write at most, unless it is missing.
///
/// # Errors
/// As [`create`].
pub(super) async fn ensure(
    all: &Collection,
    owner: &Owner,
    object: &Value,
    field: &str,
    likely_new: bool,
) -> Result<(), ApplyError> {
    let there: Value = match likely_new {
        true => create(all, owner, object).await?,
        false => match get(all, owner, object).await? {
            Some(there) => there,
            None => create(all, owner, object).await?,
        },
    };
    let wanted = &object["spec"][field];
    if there["spec"][field] == *wanted {
        return Ok(());
    }
    // with the version that was read: whoever changed it meanwhile is seen the next time
    let mut changed = there;
    changed["spec"][field] = wanted.clone();
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    all.replace(name, &changed).await?;
    Ok(())
}
