//! Files of the Hugging Face hub. A corpus reads the files of one commit, even if the branch moves later.

use std::io::{self, Read};
use std::ops::Range;
use std::path::PathBuf;

use stagecoach_hub::{Digest, Environment, HUB_RETRY_POLICY, HubClient, HubFile, HubUri};

use super::waits::reporting_waiter;
use super::{FileStamp, Source, SourceFile, SourceListing};
use crate::config::DataConfig;
use crate::error::DataError;
use crate::surroundings::{EnvironmentVariables, OnWait};

/// The branch of a URI without a revision.
const MAIN: &str = "main";

/// Returns a client of the hub that the environment variables name. The client reports its waits to `on_wait`.
///
/// # Errors
/// Fails if a variable can't be used.
pub fn hub_client(variables: &EnvironmentVariables, on_wait: &OnWait) -> Result<HubClient, DataError> {
    let environment = Environment::read(|name| variables.get(name))?;
    Ok(HubClient::new(environment, HUB_RETRY_POLICY, reporting_waiter(on_wait))?)
}

/// The files of all repositories of a hub. The path of a file is its URI at a commit.
#[derive(Debug)]
pub(super) struct HubFiles {
    client: HubClient,
}

impl HubFiles {
    /// Returns the files of the hub that the job's environment variables name.
    ///
    /// # Errors
    /// Fails if a variable can't be used.
    pub(super) fn of_job(config: &DataConfig) -> Result<HubFiles, DataError> {
        Ok(HubFiles { client: hub_client(&config.variables, &config.on_wait)? })
    }
}

impl Source for HubFiles {
    fn list(&self, pattern: &str) -> Result<SourceListing, DataError> {
        let HubUri { repo, revision, path: glob } = pattern.parse()?;
        let commit = self.client.commit(&repo, revision.as_deref().unwrap_or(MAIN))?;
        let files = self.client.files(&repo, &commit, &glob)?.into_iter().map(|HubFile { path, size, digest }| {
            let uri = |revision| HubUri { repo: repo.clone(), revision, path: path.clone() }.to_string();
            SourceFile {
                path: PathBuf::from(uri(Some(commit.clone()))),
                name: uri(revision.clone()),
                matched: path.clone(),
                stamp: FileStamp { size, ..FileStamp::default() },
                digest: Some(digest.to_string()),
            }
        });
        Ok(SourceListing { files: files.collect(), folders: Vec::new() })
    }

    fn is_unchanged(&self, _: &SourceFile) -> Result<bool, DataError> {
        Ok(true) // the files of a commit don't change
    }

    fn open(&self, file: &SourceFile, bytes: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let HubUri { repo, revision, path } = file.path.to_string_lossy().parse()?;
        let digest = file.digest.as_deref().and_then(Digest::parse);
        let digest = digest.ok_or_else(|| io::Error::other("its record names no digest of the hub"))?;
        let file = HubFile { path, size: file.stamp.size, digest };
        Ok(self.client.open(&repo, revision.as_deref().unwrap_or(MAIN), &file, bytes))
    }

    fn verifies_whole_files(&self) -> bool {
        true
    }
}
