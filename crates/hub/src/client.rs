//! The client of a Hugging Face hub.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use stagecoach_remote::{PathPattern, RetryPolicy, Waiter};

use crate::digest::Digest;
use crate::environment::Environment;
use crate::error::HubError;
use crate::file::{CommitFile, HubFile};
use crate::hub::Hub;
use crate::listing::Revision;
use crate::reader::HubReader;
use crate::repo::{Repo, encode_segment};
use crate::status::RequestSubject;
use crate::verified::DigestReader;

/// A client of one hub. Clones share connections.
#[derive(Clone, Debug)]
pub struct HubClient {
    hub: Arc<Hub>,
}

impl HubClient {
    /// Returns a client that retries within the limits of `policy`. [`crate::HUB_RETRY_POLICY`] suits the hub. `waiter`
    /// pauses before a retry, and reports each pause.
    ///
    /// # Errors
    /// Returns `HubError::Environment` if the endpoint is not a URL.
    pub fn new(environment: Environment, policy: RetryPolicy, waiter: Waiter) -> Result<HubClient, HubError> {
        Ok(HubClient { hub: Arc::new(Hub::new(environment, policy, waiter)?) })
    }

    /// Returns the current commit of `revision`, which is a branch, a tag, a commit or a git reference such as
    /// `refs/pr/1`. Offline, the cache resolves the revision.
    ///
    /// # Errors
    /// Fails if the revision does not exist, or if the hub can't be reached.
    pub fn commit(&self, repo: &Repo, revision: &str) -> Result<String, HubError> {
        if self.hub.is_offline {
            let cached = self.hub.cache.as_ref().map_or(Ok(None), |cache| cache.commit(repo, revision))?;
            return cached.ok_or_else(|| self.hub.not_cached(format!("revision \"{revision}\" of the {repo}")));
        }
        let url = self.hub.http.url(&format!("{}/revision/{}", repo.api_path(), encode_segment(revision)))?;
        let (Revision { sha }, _) = self.hub.ask(&url, RequestSubject { repo, revision, path: "" })?;
        match sha.bytes().all(|byte| byte.is_ascii_hexdigit()) && !sha.is_empty() {
            true => Ok(sha),
            false => Err(HubError::Protocol {
                url: url.public(),
                reason: "its sha is not the hexadecimal hash of a commit".to_owned(),
            }),
        }
    }

    /// Returns the files of a commit that match a pattern, sorted by path. The pattern is a path within the repository,
    /// with `*`, `?`, `[a-z]` and `**`. An empty pattern matches all files without a leading dot. Offline, only cached
    /// files can match.
    ///
    /// # Errors
    /// Returns `HubError::NoMatch` if no file matches. Also fails if the listing can't be read.
    pub fn files(&self, repo: &Repo, commit: &str, pattern: &str) -> Result<Vec<HubFile>, HubError> {
        let glob = PathPattern::parse(pattern)
            .map_err(|reason| HubError::Pattern { pattern: pattern.to_owned(), reason: reason.to_owned() })?;
        let mut found = self.hub.find(repo, commit, &glob)?;
        if found.files.is_empty() {
            let (repo, commit, pattern) = (repo.clone(), commit.to_owned(), pattern.to_owned());
            return Err(HubError::NoMatch { repo, commit, pattern, nearest: found.nearest() });
        }
        found.files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(found.files)
    }

    /// Returns a reader of a range of a file's bytes. The reader sends no request before the first read, resumes after
    /// a broken connection, and reads from the cache if the cache has the file.
    ///
    /// If `bytes` is the range of the whole file, the reader verifies the digest. If the digest differs from the listed
    /// digest, the reader returns `HubError::Differs` instead of the last bytes. The reader can't verify the bytes of a
    /// part of a file: the hub only confirms that its file has the listed digest.
    ///
    /// [`HubError::within`] finds the [`HubError`] in an error of the reader.
    pub fn open(&self, repo: &Repo, commit: &str, file: &HubFile, bytes: Range<u64>) -> Box<dyn Read + Send> {
        let range = bytes.start.min(file.size)..bytes.end.min(file.size);
        let is_whole = range == (0..file.size);
        let source = CommitFile { repo: repo.clone(), commit: commit.to_owned(), file: file.clone() };
        let reader = HubReader::new(self.hub.clone(), source.clone(), range);
        if !is_whole {
            return Box::new(reader);
        }
        let differs = move |reader: &HubReader, found: &Digest| {
            let (file, place, found) = (Box::new(source.clone()), reader.place(), found.clone());
            HubError::Differs { file, place, found }.into()
        };
        Box::new(DigestReader::new(reader, &file.digest, file.size, differs))
    }
}
