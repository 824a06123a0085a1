//! Errors of the launcher itself, as opposed to failures of a stage.

use std::io;
use std::path::{Path, PathBuf};

use stagecoach_api::contract::ExitCode;

use crate::folder::FolderError;

/// A failure of the launcher.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Another run holds the lock of the job's folder.
    #[error("{} is held by another run{}: wait for it, stop it, or give this job another spec.storage.path or --workspace", folder.display(), .pid.map_or_else(String::new, |pid| format!(" (process {pid})")))]
    Locked {
        /// The job's folder.
        folder: PathBuf,
        /// The process id of the launcher that holds the lock; `None` if the lock file has no process id.
        pid: Option<u32>,
    },
    /// The job's folder can't be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The launcher's state can't be read or serialised.
    #[error("{} can't be read ({problem}): --fresh removes it together with the job's results", path.display())]
    State {
        /// The path of the state file.
        path: PathBuf,
        /// The error.
        problem: String,
    },
    /// A system call for a process, thread, port or signal handler failed.
    #[error("could not {operation}: {source}")]
    System {
        /// The operation that failed.
        operation: String,
        /// The error.
        source: io::Error,
    },
}

impl LaunchError {
    pub(super) fn storage(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| FolderError::storage(operation, path)(source).into()
    }

    pub(super) fn system<E: Into<io::Error>>(operation: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |source| Self::System { operation: operation.into(), source: source.into() }
    }

    /// Returns the exit code for the failure.
    pub const fn exit_code(&self) -> ExitCode {
        match self {
            Self::Folder(error) => error.kind().exit_code(),
            Self::State { .. } => ExitCode::Storage,
            Self::Locked { .. } | Self::System { .. } => ExitCode::Failure,
        }
    }
}
