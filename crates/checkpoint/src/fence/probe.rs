//! Probes whether a volume supports the operations of a commit, before anything is trained.

use std::io::{self, ErrorKind};

use super::Fence;
use crate::error::CheckpointError;
use crate::paths::{self, CHECKPOINTS_DIR, FENCES_DIR};
use crate::volume::{Volume, make_dir_idempotent, remove_tree, rename_idempotent, volume_io};

/// EPERM and EMFILE: some file systems over object stores return these errors instead of "unsupported".
const NOT_PERMITTED: i32 = 1;
const TOO_MANY_OPEN_FILES: i32 = 24;

/// Renames a folder with a file in it from the fence's folder into the folder of checkpoints, as a commit does.
///
/// # Errors
/// `NoFolderRename`, `OtherFileSystem`, or `FencedOff`; or if the volume fails.
pub(crate) fn probe_folder_rename(volume: &dyn Volume, fence: &Fence) -> Result<(), CheckpointError> {
    let (from, to) = (format!("{}/probe", fence.work_dir()), paths::probe_path(fence.holder()));
    let file = |folder: &str| format!("{folder}/file");
    let io = |operation, path: &str, error| fence.or_fenced_off(volume, volume_io(volume, operation, path)(error));
    let unable = |problem: String| CheckpointError::NoFolderRename { path: volume.display(""), problem };
    make_dir_idempotent(volume, &from).map_err(|e| io("create", &from, e))?;
    volume.create(&file(&from)).map_err(|e| io("create", &file(&from), e))?;
    match rename_idempotent(volume, &from, &to) {
        Err(e) if e.kind() == ErrorKind::CrossesDevices => {
            let [checkpoints, fences] = [CHECKPOINTS_DIR, FENCES_DIR].map(|folder| volume.display(folder));
            return Err(CheckpointError::OtherFileSystem { checkpoints, fences });
        }
        Err(e) if is_inability(&e) => return Err(unable(e.to_string())),
        renamed => renamed.map_err(|e| io("rename", &from, e))?,
    }
    let is_there = |path: &str| match volume.open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        opened => opened.map(|_| true).map_err(|e| io("open", path, e)),
    };
    match (is_there(&file(&from))?, is_there(&file(&to))?) {
        (false, true) => {}
        // a newer group may also have removed the file
        (false, false) => {
            fence.check(volume)?;
            return Err(unable("its file was lost".to_owned()));
        }
        (true, _) => return Err(unable("its file stayed where it was".to_owned())),
    }
    remove_tree(volume, &to).map_err(|e| io("remove", &to, e))
}

fn is_inability(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput)
        || matches!(error.raw_os_error(), Some(NOT_PERMITTED | TOO_MANY_OPEN_FILES))
}
