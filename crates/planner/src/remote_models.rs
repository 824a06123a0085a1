//! Models and tokenizers of the Hugging Face hub that a job's paths name. The trainer copies them to the volume, where
//! all stages read them. A record in the job's folder holds the commits, so a branch that moves does not affect a job
//! that has begun.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stagecoach_api::PipelineJob;
use stagecoach_api::contract::FailureKind;
use stagecoach_api::job::{ModelSpec, TOKEN_CACHE, TokenizerSpec};
use stagecoach_data::{DataError, EnvironmentVariables, OnWait, hub_client};
use stagecoach_engine::StageError;
use stagecoach_files::{read_if_exists, write_atomically};
use stagecoach_hub::{CommitCopy, FetchProgress, HubClient, HubError, HubUri, RepoPart};
use stagecoach_launcher::REMOTE_MODELS;

const SCHEME: &str = "hf://";
/// The branch of a URI without a revision.
const MAIN: &str = "main";
/// The folder of the copies. It is inside the folder of the token cache, whose name no job's folder can have.
const COPIES: &str = "hub";

/// The commits of the repositories that a job's paths name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteModels {
    /// The commit of each `hf://OWNER/NAME[@REVISION]`.
    commits: BTreeMap<String, String>,
}

/// The part of a model that is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchExtent {
    /// The configuration and the tokenizer, which suffice for a plan.
    Settings,
    /// The settings and the weights.
    All,
}

/// The receivers of reports during a fetch.
pub struct FetchReports<'a> {
    /// Receives the commits before the first file is fetched.
    pub on_resolved: &'a mut dyn FnMut(&RemoteModels) -> Result<(), StageError>,
    /// Receives the activity, the bytes fetched so far, and the needed bytes.
    pub on_progress: &'a mut dyn FnMut(&str, u64, u64),
    /// Receives the reason for each wait.
    pub on_wait: OnWait,
}

/// A URI of the Hugging Face hub in a field of a job.
struct Remote {
    /// The field that has the URI.
    field: &'static str,
    uri: HubUri,
}

impl Remote {
    /// Parses the URI in a field; `None` if the field has a path on the volume.
    fn parse(field: &'static str, path: &str, is_file: bool) -> Result<Option<Remote>, StageError> {
        if !path.starts_with(SCHEME) {
            return Ok(None);
        }
        let invalid = |problem: String| StageError::invalid(format!("{field}: {problem}"));
        let uri: HubUri = path.parse().map_err(|error: HubError| invalid(error.to_string()))?;
        match (is_file, uri.path.is_empty()) {
            (true, true) => Err(invalid(format!("\"{path}\" names no file: add it, as in {path}/tokenizer.json"))),
            (false, false) => Err(invalid(format!(
                "\"{path}\" names \"{}\" in a repository, but a model is a whole repository: write \
                 hf://OWNER/NAME[@REVISION]",
                uri.path
            ))),
            _ => Ok(Some(Remote { field, uri })),
        }
    }

    fn part(&self, extent: FetchExtent) -> RepoPart<'_> {
        match (self.uri.path.as_str(), extent) {
            ("", FetchExtent::All) => RepoPart::Model,
            ("", FetchExtent::Settings) => RepoPart::Settings,
            (path, _) => RepoPart::Tokenizer(path),
        }
    }

    fn error(&self, error: HubError) -> StageError {
        let field = self.field;
        match error {
            HubError::File { .. } => StageError::new(FailureKind::Storage, format!("{field}: {error}")),
            error => {
                let StageError { kind, message } = DataError::Hub(error).into();
                StageError::new(kind, format!("{field}: {message}"))
            }
        }
    }
}

/// Returns the URIs of the Hugging Face hub in a job's fields.
fn remotes(job: &PipelineJob) -> Result<Vec<Remote>, StageError> {
    let spec = &job.spec;
    let model = match &spec.model {
        Some(ModelSpec::Pretrained(from)) => Some(("spec.model.pretrained.path", &from.path, false)),
        _ => None,
    };
    let init_from = spec.checkpoint.init_from.as_ref().map(|from| ("spec.checkpoint.initFrom.path", &from.path, false));
    let tokenizer = match spec.data.as_ref().map(|data| &data.tokenizer) {
        Some(TokenizerSpec::File(file)) => Some(("spec.data.tokenizer.file.path", &file.path, true)),
        _ => None,
    };
    let all = model.into_iter().chain(init_from).chain(tokenizer);
    all.filter_map(|(field, path, is_file)| Remote::parse(field, path, is_file).transpose()).collect()
}

