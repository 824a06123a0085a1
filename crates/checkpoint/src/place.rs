//! Where a person points to: a job's folder, or one checkpoint in it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::{CheckpointError, io};
use crate::layout::{self, CHECKPOINTS};

/// A job's folder, and one of its checkpoints if a person named one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The job's folder, absolute.
    pub root: PathBuf,
    /// The checkpoint's step; none means the newest.
    pub step: Option<u64>,
}

impl Place {
    /// Takes `path` for a job's folder, or for a checkpoint's if it is `.../checkpoints/step-<N>`; links are followed.
    ///
    /// # Errors
    /// If it is no folder.
    pub fn find(path: &Path) -> Result<Place, CheckpointError> {
        let wrong = |problem: &str| CheckpointError::Content { path: path.to_owned(), problem: problem.into() };
        let root = fs::canonicalize(path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => wrong("there is no such folder"),
            _ => io("open", path)(e),
        })?;
        if !root.is_dir() {
            return Err(wrong("is no folder"));
        }
        let step = root.file_name().and_then(|name| layout::step_of(name.to_str()?));
        let above = root.parent().filter(|above| above.file_name().is_some_and(|name| name == CHECKPOINTS));
        match (step, above.and_then(Path::parent)) {
            (Some(step), Some(job)) => Ok(Place { root: job.to_owned(), step: Some(step) }),
            _ => Ok(Place { root, step: None }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoints_folder_is_told_from_a_jobs() {
        let folder = tempfile::tempdir().unwrap();
        let job = folder.path().canonicalize().unwrap().join("job");
        let step = job.join("checkpoints/step-00000012");
        fs::create_dir_all(&step).unwrap();
        fs::create_dir_all(job.join("step-00000012")).unwrap();
        assert_eq!(Place::find(&job).unwrap(), Place { root: job.clone(), step: None });
        assert_eq!(Place::find(&step.join("../step-00000012")).unwrap(), Place { root: job.clone(), step: Some(12) });
        assert_eq!(Place::find(&job.join("step-00000012")).unwrap().step, None);
        fs::write(job.join("file"), "").unwrap();
        for (wrong, words) in [("file", "is no folder"), ("missing", "no such folder")] {
            assert!(Place::find(&job.join(wrong)).unwrap_err().to_string().contains(words));
        }
    }
}
