//! A job's folder in the workspace: the names of all that lies in it, whose folder it is, and what earlier runs have left
//! there. Nothing that the project did not make is removed or overwritten.

mod error;
mod results;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use stagecoach_checkpoint::{FileSystemVolume, is_used};
use stagecoach_files::write_atomically;

use crate::observe::Summary;

pub use error::FolderError;
pub use results::Results;

/// A line a step.
pub const METRICS: &str = "metrics.jsonl";
/// A finished job's summary.
pub const RESULT: &str = "result.json";
const LOCK: &str = "lock";
const RECORD: &str = "state.json";
/// Not `job.yaml`: that is what people call a file of their own.
const JOB: &str = "resolved-job.yaml";
const LOGS: &str = "logs";
const TERMINATION: &str = "termination";
const PLOTS: &str = "plots";
const CURVE: &str = "loss.svg";

/// `<workspace>/<storage.path>`.
#[derive(Clone, Debug)]
pub struct JobFolder {
    root: PathBuf,
}

impl JobFolder {
    /// Opens the folder `root`, which must be a job's; or makes it, in place of none or of one that holds nothing but
    /// hidden files and `job_file`, the file that the job was read from.
    ///
    /// # Errors
    /// `Foreign`, untouched, if it holds anything else; or the volume's.
    pub fn open(root: &Path, job_file: Option<&Path>) -> Result<Self, FolderError> {
        let folder = Self { root: root.to_owned() };
        let foreign = match fs::read_dir(root) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                fs::create_dir_all(root).map_err(FolderError::storage("create the job's folder", root))?;
                return Ok(folder);
            }
            listed => folder.foreign(listed.map_err(FolderError::storage("open the job's folder", root))?, job_file)?,
        };
        if foreign.is_empty() || folder.is_jobs()? {
            return Ok(folder);
        }
        Err(FolderError::Foreign { folder: folder.root, found: foreign })
    }

    /// The names of what a new job's folder may not hold.
    fn foreign(&self, entries: fs::ReadDir, job_file: Option<&Path>) -> Result<Vec<String>, FolderError> {
        let job_file = job_file.and_then(|file| fs::canonicalize(file).ok());
        let mut foreign = Vec::new();
        for entry in entries {
            let path = entry.map_err(FolderError::storage("list", &self.root))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_job_file = job_file.is_some() && fs::canonicalize(&path).ok() == job_file;
            // a launcher that died before it wrote its process id
            let is_empty_lock = name == LOCK && fs::metadata(&path).is_ok_and(|found| found.len() == 0);
            let may_be = is_empty_lock || name.starts_with('.') || is_job_file && !results::is_own("", &name);
            if !may_be {
                foreign.push(name);
            }
        }
        foreign.sort();
        Ok(foreign)
    }

    /// Whether it is a job's: a launcher's first act leaves the lock with its process id, a pod's stage 0 its fence.
    fn is_jobs(&self) -> Result<bool, FolderError> {
        Ok(self.holder().is_some() || is_used(&self.volume())?)
    }

    /// The process id of the launcher that holds the folder, or was the last to.
    pub fn holder(&self) -> Option<u32> {
        fs::read_to_string(self.lock()).ok()?.lines().next()?.parse().ok()
    }

    /// Makes the folders inside, for a run that starts training: with empty logs, and without a result.
    ///
    /// # Errors
    /// The volume's.
    pub fn begin(&self) -> Result<(), FolderError> {
        self.remove_last_run()?;
        for name in [LOGS, PLOTS, TERMINATION] {
            let path = self.root.join(name);
            fs::create_dir_all(&path).map_err(FolderError::storage("create the folder", &path))?;
        }
        Ok(())
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What groups have made in it.
    fn volume(&self) -> FileSystemVolume {
        FileSystemVolume::new(&self.root)
    }

    /// Held by the run.
    pub fn lock(&self) -> PathBuf {
        self.root.join(LOCK)
    }

    /// The job as resolved: what the stages read.
    pub fn job(&self) -> PathBuf {
        self.root.join(JOB)
    }

    /// What outlives the launcher.
    pub fn record(&self) -> PathBuf {
        self.root.join(RECORD)
    }

    /// A finished job's summary.
    pub fn result(&self) -> PathBuf {
        self.root.join(RESULT)
    }

    /// A line a step.
    pub fn metrics(&self) -> PathBuf {
        self.root.join(METRICS)
    }

    /// The loss curve.
    pub fn curve(&self) -> PathBuf {
        self.root.join(PLOTS).join(CURVE)
    }

    /// What a stage writes to stderr.
    pub fn log(&self, stage: u32) -> PathBuf {
        self.root.join(LOGS).join(format!("stage-{stage}.log"))
    }

    /// A stage's last words.
    pub fn termination(&self, stage: u32) -> PathBuf {
        self.root.join(TERMINATION).join(format!("stage-{stage}.json"))
    }

    /// The finished job's summary; none if there is none, or if it isn't one.
    pub fn summary(&self) -> Option<Summary> {
        serde_json::from_slice(&fs::read(self.result()).ok()?).ok()
    }
}

/// Writes a small file aside, syncs and renames it: readers see the old one or the new one.
///
/// # Errors
/// The volume's.
pub fn write(path: &Path, content: &str) -> Result<(), FolderError> {
    write_atomically(path, content.as_bytes()).map_err(FolderError::storage("write", path))
}

#[cfg(test)]
mod tests;
