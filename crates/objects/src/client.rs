//! The client.

use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::bucket::{Bucket, Shared};
use crate::error::ObjectError;
use crate::object::Object;
use crate::reader::ObjectReader;
use crate::retry::{Limits, Notice, Patience, Pause};
use crate::settings::Settings;
use crate::uri::ObjectUri;

/// A client of object stores. Clones share connections. It must not be used from within an async runtime.
#[derive(Clone, Debug)]
pub struct ObjectClient {
    shared: Arc<Shared>,
    /// The buckets that were used, by the URI without a key.
    buckets: Arc<Mutex<HashMap<ObjectUri, Arc<Bucket>>>>,
}

impl ObjectClient {
    /// A client that is configured by environment variables: `AWS_*`, `GOOGLE_*` and `AZURE_*`, with the meaning that
    /// they have for `object_store`. It waits by `pause`; `notice` receives sentences about waits.
    ///
    /// # Errors
    /// `ObjectError::Runtime` if the system gives no thread.
    pub fn new(
        variables: impl IntoIterator<Item = (String, String)>,
        limits: Limits,
        pause: Pause,
        notice: Notice,
    ) -> Result<ObjectClient, ObjectError> {
        // connections also live while nobody reads: one thread is enough for them
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| ObjectError::Runtime { reason: error.to_string() })?;
        let patience = Arc::new(Patience { limits, pause, notice });
        let shared = Shared { settings: Settings::new(variables), patience, runtime };
        Ok(ObjectClient { shared: Arc::new(shared), buckets: Arc::default() })
    }

    /// The objects that a URI matches, by key. Its key is a pattern with `*`, `?`, `[a-z]` and `**`; an empty one
    /// matches all objects without a leading dot in their names. Only keys with the literal beginning of the pattern
    /// are listed.
    ///
    /// # Errors
    /// `ObjectError::NoMatch` if there is no such object. Also fails if the bucket can't be listed.
    pub fn list(&self, uri: &ObjectUri) -> Result<Vec<Object>, ObjectError> {
        self.bucket(uri)?.matches(&uri.key)
    }

    /// Whether an object still has the contents that it was listed with.
    ///
    /// # Errors
    /// If it can't be asked for.
    pub fn is_unchanged(&self, object: &Object) -> Result<bool, ObjectError> {
        match self.bucket(&object.uri)?.head(&object.uri.key) {
            Ok(now) => Ok(now.has_contents_of(object)),
            Err(ObjectError::NoObject { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A reader of some bytes of an object. Nothing is asked for before the first read. The reader resumes by itself
    /// after a broken connection. It fails if the object has changed since it was listed.
    ///
    /// Errors of the reader hold an [`ObjectError`], see [`ObjectError::within`].
    ///
    /// # Errors
    /// If a variable can't be used.
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
