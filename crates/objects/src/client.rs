//! The client of object stores.

use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use stagecoach_remote::{RetryPolicy, Waiter};

use crate::bucket::{Bucket, ClientShared};
use crate::error::ObjectError;
use crate::object::Object;
use crate::reader::ObjectReader;
use crate::settings::StoreVariables;
use crate::uri::ObjectUri;

/// A client of object stores. Clones share connections. The client blocks, and must not be used in an async runtime.
#[derive(Clone, Debug)]
pub struct ObjectClient {
    shared: Arc<ClientShared>,
    /// The opened buckets, by their URIs without a key.
    buckets: Arc<Mutex<HashMap<ObjectUri, Arc<Bucket>>>>,
}

impl ObjectClient {
    /// Returns a client that is configured by the variables `AWS_*`, `GOOGLE_*` and `AZURE_*` in `variables`. The
    /// variables have the same meaning as in the crate `object_store`. The client retries within the limits of
    /// `policy`, and waits with `waiter`. [`crate::OBJECT_RETRY_POLICY`] is a suitable policy.
    ///
    /// # Errors
    /// Returns `ObjectError::Runtime` if the system can't start a thread.
    pub fn new(
        variables: impl IntoIterator<Item = (String, String)>,
        policy: RetryPolicy,
        waiter: Waiter,
    ) -> Result<ObjectClient, ObjectError> {
        // the runtime has one thread, because connections need a thread while no reader is active
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| ObjectError::Runtime { reason: error.to_string() })?;
        let shared = ClientShared { settings: StoreVariables::new(variables), policy, waiter, runtime };
        Ok(ObjectClient { shared: Arc::new(shared), buckets: Arc::default() })
    }

    /// Returns the objects that a URI matches, sorted by key. The key of the URI is a pattern with `*`, `?`, `[a-z]`
    /// and `**`. An empty key matches all objects without a leading dot in their names. The client requests only keys
    /// that begin with the literal prefix of the pattern.
    ///
    /// # Errors
    /// Returns `ObjectError::NoMatch` if no object matches. Also fails if the bucket can't be listed.
    pub fn list(&self, uri: &ObjectUri) -> Result<Vec<Object>, ObjectError> {
        self.bucket(uri)?.matches(&uri.key)
    }

    /// Whether the contents of an object are the same as when the object was listed.
    ///
    /// # Errors
    /// Fails if the store can't be reached.
    pub fn is_unchanged(&self, object: &Object) -> Result<bool, ObjectError> {
        match self.bucket(&object.uri)?.head(&object.uri.key) {
            Ok(now) => Ok(now.has_contents_of(object)),
            Err(ObjectError::NoObject { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns a reader of a range of an object's bytes. The reader sends no request before the first read, and resumes
    /// after a broken connection. The reader fails if the object has changed since the listing.
    ///
    /// [`ObjectError::within`] finds the [`ObjectError`] in an error of the reader.
    ///
    /// # Errors
    /// Fails if an environment variable of the store can't be used.
    pub fn open(&self, object: &Object, bytes: Range<u64>) -> Result<Box<dyn Read + Send>, ObjectError> {
        let range = bytes.start.min(object.size)..bytes.end.min(object.size);
        Ok(Box::new(ObjectReader::new(self.bucket(&object.uri)?, object.clone(), range)))
    }

    fn bucket(&self, uri: &ObjectUri) -> Result<Arc<Bucket>, ObjectError> {
        let uri = uri.with_key("");
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.get(&uri) {
            return Ok(Arc::clone(bucket));
        }
        let bucket = Arc::new(Bucket::open(&self.shared, uri.clone())?);
        buckets.insert(uri, Arc::clone(&bucket));
        Ok(bucket)
    }
}
