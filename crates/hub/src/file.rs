//! The files of repositories.

use std::fmt::{self, Display};

use crate::digest::Digest;
use crate::repo::{Repo, encode_path, encode_segment};

/// A file of a commit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HubFile {
    /// The path within the repository.
    pub path: String,
    /// The number of bytes.
    pub size: u64,
    /// The digest of the bytes.
    pub digest: Digest,
}

/// A file, and the commit that has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CommitFile {
    /// The repository.
    pub repo: Repo,
    /// The commit.
    pub commit: String,
    /// The file, as the commit lists it.
    pub file: HubFile,
}

impl Display for CommitFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of the {} at commit {}", self.file.path, self.repo, self.commit)
    }
}

impl CommitFile {
    /// Returns the path of the file on the hub. For a large file, the hub redirects the request to the CDN.
    pub(crate) fn url_path(&self) -> String {
        format!("{}/resolve/{}/{}", self.repo.path(), encode_segment(&self.commit), encode_path(&self.file.path))
    }
}
