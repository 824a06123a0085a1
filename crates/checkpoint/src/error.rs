//! What can go wrong with files, in sentences.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::identity::Difference;
use crate::volume::Volume;

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system refused something.
    #[error("could not {doing} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What came back.
        source: std::io::Error,
    },
    /// A file's content is not what it should be.
    #[error("{}: {problem}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What was found and what was expected.
        problem: String,
    },
    /// A newer group took the volume over: this one can neither commit nor remove anything, and must leave.
    #[error("fence {fence} is held no more{}: this group's work ends here", by.map_or_else(String::new, |by| format!(", a newer group took fence {by}")))]
    FencedOff {
        /// Ours.
        fence: u64,
        /// The newest one; none if the volume's fences are gone altogether.
        by: Option<u64>,
    },
    /// Another run's checkpoint is where ours would go.
    #[error("{} was written by a run of another identity ({}): give this job another storage.path", .path.display(), list(.differences))]
    Occupied {
        /// The folder.
        path: PathBuf,
        /// In what they differ.
        differences: Vec<Difference>,
    },
    /// One checkpoint can't be used.
    #[error("{0}")]
    Damaged(Damage),
    /// There are checkpoints, and not one of them can be used: starting afresh is for a person to decide.
    #[error("no checkpoint in {} is intact ({}): repair one, or remove the folder to start from step 0", .folder.display(), list(.damage))]
    NoneIntact {
        /// The folder of checkpoints.
        folder: PathBuf,
        /// What is wrong with each, newest first.
        damage: Vec<Damage>,
    },
}

impl CheckpointError {
    /// Whether it says that something isn't there.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, CheckpointError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }
}

/// What is wrong with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// The checkpoint's step.
    pub step: u64,
    /// The file, seen from the job's folder.
    pub file: String,
    /// What was found and what was expected.
    pub reason: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.file, self.reason)
    }
}

/// Something that a person should hear about, and that stopped nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// The file or folder, seen from the job's folder.
    pub path: String,
    /// What about it.
    pub reason: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path, self.reason)
    }
}

/// For `map_err`: what was being done to which path.
pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> CheckpointError {
    move |source| CheckpointError::Io { doing, path: path.to_owned(), source }
}

/// The same, on a volume.
pub(crate) fn on(
    volume: &dyn Volume,
    doing: &'static str,
    path: &str,
) -> impl FnOnce(std::io::Error) -> CheckpointError + use<> {
    let path = volume.display(path);
    move |source| CheckpointError::Io { doing, path, source }
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join("; ")
}
