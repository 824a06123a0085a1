//! A job's folder in the workspace: its file names, whether an existing folder is a job's, and the files that earlier
//! runs left in it. Files that no job created are never removed or overwritten.

mod artifacts;
mod error;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use stagecoach_api::PipelineJob;
use stagecoach_checkpoint::{FileSystemVolume, is_used, paths};
use stagecoach_files::{create_durable_dir, temporary_target, write_atomically};
use stagecoach_telemetry::RunSummary;

pub use error::FolderError;

/// The metrics, a line per step.
pub const METRICS: &str = "metrics.jsonl";
/// The [`RunSummary`] of a finished run.
pub const RESULT: &str = "result.json";
/// The speeds with which the last attempt was planned.
pub const SPEEDS: &str = "speeds.json";
/// The files that the remote patterns of `data.paths` matched when the job began.
pub const REMOTE_FILES: &str = "remote-files.json";
/// The commits of the repositories that the job's paths name.
pub const REMOTE_MODELS: &str = "remote-models.json";
/// The record of the model directory with which the job begins, if the job names another job's folder.
pub const INITIAL_MODEL: &str = "initial-model.json";
/// The folder of a streamed corpus's windows, which has a folder for each token cache.
pub const WINDOWS: &str = "windows";
const LOCK: &str = "lock";
const LAUNCHER_STATE: &str = "state.json";
/// The resolved job. The name is not `job.yaml`, because a user's own job file may have that name.
const RESOLVED_JOB: &str = "resolved-job.yaml";
const LOGS: &str = "logs";
const TERMINATION: &str = "termination";
const PLOTS: &str = "plots";
const LOSS_CURVE: &str = "loss.svg";

/// The folder `<workspace>/<storage.path>`.
#[derive(Clone, Debug)]
pub struct JobFolder {
    root: PathBuf,
}