/// Whether a job names a model or a tokenizer of the hub.
///
/// # Errors
/// Returns an error if a URI is invalid.
pub fn has_remote_models(job: &PipelineJob) -> Result<bool, StageError> {
    Ok(!remotes(job)?.is_empty())
}

impl RemoteModels {
    /// Reads the record of `job` from `job_folder`. The result is empty if there is no record file, or if `job` has no
    /// URIs.
    ///
    /// # Errors
    /// Returns an error if a URI is invalid, or if the file can't be read or is not a record.
    pub fn recorded(job: &PipelineJob, job_folder: &Path) -> Result<RemoteModels, StageError> {
        if !has_remote_models(job)? {
            return Ok(RemoteModels::default());
        }
        let path = job_folder.join(REMOTE_MODELS);
        let bytes = read_if_exists(&path).map_err(|error| StageError::storage("read", &path, error))?;
        let Some(bytes) = bytes else { return Ok(RemoteModels::default()) };
        let damaged = |problem: String| {
            StageError::invalid(format!(
                "{} has no valid record of remote models ({problem}): remove the file; the job then asks the hub \
                 again, and resumes only if the hub answers with the same commits",
                path.display()
            ))
        };
        let models: RemoteModels = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        match models.commits.values().find(|commit| !is_commit(commit)) {
            Some(other) => Err(damaged(format!("\"{}\" is not the hash of a commit", other.escape_debug()))),
            None => Ok(models),
        }
    }

    /// Writes the record into a job's folder.
    ///
    /// # Errors
    /// Returns an error if the record can't be written.
    pub fn write(&self, job_folder: &Path) -> Result<(), StageError> {
        let path = job_folder.join(REMOTE_MODELS);
        let failed = |error: std::io::Error| StageError::storage("write", &path, error);
        let json = serde_json::to_vec_pretty(self).map_err(|error| failed(error.into()))?;
        write_atomically(&path, &json).map_err(failed)
    }

    /// Copies the missing models and tokenizers of `job` to the volume, and returns all commits. A recorded commit is
    /// not resolved again. This method has no effect on a job without URIs.
    ///
    /// # Errors
    /// Returns an error if a URI is invalid, or if a commit or a file can't be fetched.
    pub fn fetch(
        self,
        job: &PipelineJob,
        workspace: &Path,
        extent: FetchExtent,
        reports: FetchReports<'_>,
    ) -> Result<RemoteModels, StageError> {
        let FetchReports { on_resolved, on_progress, on_wait } = reports;
        let mut client = LazyClient { variables: EnvironmentVariables::of_process(), on_wait, client: None };
        self.fetch_with(&mut client, job, workspace, extent, on_resolved, on_progress)
    }

    fn fetch_with(
        mut self,
        client: &mut LazyClient,
        job: &PipelineJob,
        workspace: &Path,
        extent: FetchExtent,
        on_resolved: &mut dyn FnMut(&RemoteModels) -> Result<(), StageError>,
        on_progress: &mut dyn FnMut(&str, u64, u64),
    ) -> Result<RemoteModels, StageError> {
        let remotes = remotes(job)?;
        let mut is_changed = false;
        for remote in &remotes {
            let key = revision_key(&remote.uri);
            if self.commits.contains_key(&key) {
                continue;
            }
            let HubUri { repo, revision, .. } = &remote.uri;
            let commit = client.open()?.commit(repo, revision.as_deref().unwrap_or(MAIN));
            let commit = commit.map_err(|error| remote.error(error))?;
            if !is_commit(&commit) {
                let reason = format!("\"{}\" is not the hash of a commit", commit.escape_debug());
                return Err(StageError::invalid(format!("{}: {reason}", remote.field)));
            }
            self.commits.insert(key, commit);
            is_changed = true;
        }
        if is_changed {
            on_resolved(&self)?;
        }
        for remote in &remotes {
            let (Some(copy), part) = (self.copy_of(&remote.uri, workspace), remote.part(extent)) else { continue };
            if copy.has(part) {
                continue;
            }
            let what = format!("fetching {}", remote.uri);
            let progress = &mut |FetchProgress { bytes_done, bytes_total }| on_progress(&what, bytes_done, bytes_total);
            copy.fetch(client.open()?, part, progress).map_err(|error| remote.error(error))?;
        }
        Ok(self)
    }

