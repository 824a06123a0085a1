//! Sends requests to an open bucket, with retries.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures::stream::BoxStream;
use object_store::list::{PaginatedListOptions, PaginatedListResult};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta};
use stagecoach_remote::{Retry, RetryPolicy, Waiter};
use tokio::runtime::Runtime;

use crate::error::ObjectError;
use crate::object::Object;
use crate::retry::wait_to_retry;
use crate::settings::{ListableStore, StoreVariables};
use crate::uri::{ObjectUri, UriError};
use crate::verdict::{response, verdict};

/// The state that all buckets of a client share.
#[derive(Debug)]
pub(crate) struct ClientShared {
    pub(crate) settings: StoreVariables,
    pub(crate) policy: RetryPolicy,
    pub(crate) waiter: Waiter,
    pub(crate) runtime: Runtime,
}

/// An open bucket.
pub(crate) struct Bucket {
    /// The URI of the bucket, without a key.
    pub(crate) uri: ObjectUri,
    store: Arc<dyn ListableStore>,
    shared: Arc<ClientShared>,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // the store is left out, because it contains credentials
        self.uri.fmt(formatter)
    }
}

/// The bytes of an object, in chunks.
pub(crate) type Chunks = BoxStream<'static, object_store::Result<bytes::Bytes>>;

impl Bucket {
    pub(crate) fn open(shared: &Arc<ClientShared>, uri: ObjectUri) -> Result<Bucket, ObjectError> {
        let store = shared.settings.open(&uri, &shared.policy)?;
        Ok(Bucket { uri, store, shared: Arc::clone(shared) })
    }

    pub(crate) fn retry(&self) -> Retry {
        Retry::new(self.shared.policy, self.shared.waiter.clone())
    }

    /// Blocks until a future is ready.
    pub(crate) fn wait_for<T>(&self, future: impl Future<Output = T>) -> T {
        self.shared.runtime.block_on(future)
    }

    /// Returns the error of a request for the object `key`. An empty key means a listing.
    pub(crate) fn verdict(&self, error: &object_store::Error, key: &str) -> ObjectError {
        verdict(error, &self.uri.with_key(key), &self.shared.settings)
    }

    /// Returns a page of the keys that begin with `prefix`. Unless `is_deep` is set, the page replaces keys in deeper
    /// folders by the names of these folders. `page_token` continues the listing of an earlier page.
    ///
    /// # Errors
    /// Fails if the page can't be read, after all retries.
    pub(crate) fn page(
        &self,
        prefix: &str,
        is_deep: bool,
        page_token: Option<String>,
    ) -> Result<PaginatedListResult, ObjectError> {
        let delimiter = (!is_deep).then_some(Cow::Borrowed("/"));
        let options = PaginatedListOptions { delimiter, page_token, ..PaginatedListOptions::default() };
        let prefix = Some(prefix).filter(|prefix| !prefix.is_empty());
        self.again("", || self.store.list_paginated(prefix, options.clone()))
    }

    /// Returns the current state of an object in the store.
    ///
    /// # Errors
    /// Fails if the object does not exist, or if the request fails.
    pub(crate) fn head(&self, key: &str) -> Result<Object, ObjectError> {
        let path = self.path(key)?;
        let meta = self.again(key, || self.head_with_reason(&path))?;
        Ok(Object::new(&self.uri, meta))
    }

    /// Sends a HEAD request. After a refusal without a reason, sends a GET request, because only the answer to a GET
    /// has a body with the reason.
    async fn head_with_reason(&self, path: &Path) -> object_store::Result<ObjectMeta> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.store.get_opts(path, options).await {
            Ok(answer) => Ok(answer.meta),
            Err(error) => match response(&error) {
                Some(response) if response.code.is_empty() && matches!(response.status, 400 | 403) => {
                    Ok(self.store.get_opts(path, GetOptions::default()).await?.meta)
                }
                _ => Err(error),
            },
        }
    }

    /// Requests the bytes of an object from `start` to `end`, without retries.
    ///
    /// # Errors
    /// Returns `ObjectError::Changed` if the object differs from the listing. Also fails if the object can't be read.
    pub(crate) fn chunks(&self, object: &Object, start: u64, end: u64) -> Result<Chunks, ObjectError> {
        let key = object.uri.key.as_str();
        let range = Some(GetRange::Bounded(start..end));
        let options = GetOptions { range, if_match: object.etag.clone(), ..GetOptions::default() };
        let path = self.path(key)?;
        let answer =
            self.wait_for(self.store.get_opts(&path, options)).map_err(|error| match self.verdict(&error, key) {
                ObjectError::NoObject { uri } => ObjectError::Changed { uri },
                error => error,
            })?;
        let found = Object::new(&self.uri, answer.meta.clone());
        match found.has_contents_of(object) {
            true => Ok(answer.into_stream()),
            false => Err(ObjectError::Changed { uri: object.uri.clone() }),
        }
    }

    /// Repeats a request until the request succeeds, or until the retry policy allows no further attempt.
    fn again<T, F>(&self, key: &str, mut request: impl FnMut() -> F) -> Result<T, ObjectError>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let mut retry = self.retry();
        loop {
            match self.wait_for(request()) {
                Ok(answer) => return Ok(answer),
                Err(error) => wait_to_retry(&mut retry, self.verdict(&error, key))?,
            }
        }
    }

    fn path(&self, key: &str) -> Result<Path, ObjectError> {
        let bad = |error: object_store::path::Error| UriError {
            uri: self.uri.with_key(key).to_string(),
            reason: error.to_string(),
        };
        Ok(Path::parse(key).map_err(bad)?)
    }
}
