//! The scratch folder of a replay, which has the layout of a job's folder. A job's files must be below the workspace,
//! so this folder is in a hidden folder of the workspace. The scratch folder has symbolic links to the files of the
//! checkpoint from which the replay starts. The replay only reads these files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;
use stagecoach_checkpoint::{Manifest, paths};
use stagecoach_files::{random_hex, read_if_exists};
use stagecoach_launcher::{INITIAL_MODEL, JobFolder, JobLock, REMOTE_FILES, REMOTE_MODELS};

use super::record::RecordedCheckpoint;

/// The folder that contains the scratch folders. It is hidden, so that no pattern of a corpus matches it.
const SCRATCH: &str = ".replay";

/// A locked scratch folder. Dropping this value removes the folder.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) folder: JobFolder,
    /// The path, relative to the workspace.
    pub(super) path: String,
    parent: PathBuf,
    _lock: JobLock,
}

impl Scratch {
    /// Creates a scratch folder, after removing the folders of killed replays.
    ///
    /// # Errors
    /// Returns an error if the workspace can't be written.
    pub(super) fn create(workspace: &Path) -> anyhow::Result<Scratch> {
        let parent = workspace.join(SCRATCH);
        remove_abandoned(&parent);
        let path = format!("{SCRATCH}/{}", random_hex());
        let create = || -> anyhow::Result<(JobFolder, JobLock)> {
            let folder = JobFolder::open(&workspace.join(&path), None)?;
            let lock = JobLock::acquire(&folder)?;
            folder.start_run()?;
            Ok((folder, lock))
        };
        let (folder, lock) = create().with_context(|| {
            format!("a replay needs room below the workspace {}, beside its jobs", workspace.display())
        })?;
        Ok(Scratch { folder, path, parent, _lock: lock })
    }

    /// Copies the records of the job's remote files, remote models and initial model, if they exist. With these
    /// records, the replay reads the same files as the run.
    ///
    /// # Errors
    /// Returns an error if a record can't be copied.
    pub(super) fn copy_records(&self, job_folder: &Path) -> anyhow::Result<()> {
        for name in [REMOTE_FILES, REMOTE_MODELS, INITIAL_MODEL] {
            let (record, copy) = (job_folder.join(name), self.folder.root().join(name));
            if let Some(bytes) = read_if_exists(&record).with_context(|| format!("can't read {}", record.display()))? {
                fs::write(&copy, bytes).with_context(|| format!("can't write {}", copy.display()))?;
            }
        }
        Ok(())
    }

    /// Links the files of `checkpoint` as the checkpoint from which training resumes. Writes `manifest` as the manifest
    /// of that checkpoint.
    ///
    /// # Errors
    /// Returns an error if the workspace can't be written.
    pub(super) fn link_checkpoint(&self, checkpoint: &RecordedCheckpoint, manifest: &Manifest) -> anyhow::Result<()> {
        let folder = self.folder.root().join(paths::checkpoint_path(manifest.step));
        let link = || -> anyhow::Result<()> {
            fs::create_dir_all(&folder)?;
            for file in &manifest.files {
                symlink(checkpoint.folder.join(&file.name), folder.join(&file.name))?;
            }
            Ok(fs::write(folder.join(paths::MANIFEST_FILE), manifest.to_bytes()?)?)
        };
        link().with_context(|| format!("could not link {} into {}", checkpoint.folder.display(), folder.display()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // the call deletes links, not their targets; if it fails, a later replay removes the folder
        let _ = fs::remove_dir_all(self.folder.root());
        // the call fails while the folders of other replays are in the parent
        let _ = fs::remove_dir(&self.parent);
    }
}

/// Removes the folders of killed replays. The lock of a killed replay is free.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let Ok(folder) = JobFolder::open(&entry.path(), None) else { continue };
        // if the folder has no process id, another replay has just created the folder and will lock it
        let Some(_lock) = folder.lock_holder().and_then(|_| JobLock::acquire(&folder).ok()) else { continue };
        let _ = fs::remove_dir_all(folder.root());
    }
}
