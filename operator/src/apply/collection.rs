//! The objects of one kind in one namespace, as plain JSON: what is written goes as it was built, and no more is read of an
//! answer than is asked for.

use kube::Client;
use kube::api::{DeleteParams, GetParams, ListParams, PostParams};
use kube::core::Request;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

/// The objects of one kind in one namespace.
#[derive(Clone)]
pub(crate) struct Collection {
    client: Client,
    request: Request,
}

impl Collection {
    /// The collection at this path of the API.
    pub(super) fn new(client: &Client, path: String) -> Collection {
        Collection { client: client.clone(), request: Request::new(path) }
    }

    /// Creates `object`; what the API server made of it.
    pub(super) async fn create<T: DeserializeOwned>(&self, object: &Value) -> kube::Result<T> {
        let request = self.request.create(&PostParams::default(), object.to_string().into_bytes());
        self.client.request(request.map_err(kube::Error::BuildRequest)?).await
    }

    /// Replaces the object of this name.
    pub(super) async fn replace(&self, name: &str, object: &Value) -> kube::Result<()> {
        let request = self.request.replace(name, &PostParams::default(), object.to_string().into_bytes());
        self.client.request::<IgnoredAny>(request.map_err(kube::Error::BuildRequest)?).await.map(drop)
    }

    /// The object of this name, if it is there.
    pub(super) async fn get(&self, name: &str) -> kube::Result<Option<Value>> {
        let request = self.request.get(name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
        match self.client.request(request).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            other => other.map(Some),
        }
    }

    /// The objects with these labels.
    pub(super) async fn list(&self, selector: &str) -> kube::Result<Vec<Value>> {
        #[derive(Deserialize)]
        struct List {
            items: Vec<Value>,
        }
        let request = self.request.list(&ListParams::default().labels(selector)).map_err(kube::Error::BuildRequest)?;
        Ok(self.client.request::<List>(request).await?.items)
    }

    /// Deletes the object of this name; absent is fine.
    pub(super) async fn delete(&self, name: &str, how: &DeleteParams) -> kube::Result<()> {
        let request = self.request.delete(name, how).map_err(kube::Error::BuildRequest)?;
        match self.client.request::<IgnoredAny>(request).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop),
        }
    }
}