impl JobFolder {
    /// Opens a job's folder, or creates one. An existing folder may become a job's if it holds nothing but hidden files
    /// and `job_file`, the file that the job was read from.
    ///
    /// # Errors
    /// `Foreign` if it holds anything else, which is left as it is; or if the volume fails.
    pub fn open(root: &Path, job_file: Option<&Path>) -> Result<Self, FolderError> {
        let folder = Self { root: root.to_owned() };
        let foreign = match fs::read_dir(root) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                create_durable_dir(root).map_err(FolderError::storage("create the job's folder", root))?;
                return Ok(folder);
            }
            listed => folder
                .foreign_entries(listed.map_err(FolderError::storage("open the job's folder", root))?, job_file)?,
        };
        if foreign.is_empty() || folder.belongs_to_job()? {
            create_durable_dir(root).map_err(FolderError::storage("create the job's folder", root))?;
            return Ok(folder);
        }
        Err(FolderError::Foreign { folder: folder.root, found: foreign })
    }

    /// A folder that a job has created; `None` if no job created the folder, or it does not exist.
    ///
    /// # Errors
    /// If the volume fails.
    pub fn existing(root: &Path) -> Result<Option<Self>, FolderError> {
        let folder = Self { root: root.to_owned() };
        Ok((root.is_dir() && folder.belongs_to_job()?).then_some(folder))
    }

    /// The names of the entries that a new job's folder must not have.
    fn foreign_entries(&self, entries: fs::ReadDir, job_file: Option<&Path>) -> Result<Vec<String>, FolderError> {
        let job_file = job_file.and_then(|file| fs::canonicalize(file).ok());
        let mut foreign = Vec::new();
        for entry in entries {
            let path = entry.map_err(FolderError::storage("list", &self.root))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_job_file = job_file.is_some() && fs::canonicalize(&path).ok() == job_file;
            // left by a launcher that died before it wrote its process id
            let is_empty_lock = name == LOCK && fs::metadata(&path).is_ok_and(|found| found.len() == 0);
            // stage 0 fetches the model before it takes a fence
            let is_record = temporary_target(&name).unwrap_or(&name) == REMOTE_MODELS;
            let is_allowed = is_empty_lock
                || is_record
                || name.starts_with('.')
                || is_job_file && !artifacts::is_job_file("", &name);
            if !is_allowed {
                foreign.push(name);
            }
        }
        foreign.sort();
        Ok(foreign)
    }

    /// Whether a job created the folder: a launcher first writes its process id into the lock file, stage 0 of a pod
    /// first takes a fence.
    fn belongs_to_job(&self) -> Result<bool, FolderError> {
        Ok(self.lock_holder().is_some() || is_used(&self.volume())?)
    }

    /// Whether a job has run here. A folder with imported weights has a lock and a fence, and none of these files.
    pub fn has_run(&self) -> bool {
        [self.resolved_job(), self.launcher_state(), self.metrics(), self.result()].iter().any(|path| path.exists())
    }

    /// The model of a result, wherever the folder was when the result was written; `None` if its checkpoint is missing.
    pub fn model(&self, summary: &RunSummary) -> Option<PathBuf> {
        Some(self.root.join(paths::checkpoint_path(summary.steps))).filter(|path| path.is_dir())
    }

    /// The process id of the launcher that holds the lock, or held it last.
    pub fn lock_holder(&self) -> Option<u32> {
        fs::read_to_string(self.lock()).ok()?.lines().next()?.parse().ok()
    }

    /// Prepares the folder for a run: creates the folders inside, and removes logs and result of the last run.
    ///
    /// # Errors
    /// If the volume fails.
    pub fn start_run(&self) -> Result<(), FolderError> {
        self.remove_logs_and_result()?;
        for name in [LOGS, PLOTS, TERMINATION] {
            let path = self.root.join(name);
            fs::create_dir_all(&path).map_err(FolderError::storage("create the folder", &path))?;
        }
        Ok(())
    }

    /// The files that [`JobFolder::start_run`] and a new resolved job replace, so that a run without progress can
    /// restore them.
    ///
    /// # Errors
    /// If the volume fails.
    pub fn previous_files(&self) -> Result<PreviousFiles, FolderError> {
        let mut files = Vec::new();
        for path in [self.resolved_job(), self.result()] {
            match fs::read(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                read => files.push((path.clone(), read.map_err(FolderError::storage("read", &path))?)),
            }
        }
        Ok(PreviousFiles(files))
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The volume with checkpoints and fences.
    pub fn volume(&self) -> FileSystemVolume {
        FileSystemVolume::new(&self.root)
    }

    /// The lock file.
    pub fn lock(&self) -> PathBuf {
        self.root.join(LOCK)
    }

    /// The resolved job, which the stages read.
    pub fn resolved_job(&self) -> PathBuf {
        Self::resolved_job_in(&self.root)
    }

    /// The resolved job in a folder that may be a job's.
    pub fn resolved_job_in(folder: &Path) -> PathBuf {
        folder.join(RESOLVED_JOB)
    }

    /// The resolved job of the last run; `None` if it is missing or can't be read.
    pub fn stored_job(&self) -> Option<PipelineJob> {
        stagecoach_api::parse(&fs::read_to_string(self.resolved_job()).ok()?, "job").ok()
    }

    /// The [`LauncherState`](crate::LauncherState).
    pub(crate) fn launcher_state(&self) -> PathBuf {
        self.root.join(LAUNCHER_STATE)
    }

    /// The [`RunSummary`] of a finished run.
    pub(crate) fn result(&self) -> PathBuf {
        self.root.join(RESULT)
    }

    /// The metrics, a line per step.
    pub fn metrics(&self) -> PathBuf {
        self.root.join(METRICS)
    }

    /// The loss curve.
    pub fn loss_curve(&self) -> PathBuf {
        self.root.join(PLOTS).join(LOSS_CURVE)
    }

    /// The folder of the logs.
    pub fn logs(&self) -> PathBuf {
        self.root.join(LOGS)
    }

    /// The log, which is its stderr, of the process `stage-<stage>` or `spare-<number>`.
    pub(crate) fn log(&self, process: &str) -> PathBuf {
        self.logs().join(format!("{process}.log"))
    }

    /// The termination message of the process `stage-<stage>` or `spare-<number>`.
    pub(crate) fn termination_message(&self, process: &str) -> PathBuf {
        self.root.join(TERMINATION).join(format!("{process}.json"))
    }

    /// The summary of a finished run; `None` if it is missing or can't be read.
    pub fn summary(&self) -> Option<RunSummary> {
        serde_json::from_slice(&fs::read(self.result()).ok()?).ok()
    }
}

/// Result and resolved job of an earlier run.
#[derive(Debug)]
pub struct PreviousFiles(Vec<(PathBuf, Vec<u8>)>);

impl PreviousFiles {
    /// Restores the files with their old content.
    ///
    /// # Errors
    /// If the volume fails.
    pub fn restore(&self) -> Result<(), FolderError> {
        self.0
            .iter()
            .try_for_each(|(path, bytes)| write_atomically(path, bytes).map_err(FolderError::storage("write", path)))
    }
}

/// Replaces a file atomically: readers and crashes find the old content or the new one.
///
/// # Errors
/// If the volume fails.
pub fn write_file(path: &Path, content: &str) -> Result<(), FolderError> {
    write_atomically(path, content.as_bytes()).map_err(FolderError::storage("write", path))
}

#[cfg(test)]
mod tests;
