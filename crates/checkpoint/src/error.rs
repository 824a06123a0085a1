//! What can go wrong with files, in sentences.

use std::path::{Path, PathBuf};

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
}

/// For `map_err`: what was being done to which path.
pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> CheckpointError {
    move |source| CheckpointError::Io { doing, path: path.to_owned(), source }
}
