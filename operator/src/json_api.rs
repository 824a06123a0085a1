//! An API client for one kind in one namespace. Unlike `kube::Api`, the client accepts several Rust types of objects,
//! and parses only the needed part of a response. The client therefore does not parse the specs of created pods, and a
//! replaced object keeps the fields that k8s-openapi lacks.

use kube::api::{DeleteParams, GetParams, ListParams, PostParams};
use kube::core::{Request, Status};
use kube::{Client, Resource};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Implements `kube::Resource` for a type that represents a namespaced object or a part of it. The arguments are the
/// type, its `apiVersion`, its kind and its plural.
macro_rules! namespaced_resource {
    ($type:ty, $api_version:expr, $kind:expr, $plural:expr) => {
        impl kube::Resource for $type {
            type DynamicType = ();
            type Scope = kube::core::NamespaceResourceScope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $api_version.rsplit_once('/').unwrap_or_default().0.into()
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                // the core group has no name
                $api_version.rsplit_once('/').unwrap_or(("", $api_version)).1.into()
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &kube::core::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut kube::core::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use namespaced_resource;

/// Returns the parameters of a write by this field manager.
pub(crate) fn write_params(field_manager: &str) -> PostParams {
    PostParams { field_manager: Some(field_manager.to_owned()), ..PostParams::default() }
}

/// Whether the API server rejects the object itself. 403: quota, pod security or missing permission; 400, 422: the
/// object is invalid, for example because of the pod template.
pub(crate) fn is_rejection(status: &Status) -> bool {
    matches!(status.code, 400 | 403 | 422)
}

/// API client of one kind in one namespace.
#[derive(Clone)]
pub(crate) struct JsonApi {
    client: Client,
    request: Request,
    kind: String,
    field_manager: String,
}

impl JsonApi {
    /// Creates a client for objects of `K` in `namespace`. The writes have this field manager.
    pub(crate) fn new<K: Resource>(
        client: &Client,
        namespace: &str,
        resource: &K::DynamicType,
        field_manager: &str,
    ) -> JsonApi {
        JsonApi {
            client: client.clone(),
            request: Request::new(K::url_path(resource, Some(namespace))),
            kind: K::kind(resource).into_owned(),
            field_manager: field_manager.to_owned(),
        }
    }

    /// Returns the kind of the objects.
    pub(crate) fn kind(&self) -> &str {
        &self.kind
    }

    /// Creates `object`. Returns the stored object.
    pub(crate) async fn create<T: DeserializeOwned>(&self, object: &impl Serialize) -> kube::Result<T> {
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
        let request = self.request.create(&write_params(&self.field_manager), body);
        self.client.request(request.map_err(kube::Error::BuildRequest)?).await
    }

    /// Replaces the object of this name. Returns the stored object.
    pub(crate) async fn replace(&self, name: &str, object: &Value) -> kube::Result<Value> {
        let request = self.request.replace(name, &write_params(&self.field_manager), object.to_string().into_bytes());
        self.client.request(request.map_err(kube::Error::BuildRequest)?).await
    }

    /// Whether the API server would accept `object` as the replacement of the object of this name. The request is a dry
    /// run.
    pub(crate) async fn would_replace(&self, name: &str, object: &Value) -> kube::Result<bool> {
        let params = PostParams { dry_run: true, ..write_params(&self.field_manager) };
        let request = self.request.replace(name, &params, object.to_string().into_bytes());
        match self.client.request::<IgnoredAny>(request.map_err(kube::Error::BuildRequest)?).await {
            Err(kube::Error::Api(status)) if is_rejection(&status) => Ok(false),
            other => other.map(|_| true),
        }
    }

    /// Replaces the status of the object of this name.
    pub(crate) async fn replace_status(&self, name: &str, object: &Value) -> kube::Result<Value> {
        let (params, body) = (write_params(&self.field_manager), object.to_string().into_bytes());
        let request = self.request.replace_subresource("status", name, &params, body);
        self.client.request(request.map_err(kube::Error::BuildRequest)?).await
    }

    /// Returns the object of this name; `None` if no object has the name.
    pub(crate) async fn get(&self, name: &str) -> kube::Result<Option<Value>> {
        let request = self.request.get(name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
        match self.client.request(request).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            other => other.map(Some),
        }
    }

    /// Returns the objects that the label selector `selector` matches.
    pub(crate) async fn list<T: DeserializeOwned>(&self, selector: &str) -> kube::Result<Vec<T>> {
        #[derive(Deserialize)]
        struct ObjectItems<T> {
            items: Vec<T>,
        }
        let request = self.request.list(&ListParams::default().labels(selector)).map_err(kube::Error::BuildRequest)?;
        Ok(self.client.request::<ObjectItems<T>>(request).await?.items)
    }

    /// Deletes the object of this name. Succeeds if the object does not exist.
    pub(crate) async fn delete(&self, name: &str, params: &DeleteParams) -> kube::Result<()> {
        let request = self.request.delete(name, params).map_err(kube::Error::BuildRequest)?;
        match self.client.request::<IgnoredAny>(request).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop),
        }
    }
}
