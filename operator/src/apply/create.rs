//! Creating the objects of a job. An object of the same name that is somebody else's is never taken over.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::{Client, Resource};
use serde_json::Value;

use super::ApplyError;
use crate::build::Owner;
use crate::job;
use crate::observe::{PodObject, Trouble, to_value};

/// The kinds that the operator works with, in one namespace.
#[derive(Clone)]
pub(crate) struct Kinds {
    /// The jobs.
    pub jobs: Api<DynamicObject>,
    /// Stages, to be made.
    pub pods: Api<DynamicObject>,
    /// Stages, to be looked at.
    pub seen_pods: Api<PodObject>,
    /// In front of stage 0.
    pub services: Api<DynamicObject>,
    /// An attempt's blueprint.
    pub config_maps: Api<DynamicObject>,
    /// Who may talk to the stages.
    pub network_policies: Api<DynamicObject>,
    /// For logs.
    pub logs: Api<Pod>,
    pub(super) client: Client,
    namespace: String,
}

impl Kinds {
    /// Those of `namespace`.
    pub(crate) fn new(client: &Client, namespace: &str) -> Kinds {
        fn api<K: Resource<DynamicType = ()>>(client: &Client, namespace: &str) -> Api<DynamicObject> {
            Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<K>(&()))
        }
        Kinds {
            jobs: Api::namespaced_with(client.clone(), namespace, &job::resource()),
            pods: api::<Pod>(client, namespace),
            seen_pods: Api::namespaced(client.clone(), namespace),
            services: api::<Service>(client, namespace),
            config_maps: api::<ConfigMap>(client, namespace),
            network_policies: api::<NetworkPolicy>(client, namespace),
            logs: Api::namespaced(client.clone(), namespace),
            client: client.clone(),
            namespace: namespace.to_owned(),
        }
    }

    /// Objects of a kind that not every cluster has.
    pub(crate) fn of(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, resource)
    }
}

/// Creates `object` unless it is there already; what is there then.
///
/// # Errors
/// `Refused` if the cluster won't have it, or somebody else's object has its name.
pub(super) async fn create(api: &Api<DynamicObject>, owner: &Owner, object: &Value) -> Result<Value, ApplyError> {
    match api.create(&PostParams::default(), &typed(object)?).await {
        Ok(created) => Ok(to_value(&created)),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            match get(api, owner, object).await? {
                Some(there) => Ok(there),
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
pub(super) async fn get(api: &Api<DynamicObject>, owner: &Owner, object: &Value) -> Result<Option<Value>, ApplyError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let Some(there) = api.get_opt(name).await?.map(|there| to_value(&there)) else { return Ok(None) };
    let owners = there["metadata"]["ownerReferences"].as_array();
    let ours = owners
        .into_iter()
        .flatten()
        .any(|reference| reference["controller"] == true && reference["uid"].as_str() == Some(owner.uid.as_str()));
    if ours {
        return Ok(Some(there));
    }
    let kind = object["kind"].as_str().unwrap_or_default();
    let mut message = format!("the {kind} {name} exists and does not belong to this job");
    message += match there["metadata"]["deletionTimestamp"].is_null() {
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
    api: &Api<DynamicObject>,
    owner: &Owner,
    object: &Value,
    field: &str,
    likely_new: bool,
) -> Result<(), ApplyError> {
    let there = match likely_new {
        true => create(api, owner, object).await?,
        false => match get(api, owner, object).await? {
            Some(there) => there,
            None => create(api, owner, object).await?,
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
    api.replace(name, &PostParams::default(), &typed(&changed)?).await?;
    Ok(())
}

fn typed(object: &Value) -> Result<DynamicObject, ApplyError> {
    serde_json::from_value(object.clone()).map_err(|e| kube::Error::SerdeError(e).into())
}
