//! A job's folder in the workspace. This module defines the names of the folder's files, checks whether a job created
//! the folder, and removes the files of earlier runs. It never removes or overwrites a file that no job created.

mod artifacts;
mod error;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use stagecoach_api::PipelineJob;
use stagecoach_checkpoint::{FileSystemVolume, is_used, paths};
use stagecoach_files::{create_durable_dir, read_if_exists, target_of_temporary_file, write_atomically};
use stagecoach_telemetry::RunSummary;

pub use error::FolderError;

/// The file with the metrics, one line per step.
pub const METRICS: &str = "metrics.jsonl";
/// The file with the [`RunSummary`] of a finished run.
pub const RESULT: &str = "result.json";
/// The file with the relative speeds of the stages. The last attempt was planned for these speeds.
pub const SPEEDS: &str = "speeds.json";
/// The file that lists the remote files that the patterns of `data.paths` matched when the job began.
pub const REMOTE_FILES: &str = "remote-files.json";
/// The file with the commits of the Hugging Face repositories that the job's paths name.
pub const REMOTE_MODELS: &str = "remote-models.json";
/// The file that records the model directory from which the job starts, if the job names another job's folder.
pub const INITIAL_MODEL: &str = "initial-model.json";
/// The folder for the windows (consecutive tokenised parts) of streamed corpora. It has a subfolder for each token
/// cache.
pub const WINDOWS: &str = "windows";
const LOCK: &str = "lock";
const LAUNCHER_STATE: &str = "state.json";
/// The resolved job. The name is not `job.yaml`, because a user's own job file may have that name.
const RESOLVED_JOB: &str = "resolved-job.yaml";
const LOGS: &str = "logs";
const TERMINATION: &str = "termination";
const PLOTS: &str = "plots";
const LOSS_CURVE: &str = "loss.svg";

/// A job's folder, `<workspace>/<storage.path>`.
#[derive(Clone, Debug)]
pub struct JobFolder {
    root: PathBuf,
}

impl JobFolder {
    /// Opens a job's folder, or creates one. An existing folder that no job has used becomes a job's folder only if
    /// each of its entries is a hidden file, `job_file` (the file from which the caller read the job), an empty lock
    /// file, or a [`REMOTE_MODELS`] file.
    ///
    /// # Errors
    /// Returns `Foreign` if the folder contains any other entry. In this case, the function changes nothing. Returns
    /// another error if the volume fails.
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

    /// Returns a folder that a job created, or `None` if no job created the folder or the folder does not exist.
    ///
    /// # Errors
    /// Returns an error if the volume fails.
    pub fn existing(root: &Path) -> Result<Option<Self>, FolderError> {
        let folder = Self { root: root.to_owned() };
        Ok((root.is_dir() && folder.belongs_to_job()?).then_some(folder))
    }

