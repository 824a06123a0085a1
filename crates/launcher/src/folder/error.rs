//! Errors of a job's folder.

use std::io;
use std::path::{Path, PathBuf};

use stagecoach_api::contract::FailureKind;
use stagecoach_checkpoint::CheckpointError;

/// The maximum number of names that an error message lists.
const MAX_LISTED_NAMES: usize = 3;

/// The reason why a folder can't be used for a job.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The folder has entries that no job created, and no job has used the folder.
    #[error("{} is not a job's folder: it holds {}, which no job created: use another folder (spec.storage.path, or metadata.name), or move them away", folder.display(), list_names(.found))]
    Foreign {
        /// The folder.
        folder: PathBuf,
        /// The names of its entries.
        found: Vec<String>,
    },
    /// The folder belongs to no job.
    #[error("{} {found}: expected a folder in which `stagecoach run` has trained, such as workspace/NAME", folder.display())]
    NotAJob {
        /// The folder.
        folder: PathBuf,
        /// The problem with the folder.
        found: &'static str,
    },
    /// A file operation on the volume failed.
    #[error("could not {operation} {}: {source}", path.display())]
    Storage {
        /// The operation that failed.
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A file operation failed in the folders of checkpoints or fences. A fence gives a group of stages the right to
    /// write checkpoints.
    #[error(transparent)]
    Checkpoints(#[from] CheckpointError),
}

impl FolderError {
    pub(crate) fn storage(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Storage { operation, path: path.to_owned(), source }
    }

    /// Returns the failure kind, which determines the exit code.
    pub const fn kind(&self) -> FailureKind {
        match self {
            Self::Foreign { .. } | Self::NotAJob { .. } => FailureKind::InvalidConfig,
            Self::Storage { .. } | Self::Checkpoints(_) => FailureKind::Storage,
        }
    }
}

/// Lists the first names, and counts the further ones.
fn list_names(names: &[String]) -> String {
    let (listed, more) = names.split_at(names.len().min(MAX_LISTED_NAMES));
    match (listed, more.len()) {
        ([first @ .., last], 0) if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        (listed, 0) => listed.join(", "),
        (listed, more) => format!("{} and {more} more", listed.join(", ")),
    }
}
