//! Objects of S3, Google Cloud Storage and Azure. A corpus reads the objects that were listed when its job began, and
//! refuses an object that changed afterwards.

use std::io::{self, Read};
use std::ops::Range;
use std::path::PathBuf;

use stagecoach_objects::{OBJECT_RETRY_POLICY, Object, ObjectClient, ObjectError, ObjectUri};

use super::waits::reporting_waiter;
use super::{FileStamp, Source, SourceFile, SourceListing};
use crate::config::DataConfig;
use crate::error::DataError;

const NANOSECONDS: u64 = 1_000_000_000;

/// The objects of all buckets. The path of a file is the URI of the object.
#[derive(Debug)]
pub(super) struct ObjectFiles {
    client: ObjectClient,
}

impl ObjectFiles {
    /// Returns the objects of the stores that the job's environment variables name.
    ///
    /// # Errors
    /// Fails if the client can't be started.
    pub(super) fn of_job(config: &DataConfig) -> Result<ObjectFiles, DataError> {
        let waiter = reporting_waiter(&config.on_wait);
        Ok(ObjectFiles { client: ObjectClient::new(config.variables.iter(), OBJECT_RETRY_POLICY, waiter)? })
    }
}

impl Source for ObjectFiles {
    fn list(&self, pattern: &str) -> Result<SourceListing, DataError> {
        let uri: ObjectUri = pattern.parse().map_err(ObjectError::from)?;
        Ok(SourceListing { files: self.client.list(&uri)?.iter().map(file).collect(), folders: Vec::new() })
    }

    fn is_unchanged(&self, file: &SourceFile) -> Result<bool, DataError> {
        Ok(self.client.is_unchanged(&object(file)?)?)
    }

    fn open(&self, file: &SourceFile, bytes: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        Ok(self.client.open(&object(file)?, bytes)?)
    }
}

fn file(object: &Object) -> SourceFile {
    let name = object.uri.to_string();
    let modified = object.modified.saturating_mul(NANOSECONDS);
    SourceFile {
        path: PathBuf::from(&name),
        name,
        matched: object.uri.key.clone(),
        stamp: FileStamp { size: object.size, modified, ..FileStamp::default() },
        // the ETags of some stores are no hashes of the whole content, so the digest also contains the size
        digest: object.etag.as_ref().map(|etag| format!("etag:{}:{etag}", object.size)),
    }
}

fn object(file: &SourceFile) -> Result<Object, ObjectError> {
    let etag = file.digest.as_ref().and_then(|digest| digest.splitn(3, ':').nth(2)).map(str::to_owned);
    Ok(Object {
        uri: file.path.to_string_lossy().parse()?,
        size: file.stamp.size,
        modified: file.stamp.modified / NANOSECONDS,
        etag,
        version: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_leads_back_to_its_object() {
        for etag in [Some("\"9b2c:f5-2\"".to_owned()), None] {
            let uri = "s3://bucket/a b%20:c.txt".parse().unwrap();
            let object_listed = Object { uri, size: 5, modified: 1_767_323_045, etag, version: None };
            let file = file(&object_listed);
            assert_eq!(object(&file).unwrap(), object_listed);
            assert!(file.digest.is_none_or(|digest| digest.starts_with("etag:5:\"")));
        }
    }

    #[test]
    fn an_object_may_have_any_time() {
        let uri = "s3://bucket/a.txt".parse().unwrap();
        let object = Object { uri, size: 5, modified: u64::MAX, etag: None, version: None };
        assert_eq!(file(&object).stamp.modified, u64::MAX);
    }
}
