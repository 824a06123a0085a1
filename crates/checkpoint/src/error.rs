//! Errors of this crate.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::fence_owner::FenceOwner;
use crate::identity::IdentityDifference;

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// An operation on a file failed.
    #[error("could not {operation} {}: {source}", .path.display())]
    Io {
        /// The operation, as an infinitive.
        operation: &'static str,
        /// The path of the operation.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The content of a file is not as expected.
    #[error("{}: {problem}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The value found and the expected one.
        problem: String,
    },
    /// A newer group holds the fence. This group can neither commit nor remove anything, and must exit.
    #[error("fence {fence} is held no more{}: {}", newest.map_or_else(String::new, |newest| format!(", a newer group took fence {newest}")), fenced_off_by(.by.as_ref()))]
    FencedOff {
        /// This group's fence.
        fence: u64,
        /// The newest fence; `None` if the volume has no newer one.
        newest: Option<u64>,
        /// The job that holds the newest fence, if that job is known to be another one.
        by: Option<FenceOwner>,
    },
    /// The volume can't rename folders, or copies a folder instead of renaming it.
    #[error(
        "{} can't rename a folder ({problem}), which is how a checkpoint is committed: use a volume of a file system that does \
         it at once, such as NFS, CephFS or Lustre, and no object store behind a file system",
        .path.display()
    )]
    NoFolderRename {
        /// The job's folder.
        path: PathBuf,
        /// The result of the attempt.
        problem: String,
    },
    /// The initial weights are not finite.
    #[error("{} has a value in {tensor} that is not finite (NaN or infinity): no job can start from these weights", .path.display())]
    NonFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// The folder of checkpoints is on another file system than the job's folder.
    #[error(
        "{} is on another file system than {}, and a checkpoint is committed by a rename, which does not leave one: move the \
         whole job's folder to that file system and link that, or put it back",
        .checkpoints.display(), .fences.display()
    )]
    OtherFileSystem {
        /// The folder of checkpoints.
        checkpoints: PathBuf,
        /// The folder of fences.
        fences: PathBuf,
    },
    /// A link has the name of a checkpoint that is newer than all others.
    #[error(
        "{} is a link, and no newer checkpoint is there: put the folder of the checkpoint in its place, or \
         remove it to start without", .path.display()
    )]
    StepIsLink {
        /// The link.
        path: PathBuf,
    },
    /// The path of this step has a checkpoint of another identity.
    #[error("{} was written by a run of another identity ({}): give this job another storage.path", .path.display(), list(.differences))]
    IdentityConflict {
        /// The folder.
        path: PathBuf,
        /// The fields that differ.
        differences: Vec<IdentityDifference>,
    },
    /// A checkpoint can't be used.
    #[error("{0}")]
    Damaged(Damage),
    /// The volume has checkpoints, but none of them can be used. Only the user can decide to start from step 0.
    #[error("no checkpoint in {} is intact ({}): repair one, or remove the folder to start from step 0", .folder.display(), list(.damage))]
    NoneIntact {
        /// The folder of checkpoints.
        folder: PathBuf,
        /// The damage of each checkpoint, newest first.
        damage: Vec<Damage>,
    },
}

impl CheckpointError {
    /// Whether a file or folder was not found, or was removed while it was open on NFS.
    pub fn is_not_found(&self) -> bool {
        use std::io::ErrorKind::{NotFound, StaleNetworkFileHandle};
        matches!(self, CheckpointError::Io { source, .. } if matches!(source.kind(), NotFound | StaleNetworkFileHandle))
    }
}

/// A damaged file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// The checkpoint's step.
    pub step: u64,
    /// The file, relative to the job's folder.
    pub file: String,
    /// The value found and the expected one.
    pub reason: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.file, self.reason)
    }
}

/// A non-fatal message for the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// The file or folder, relative to the job's folder.
    pub path: String,
    /// The message, as the rest of a sentence that begins with the path.
    pub reason: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path, self.reason)
    }
}

/// Context for `map_err`: the operation and its path.
pub(crate) fn io(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> CheckpointError {
    move |source| CheckpointError::Io { operation, path: path.to_owned(), source }
}

/// The consequence for a group that is fenced off.
fn fenced_off_by(by: Option<&FenceOwner>) -> String {
    match by {
        Some(job) => format!("{job} holds it, and a folder is of one job: give each its own spec.storage.path"),
        None => "this group's work ends here".to_owned(),
    }
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join("; ")
}
