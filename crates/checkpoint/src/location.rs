//! Finds the job's folder or the checkpoint that a path from the user names.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::{CheckpointError, io};
use crate::manifest::{Manifest, ManifestError};
use crate::paths::{self, CHECKPOINTS_DIR, MANIFEST_FILE};
use crate::volume::FileSystemVolume;

/// A job's folder, and optionally one of its checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointLocation {
    /// The absolute path of the job's folder.
    pub job_folder: PathBuf,
    /// The step of the checkpoint, or `None` for the job's newest checkpoint.
    pub step: Option<u64>,
    /// Whether the checkpoint is a copy outside a job's folder. If so, `job_folder` is the folder of the copy itself.
    pub is_copy: bool,
}

impl CheckpointLocation {
    /// Resolves `path` to a checkpoint if `path` has the form `.../checkpoints/step-<N>` or contains a manifest, and to
    /// a job's folder otherwise. Follows symbolic links.
    ///
    /// # Errors
    /// Returns an error if `path` is not a folder, or if it is a copied checkpoint whose manifest can't be used.
    pub fn resolve(path: &Path) -> Result<CheckpointLocation, CheckpointError> {
        let wrong = |problem: &str| CheckpointError::Content { path: path.to_owned(), problem: problem.into() };
        let folder = fs::canonicalize(path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => wrong("there is no such folder"),
            _ => io("open", path)(e),
        })?;
        if !folder.is_dir() {
            return Err(wrong("is not a folder"));
        }
        let step = folder.file_name().and_then(|name| paths::parse_step_dir_name(name.to_str()?));
        let parent = folder.parent().filter(|parent| parent.file_name().is_some_and(|name| name == CHECKPOINTS_DIR));
        match (step, parent.and_then(Path::parent)) {
            (Some(step), Some(job)) => {
                Ok(CheckpointLocation { job_folder: job.to_owned(), step: Some(step), is_copy: false })
            }
            _ => {
                let step = copied_step(&folder)?;
                Ok(CheckpointLocation { job_folder: folder, step, is_copy: step.is_some() })
            }
        }
    }

    /// Returns the volume that contains the checkpoint, or all checkpoints of the job.
    pub fn volume(&self) -> FileSystemVolume {
        match self.step.filter(|_| self.is_copy) {
            Some(step) => FileSystemVolume::of_checkpoint(&self.job_folder, step),
            None => FileSystemVolume::new(&self.job_folder),
        }
    }
}

/// Returns the step of the checkpoint in `folder`, or `None` if `folder` has no manifest.
fn copied_step(folder: &Path) -> Result<Option<u64>, CheckpointError> {
    let path = folder.join(MANIFEST_FILE);
    let Some(bytes) = stagecoach_files::read_if_exists(&path).map_err(io("read", &path))? else { return Ok(None) };
    let wrong = |error: ManifestError| CheckpointError::Content { path, problem: error.to_string() };
    let manifest = Manifest::parse(&bytes).map_err(wrong)?;
    Ok(Some(manifest.step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoint_and_job_folders_are_distinguished() {
        let folder = tempfile::tempdir().unwrap();
        let job = folder.path().canonicalize().unwrap().join("job");
        let step = job.join("checkpoints/step-00000012");
        fs::create_dir_all(&step).unwrap();
        fs::create_dir_all(job.join("step-00000012")).unwrap();
        assert_eq!(
            CheckpointLocation::resolve(&job).unwrap(),
            CheckpointLocation { job_folder: job.clone(), step: None, is_copy: false }
        );
        assert_eq!(
            CheckpointLocation::resolve(&step.join("../step-00000012")).unwrap(),
            CheckpointLocation { job_folder: job.clone(), step: Some(12), is_copy: false }
        );
        assert_eq!(CheckpointLocation::resolve(&job.join("step-00000012")).unwrap().step, None);
        fs::write(job.join("file"), "").unwrap();
        for (wrong, words) in [("file", "is not a folder"), ("missing", "no such folder")] {
            assert!(CheckpointLocation::resolve(&job.join(wrong)).unwrap_err().to_string().contains(words));
        }
    }
}
