//! Defines the errors of this crate.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::fence_owner::FenceOwner;
use crate::identity::IdentityDifference;

/// An error that occurs while a checkpoint is written or read.
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
        /// The path of the file.
        path: PathBuf,
        /// A description of the file's actual content and of the expected content.
        problem: String,
    },
    /// A newer group holds the fence, which is the right to change the job's checkpoints. This group can neither commit
    /// nor remove anything, and must exit.
    #[error("this group may no longer change the job's checkpoints: {}", loss_of_fence(*fence, *newest, .by.as_ref()))]
    FencedOff {
        /// This group's fence.
        fence: u64,
        /// The newest fence, or `None` if no fence on the volume is newer than `fence`.
        newest: Option<u64>,
        /// The job that holds the newest fence, or `None` if the holder is this job or is unknown.
        by: Option<FenceOwner>,
    },
    /// The volume can't rename folders, or copies a folder instead of renaming it.
    #[error(
        "{} can't rename a folder ({problem}), which is how a checkpoint is committed: use a file system that \
         renames folders atomically, such as NFS, CephFS or Lustre, and not an object store that is mounted as a \
         file system",
        .path.display()
    )]
    NoFolderRename {
        /// The job's folder.
        path: PathBuf,
        /// The result of the attempted rename.
        problem: String,
    },
    /// The initial weights are not finite.
    #[error("{} has a value in {tensor} that is not finite (NaN or infinity): no job can start from these weights", .path.display())]
    NonFinite {
        /// The file of weights.
        path: PathBuf,
        /// The name of the tensor.
        tensor: String,
    },
    /// The folder of checkpoints is on another file system than the folder of fences.
    #[error(
        "{} is on another file system than {}, and a checkpoint is committed by a rename, which can't cross file \
         systems: move the job's whole folder to that file system and link to it, or move the checkpoints back",
        .checkpoints.display(), .fences.display()
    )]
    OtherFileSystem {
        /// The folder of checkpoints.
        checkpoints: PathBuf,
        /// The folder of fences.
        fences: PathBuf,
    },
    /// A symbolic link has the name of a step that is newer than all checkpoints.
    #[error(
        "{} is a link, and no newer checkpoint is there: replace the link with the folder of the checkpoint, or \
         remove the link to start without this checkpoint", .path.display()
    )]
    StepIsLink {
        /// The link.
        path: PathBuf,
    },
    /// The path of the new checkpoint already has a checkpoint of another identity, which a run with other settings or
    /// data wrote.
    #[error("{} was written by a run of another identity ({}): give this job another storage.path", .path.display(), list(.differences))]
    IdentityConflict {
        /// The folder of the existing checkpoint.
        path: PathBuf,
        /// The fields in which the two identities differ.
        differences: Vec<IdentityDifference>,
    },
    /// A file of a checkpoint is missing or damaged.
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
    /// The message, for example `is missing`. `Display` writes it after `file`.
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
    /// The message. `Display` writes it after `path`.
    pub reason: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path, self.reason)
    }
}

/// Returns a function for `map_err` that adds an operation and its path to an I/O error.
pub(crate) fn io(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> CheckpointError {
    move |source| CheckpointError::Io { operation, path: path.to_owned(), source }
}

/// Returns the reason why a group has lost its fence.
fn loss_of_fence(fence: u64, newest: Option<u64>, by: Option<&FenceOwner>) -> String {
    let numbers = |newest| format!("(fence {newest}, this group had fence {fence})");
    match (newest, by) {
        (Some(newest), None) => format!("a newer group holds the right {}", numbers(newest)),
        (Some(newest), Some(job)) => {
            format!("{job} holds the right {}: give each job its own spec.storage.path", numbers(newest))
        }
        (None, _) => format!("its fence {fence} no longer exists"),
    }
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join("; ")
}
