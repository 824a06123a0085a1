//! An object as a listing describes it.

use object_store::ObjectMeta;

use crate::uri::ObjectUri;

/// An object of a bucket, in the state at the time of the listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The URI of the object.
    pub uri: ObjectUri,
    /// The size in bytes.
    pub size: u64,
    /// The time of the last modification, in seconds since 1970.
    pub modified: u64,
    /// The entity tag of the contents, with its quotes; `None` if the store gives no strong tag. Different contents
    /// have different tags.
    pub etag: Option<String>,
    /// The version, if the bucket keeps versions and the store lists them.
    pub version: Option<String>,
}

impl Object {
    pub(crate) fn new(bucket: &ObjectUri, meta: ObjectMeta) -> Object {
        Object {
            uri: bucket.with_key(meta.location.as_ref()),
            size: meta.size,
            // the time is in whole seconds, because a listing may be more precise than the headers of an object
            modified: u64::try_from(meta.last_modified.timestamp()).unwrap_or_default(),
            // a weak tag is left out, because different contents may have the same weak tag
            etag: meta.e_tag.filter(|etag| !etag.is_empty() && !etag.starts_with("W/")),
            version: meta.version,
        }
    }

    /// Whether `self` and `other` have the same contents, according to the store.
    pub(crate) fn has_contents_of(&self, other: &Object) -> bool {
        let same_tag = match (&self.etag, &other.etag) {
            (Some(one), Some(other)) => one == other,
            _ => self.modified == other.modified,
        };
        same_tag && self.size == other.size
    }
}
