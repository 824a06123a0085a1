//! API client of one kind in one namespace for plain JSON objects. Like `kube::Api` without the type: objects are sent as they
//! were built, and responses are parsed only as far as needed.

use kube::Client;
use kube::api::{DeleteParams, GetParams, ListParams, PostParams};
use kube::core::Request;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

/// API client of one kind in one namespace.
#[derive(Clone)]
pub(crate) struct JsonApi {
    client: Client,
    request: Request,
}

impl JsonApi {
    /// For the resource at this path of the API.
    pub(crate) fn new(client: &Client, path: String) -> JsonApi {
        JsonApi { client: client.clone(), request: Request::new(path) }
    }

    /// Creates `object`. Returns the stored object.
    pub(crate) async fn create<T: DeserializeOwned>(&self, object: &Value) -> kube::Result<T> {
        let request = self.request.create(&PostParams::default(), object.to_string().into_bytes());
        self.client.request(request.map_err(kube::Error::BuildRequest)?).await
    }

    /// Replaces the object of this name.
    pub(crate) async fn replace(&self, name: &str, object: &Value) -> kube::Result<()> {
        let request = self.request.replace(name, &PostParams::default(), object.to_string().into_bytes());
        self.client.request::<IgnoredAny>(request.map_err(kube::Error::BuildRequest)?).await.map(drop)
    }

    /// The object of this name, if it exists.
    pub(crate) async fn get(&self, name: &str) -> kube::Result<Option<Value>> {
        let request = self.request.get(name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
        match self.client.request(request).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            other => other.map(Some),
        }
    }

    /// The objects with these labels.
    pub(crate) async fn list(&self, selector: &str) -> kube::Result<Vec<Value>> {
        #[derive(Deserialize)]
        struct List {
            items: Vec<Value>,
        }
        let request = self.request.list(&ListParams::default().labels(selector)).map_err(kube::Error::BuildRequest)?;
        Ok(self.client.request::<List>(request).await?.items)
    }

    /// Deletes the object of this name; succeeds if it does not exist.
    pub(crate) async fn delete(&self, name: &str, params: &DeleteParams) -> kube::Result<()> {
        let request = self.request.delete(name, params).map_err(kube::Error::BuildRequest)?;
        match self.client.request::<IgnoredAny>(request).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop),
        }
    }
}
