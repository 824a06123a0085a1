//! Why a folder can't be a job's, or could not be used.

use std::io;
use std::path::{Path, PathBuf};

use stagecoach_api::contract::FailureKind;
use stagecoach_checkpoint::CheckpointError;

/// Names that are told.
const TOLD: usize = 3;

/// What is wrong with a job's folder.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// It is somebody's, and no job's.
    #[error("{} is not a job's folder: it holds {}, which no job has made; take another folder (spec.storage.path, or metadata.name), or move that away", folder.display(), some(.found))]
    Foreign {
        /// The folder.
        folder: PathBuf,
        /// What is in it, by name.
        found: Vec<String>,
    },
    /// The volume failed.
    #[error("could not {what} {}: {source}", path.display())]
    Storage {
        /// What was tried.
        what: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// What came back.
        source: io::Error,
    },
    /// The volume failed, with what groups have made.
    #[error(transparent)]
    Checkpoints(#[from] CheckpointError),
}

impl FolderError {
    pub(crate) fn storage(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Storage { what, path: path.to_owned(), source }
    }

    /// What it means to a stage, or to the launcher.
    pub const fn kind(&self) -> FailureKind {
        match self {
            Self::Foreign { .. } => FailureKind::InvalidConfig,
            Self::Storage { .. } | Self::Checkpoints(_) => FailureKind::Storage,
        }
    }
}

/// The first names, and how many more there are.
fn some(names: &[String]) -> String {
    let (told, more) = names.split_at(names.len().min(TOLD));
    match (told, more.len()) {
        ([first @ .., last], 0) if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        (told, 0) => told.join(", "),
        (told, more) => format!("{} and {more} more", told.join(", ")),
    }
}