    /// Checks whether the volume has all models and tokenizers of `job`, as far as `extent` requires. If not, the inner
    /// error is the number of bytes that the volume has so far. This number grows during a fetch.
    ///
    /// # Errors
    /// Returns an error if a URI is invalid.
    pub fn fetched(
        &self,
        job: &PipelineJob,
        workspace: &Path,
        extent: FetchExtent,
    ) -> Result<Result<(), u64>, StageError> {
        let (mut is_complete, mut bytes) = (true, 0);
        for remote in remotes(job)? {
            let part = remote.part(extent);
            let copy = self.copy_of(&remote.uri, workspace);
            is_complete &= copy.as_ref().is_some_and(|copy| copy.has(part));
            bytes += copy.map_or(0, |copy| copy.bytes(part));
        }
        Ok(if is_complete { Ok(()) } else { Err(bytes) })
    }

    /// Whether `path` is the URI of a model whose weights the volume lacks.
    pub(crate) fn lacks_weights(&self, path: &str, workspace: &Path) -> bool {
        let Some(uri) = parse(path) else { return false };
        !self.copy_of(&uri, workspace).is_some_and(|copy| copy.has(RepoPart::Model))
    }

    /// Refuses a job if one of its URIs has no recorded commit.
    pub(crate) fn check(&self, job: &PipelineJob) -> Result<(), StageError> {
        match remotes(job)?.iter().find(|remote| !self.commits.contains_key(&revision_key(&remote.uri))) {
            None => Ok(()),
            Some(Remote { field, uri }) => {
                Err(StageError::new(FailureKind::Error, format!("{field}: {uri} has not been fetched from the hub")))
            }
        }
    }

    /// Converts a path of the job to a path relative to the volume's root. A URI becomes the path of its local copy.
    pub(crate) fn local_path(&self, path: &str) -> PathBuf {
        let copy = parse(path).and_then(|uri| Some((self.copy_of(&uri, Path::new(""))?, uri)));
        match copy {
            Some((copy, uri)) if uri.path.is_empty() => copy.folder().to_owned(),
            Some((copy, uri)) => copy.folder().join(uri.path),
            None => path.into(),
        }
    }

    /// Replaces the revision in a URI by the recorded commit. Returns any other path unchanged.
    pub(crate) fn at_commit(&self, path: &str) -> String {
        let pinned = parse(path).and_then(|uri| {
            let revision = Some(self.commits.get(&revision_key(&uri))?.clone());
            Some(HubUri { revision, ..uri }.to_string())
        });
        pinned.unwrap_or_else(|| path.to_owned())
    }

    fn copy_of(&self, uri: &HubUri, workspace: &Path) -> Option<CommitCopy> {
        let commit = self.commits.get(&revision_key(uri))?;
        Some(CommitCopy::new(&workspace.join(TOKEN_CACHE).join(COPIES), &uri.repo, commit))
    }
}

/// A client that opens at its first use. A job whose files are on the volume therefore needs neither a reachable hub
/// nor valid environment variables.
struct LazyClient {
    variables: EnvironmentVariables,
    on_wait: OnWait,
    client: Option<HubClient>,
}

impl LazyClient {
    fn open(&mut self) -> Result<&HubClient, StageError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => hub_client(&self.variables, &self.on_wait)?,
        };
        Ok(self.client.insert(client))
    }
}

fn parse(path: &str) -> Option<HubUri> {
    path.starts_with(SCHEME).then(|| path.parse().ok())?
}

/// Returns the key of a URI in `commits`: the URI of the repository at its revision, without a path inside the
/// repository.
fn revision_key(uri: &HubUri) -> String {
    HubUri { path: String::new(), ..uri.clone() }.to_string()
}

/// Whether `text` is a commit's hash, which is also a safe name of a folder.
fn is_commit(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests;
