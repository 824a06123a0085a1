//! Why the launcher itself could not do its work; a stage's failure is not among it.

use std::io;
use std::path::{Path, PathBuf};

use stagecoach_api::contract::ExitCode;

use crate::folder::FolderError;

/// The launcher's own failures.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Another run holds the job's folder.
    #[error("{} is held by another run{}: wait for it, stop it, or give this job another spec.storage.path or --workspace", folder.display(), holder(.pid))]
    Held {
        /// The job's folder.
        folder: PathBuf,
        /// The other launcher's process, if it could be read.
        pid: Option<u32>,
    },
    /// The job's folder is none, or failed.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// What is kept between runs can't be read.
    #[error("{} can't be read ({problem}): --fresh removes it together with the job's results", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The operating system refused a process, a thread, a port or a signal handler.
    #[error("could not {what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What came back.
        source: io::Error,
    },
}

impl LaunchError {
    pub(super) fn storage(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| FolderError::storage(what, path)(source).into()
    }

    pub(super) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what: what.into(), source }
    }

    /// The contract's code for it.
    pub const fn exit_code(&self) -> ExitCode {
        match self {
            Self::Folder(error) => error.kind().exit_code(),
            Self::Record { .. } => ExitCode::Storage,
            Self::Held { .. } | Self::System { .. } => ExitCode::Failure,
        }
    }
}

fn holder(pid: &Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}