    /// Returns the names of the entries that prevent the folder from becoming a job's folder.
    fn foreign_entries(&self, entries: fs::ReadDir, job_file: Option<&Path>) -> Result<Vec<String>, FolderError> {
        let job_file = job_file.and_then(|file| fs::canonicalize(file).ok());
        let mut foreign = Vec::new();
        for entry in entries {
            let path = entry.map_err(FolderError::storage("list", &self.root))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_job_file = job_file.is_some() && fs::canonicalize(&path).ok() == job_file;
            // a launcher that dies before it writes its process id leaves an empty lock
            let is_empty_lock = name == LOCK && fs::metadata(&path).is_ok_and(|found| found.len() == 0);
            // rank 0 writes REMOTE_MODELS before it creates a fence, so the folder may not belong to a job yet
            let is_record = target_of_temporary_file(&name).unwrap_or(&name) == REMOTE_MODELS;
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

    /// Whether a job has used the folder. A launcher writes its process id into the lock file before it starts stages.
    /// In a cluster, the leader creates a fence (a folder that gives the right to write checkpoints) before training.
    fn belongs_to_job(&self) -> Result<bool, FolderError> {
        Ok(self.lock_holder().is_some() || is_used(&self.volume())?)
    }

    /// Whether a job has run in this folder. A folder with only imported weights has a lock and a fence, but no
    /// resolved job, launcher state, metrics or result.
    pub fn has_run(&self) -> bool {
        [self.resolved_job(), self.launcher_state(), self.metrics(), self.result()].iter().any(|path| path.exists())
    }

    /// Returns the path of the checkpoint with the model that `summary` describes. The path is correct even if the
    /// folder was moved after the run. Returns `None` if the checkpoint is missing.
    pub fn model(&self, summary: &RunSummary) -> Option<PathBuf> {
        Some(self.root.join(paths::checkpoint_path(summary.steps))).filter(|path| path.is_dir())
    }

    /// Returns the process id of the launcher that holds the lock, or that held it last.
    pub fn lock_holder(&self) -> Option<u32> {
        fs::read_to_string(self.lock()).ok()?.lines().next()?.parse().ok()
    }

    /// Prepares the folder for a run: creates the folders inside, and removes the logs and the result of the last run.
    ///
    /// # Errors
    /// Returns an error if the volume fails.
    pub fn start_run(&self) -> Result<(), FolderError> {
        self.remove_logs_and_result()?;
        for name in [LOGS, PLOTS, TERMINATION] {
            let path = self.root.join(name);
            fs::create_dir_all(&path).map_err(FolderError::storage("create the folder", &path))?;
        }
        Ok(())
    }

    /// Reads the resolved job and the result of the last run. The next run replaces both files, and restores them if it
    /// makes no progress.
    ///
    /// # Errors
    /// Returns an error if the volume fails.
    pub fn previous_files(&self) -> Result<PreviousFiles, FolderError> {
        let mut files = Vec::new();
        for path in [self.resolved_job(), self.result()] {
            let bytes = read_if_exists(&path).map_err(FolderError::storage("read", &path))?;
            files.extend(bytes.map(|bytes| (path, bytes)));
        }
        Ok(PreviousFiles(files))
    }

    /// Returns the path of the folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the volume with checkpoints and fences.
    pub fn volume(&self) -> FileSystemVolume {
        FileSystemVolume::new(&self.root)
    }

    /// Returns the path of the lock file.
    pub fn lock(&self) -> PathBuf {
        self.root.join(LOCK)
    }

    /// Returns the path of the resolved job, which the stages read.
    pub fn resolved_job(&self) -> PathBuf {
        Self::resolved_job_in(&self.root)
    }

    /// Returns the path of the resolved job in `folder`, even if no job created the folder.
    pub fn resolved_job_in(folder: &Path) -> PathBuf {
        folder.join(RESOLVED_JOB)
    }

    /// Returns the resolved job of the last run, or `None` if the file is missing or can't be read.
    pub fn stored_job(&self) -> Option<PipelineJob> {
        stagecoach_api::parse(&fs::read_to_string(self.resolved_job()).ok()?, "job").ok()
    }

    /// Returns the path of the [`LauncherState`](crate::LauncherState).
    pub(crate) fn launcher_state(&self) -> PathBuf {
        self.root.join(LAUNCHER_STATE)
    }

    /// Returns the path of the [`RunSummary`] of a finished run.
    pub(crate) fn result(&self) -> PathBuf {
        self.root.join(RESULT)
    }

    /// Returns the path of the metrics, which have one line per step.
    pub fn metrics(&self) -> PathBuf {
        self.root.join(METRICS)
    }

    /// Returns the path of the loss curve.
    pub fn loss_curve(&self) -> PathBuf {
        self.root.join(PLOTS).join(LOSS_CURVE)
    }

    /// Returns the path of the folder of the logs.
    pub fn logs(&self) -> PathBuf {
        self.root.join(LOGS)
    }

    /// Returns the path of the log of the process `stage-<stage>` or `spare-<number>`. The log holds the stderr of the
    /// process.
    pub(crate) fn log(&self, process: &str) -> PathBuf {
        self.logs().join(format!("{process}.log"))
    }

    /// Returns the path of the termination message of the process `stage-<stage>` or `spare-<number>`.
    pub(crate) fn termination_message(&self, process: &str) -> PathBuf {
        self.root.join(TERMINATION).join(format!("{process}.json"))
    }

    /// Returns the summary of a finished run, or `None` if the file is missing or can't be read.
    pub fn summary(&self) -> Option<RunSummary> {
        serde_json::from_slice(&fs::read(self.result()).ok()?).ok()
    }
}

/// The result and the resolved job of an earlier run.
#[derive(Debug)]
pub struct PreviousFiles(Vec<(PathBuf, Vec<u8>)>);

impl PreviousFiles {
    /// Restores the files with their old content.
    ///
    /// # Errors
    /// Returns an error if the volume fails.
    pub fn restore(&self) -> Result<(), FolderError> {
        self.0
            .iter()
            .try_for_each(|(path, bytes)| write_atomically(path, bytes).map_err(FolderError::storage("write", path)))
    }
}

/// Replaces a file atomically: a reader finds the old content or the new content, even after a crash.
///
/// # Errors
/// Returns an error if the volume fails.
pub fn write_file(path: &Path, content: &str) -> Result<(), FolderError> {
    write_atomically(path, content.as_bytes()).map_err(FolderError::storage("write", path))
}

#[cfg(test)]
mod tests;
