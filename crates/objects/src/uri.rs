//! Parses and writes URIs that name objects.

use std::fmt::{self, Display};
use std::str::FromStr;

use crate::provider::Provider;

/// A URI `s3://BUCKET/KEY`, `gs://BUCKET/KEY` or `az://CONTAINER/KEY`. The key is not decoded: `%20` is not a space.
/// The key may be a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectUri {
    /// The kind of store.
    pub provider: Provider,
    /// The bucket or container.
    pub bucket: String,
    /// The key or pattern within the bucket. The key is empty if the URI names the whole bucket.
    pub key: String,
}

/// The error for a text that is not the URI of objects.
#[derive(Clone, Debug, thiserror::Error)]
#[error("\"{uri}\" is not the URI of objects, s3://BUCKET/KEY, gs://BUCKET/KEY or az://CONTAINER/KEY: {reason}")]
pub struct UriError {
    /// The URI as written.
    pub uri: String,
    /// The problem.
    pub reason: String,
}

impl ObjectUri {
    /// Returns the URI of `key` in the same bucket.
    pub(crate) fn with_key(&self, key: &str) -> ObjectUri {
        ObjectUri { key: key.to_owned(), ..self.clone() }
    }
}

impl FromStr for ObjectUri {
    type Err = UriError;

    /// # Errors
    /// Fails if the text is not the URI of objects.
    fn from_str(text: &str) -> Result<ObjectUri, UriError> {
        let bad = |reason: &str| UriError { uri: text.to_owned(), reason: reason.to_owned() };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("it has no scheme"))?;
        let provider = Provider::ALL.into_iter().find(|provider| provider.scheme() == scheme);
        let provider = provider.ok_or_else(|| bad("its scheme is none of s3, gs and az"))?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-$".contains(&byte);
        if bucket.is_empty() || bucket.starts_with('.') || !bucket.bytes().all(is_allowed) {
            return Err(bad(&format!("\"{bucket}\" is not the name of a {}", provider.bucket())));
        }
        if text.chars().any(char::is_control) {
            return Err(bad("it has control characters"));
        }
        let key = key.trim_end_matches('/');
        if !key.is_empty() && key.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
            return Err(bad("its key has a segment that is empty, . or .."));
        }
        Ok(ObjectUri { provider, bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

impl Display for ObjectUri {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}://{}", self.provider.scheme(), self.bucket)?;
        if self.key.is_empty() { Ok(()) } else { write!(formatter, "/{}", self.key) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn uris_name_provider_bucket_and_key() {
        let cases = [
            ("s3://bucket/data/**/*.parquet", Provider::S3, "bucket", "data/**/*.parquet"),
            ("gs://a.b-c_d/x%20y.txt", Provider::Google, "a.b-c_d", "x%20y.txt"),
            ("az://container", Provider::Azure, "container", ""),
            ("az://$web/a/", Provider::Azure, "$web", "a"),
        ];
        for (text, provider, bucket, key) in cases {
            let uri: ObjectUri = text.parse().unwrap();
            assert_eq!(uri, ObjectUri { provider, bucket: bucket.to_owned(), key: key.to_owned() });
            assert_eq!(uri.to_string(), text.trim_end_matches('/'));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let cases = [
            ("ftp://bucket/a", "none of s3, gs and az"),
            ("bucket/a", "no scheme"),
            ("s3:///a", "\"\" is not the name of a bucket"),
            ("az://user:key@host/a", "\"user:key@host\" is not the name of a container"),
            ("s3://../a", "is not the name"),
            ("s3://bucket//a", "empty, . or .."),
            ("s3://bucket/a/../b", "empty, . or .."),
            ("s3://bucket/a\nb", "control characters"),
        ];
        for (text, reason) in cases {
            let error = text.parse::<ObjectUri>().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(s3|gs|az)://[a-z.]{0,3}(/?[a-z%.*]{0,3}){0,3}") {
            if let Ok(uri) = text.parse::<ObjectUri>() {
                prop_assert_eq!(uri.to_string().parse::<ObjectUri>().unwrap(), uri);
            }
        }
    }
}
