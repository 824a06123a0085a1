//! A job's folder in the workspace: where everything about the job lies.

use std::fs;
use std::path::{Path, PathBuf};

use stagecoach_checkpoint::write_atomically;

use super::LaunchError;
use crate::observe::Summary;

/// What `clear` removes: all that a job makes itself. The cache and the corpus are not in here, nor is the lock.
const RESULTS: [&str; 10] = [
    "job.yaml",
    "state.json",
    "result.json",
    "metrics.jsonl",
    "logs",
    "plots",
    "termination",
    "checkpoints",
    "fences",
    "damaged",
];

/// `<workspace>/<storage.path>`.
#[derive(Clone, Debug)]
pub struct JobFolder {
    root: PathBuf,
}

impl JobFolder {
    /// Makes the folder at `path` in the workspace, and the workspace itself.
    ///
    /// # Errors
    /// The volume's.
    pub fn create(workspace: &Path, path: &str) -> Result<Self, LaunchError> {
        fs::create_dir_all(workspace).map_err(LaunchError::storage("create the workspace", workspace))?;
        let root = workspace.join(path);
        fs::create_dir_all(&root).map_err(LaunchError::storage("create the job's folder", &root))?;
        Ok(Self { root })
    }

    /// Makes the folders inside, for a run that starts training: with empty logs, and without a result.
    ///
    /// # Errors
    /// The volume's.
    pub fn begin(&self) -> Result<(), LaunchError> {
        self.remove(&["result.json", "logs", "termination"])?;
        for name in ["logs", "plots", "termination"] {
            let path = self.root.join(name);
            fs::create_dir_all(&path).map_err(LaunchError::storage("create the folder", &path))?;
        }
        Ok(())
    }

    /// Removes what the job has made so far.
    ///
    /// # Errors
    /// The volume's.
    pub fn clear(&self) -> Result<(), LaunchError> {
        self.remove(&RESULTS)
    }

    fn remove(&self, names: &[&str]) -> Result<(), LaunchError> {
        for name in names {
            let path = self.root.join(name);
            let removed = match fs::symlink_metadata(&path) {
                Ok(found) if found.is_dir() => fs::remove_dir_all(&path),
                Ok(_) => fs::remove_file(&path),
                Err(_) => continue,
            };
            removed.map_err(LaunchError::storage("remove", &path))?;
        }
        Ok(())
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Held by the run.
    pub fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// The job as resolved: what the stages read.
    pub fn job(&self) -> PathBuf {
        self.root.join("job.yaml")
    }

    /// What outlives the launcher.
    pub fn record(&self) -> PathBuf {
        self.root.join("state.json")
    }

    /// A finished job's summary.
    pub fn result(&self) -> PathBuf {
        self.root.join("result.json")
    }

    /// A line a step.
    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }

    /// The loss curve.
    pub fn curve(&self) -> PathBuf {
        self.root.join("plots").join("loss.svg")
    }

    /// What a stage writes to stderr.
    pub fn log(&self, stage: u32) -> PathBuf {
        self.root.join("logs").join(format!("stage-{stage}.log"))
    }

    /// A stage's last words.
    pub fn termination(&self, stage: u32) -> PathBuf {
        self.root.join("termination").join(format!("stage-{stage}.json"))
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
pub fn write(path: &Path, content: &str) -> Result<(), LaunchError> {
    write_atomically(path, content.as_bytes()).map_err(LaunchError::storage("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clearing_leaves_the_lock_and_what_is_not_the_jobs() {
        let workspace = tempfile::tempdir().unwrap();
        let folder = JobFolder::create(workspace.path(), "runs/mine").unwrap();
        folder.begin().unwrap();
        for path in [folder.lock(), folder.job(), folder.result(), folder.log(0), folder.root().join("corpus.txt")] {
            write(&path, "x").unwrap();
        }
        folder.clear().unwrap();
        let mut left: Vec<_> = fs::read_dir(folder.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["corpus.txt", "lock"]);
        folder.clear().unwrap();
    }

    #[test]
    fn a_workspace_below_a_file_is_named() {
        let workspace = tempfile::tempdir().unwrap();
        let file = workspace.path().join("file");
        fs::write(&file, "").unwrap();
        let error = JobFolder::create(&file.join("w"), "mine").unwrap_err();
        assert!(error.to_string().contains("file/w") && error.exit_code().code() == 74, "{error}");
    }
}
