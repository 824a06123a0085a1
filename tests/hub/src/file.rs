//! Files in the repositories of the hub.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use sha1::{Digest as _, Sha1};
use sha2::Sha256;

type Fill = Arc<dyn Fn(u64, &mut [u8]) + Send + Sync>;

/// The content of a file, and its size and digest.
#[derive(Clone)]
pub struct File {
    content: FileContent,
    pub(crate) size: u64,
    /// The digest in hexadecimal digits: the SHA-1 of the blob for a file in git, and the SHA-256 for a large file.
    pub(crate) digest: String,
    pub(crate) is_large: bool,
}

#[derive(Clone)]
enum FileContent {
    Bytes(Bytes),
    Generated(Fill),
}

impl File {
    /// Returns a file in git, which the hub serves itself.
    pub fn small(bytes: impl Into<Vec<u8>>) -> File {
        let bytes = Bytes::from(bytes.into());
        let mut hasher = Sha1::new_with_prefix(format!("blob {}\0", bytes.len()));
        hasher.update(&bytes);
        let (size, digest) = (bytes.len() as u64, format!("{:x}", hasher.finalize()));
        File { content: FileContent::Bytes(bytes), size, digest, is_large: false }
    }

    /// Returns a large file, which the CDN serves.
    pub fn large(bytes: impl Into<Vec<u8>>) -> File {
        let bytes = Bytes::from(bytes.into());
        let (size, digest) = (bytes.len() as u64, format!("{:x}", Sha256::digest(&bytes)));
        File { content: FileContent::Bytes(bytes), size, digest, is_large: true }
    }

    /// Returns a large file that needs no memory. `fill` writes the file's bytes, starting at an offset, into a buffer.
    /// `sha256` is the digest of the whole file.
    pub fn generated(size: u64, sha256: &str, fill: impl Fn(u64, &mut [u8]) + Send + Sync + 'static) -> File {
        File { content: FileContent::Generated(Arc::new(fill)), size, digest: sha256.to_owned(), is_large: true }
    }

    /// Returns at most `count` bytes, starting at `offset`.
    pub(crate) fn read(&self, offset: u64, count: usize) -> Bytes {
        let rest = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = count.min(rest);
        match &self.content {
            FileContent::Bytes(bytes) => bytes.slice(offset as usize..offset as usize + count),
            FileContent::Generated(fill) => {
                let mut buffer = vec![0; count];
                fill(offset, &mut buffer);
                buffer.into()
            }
        }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "File({} bytes, {})", self.size, self.digest)
    }
}
