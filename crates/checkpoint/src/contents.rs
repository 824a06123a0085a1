//! Lists and removes the folders that groups create in a job's folder. A group is a set of stages that train together.
//! Its fence is the right to change the checkpoints, and has a folder in `fences/`. The module recognises these folders
//! by their names and ignores all other entries.

use std::io::ErrorKind;

use crate::error::CheckpointError;
use crate::paths::{self, CHECKPOINTS_DIR, DAMAGED_DIR, FENCES_DIR, MANIFEST_FILE};
use crate::volume::{DirEntry, Volume, io_error_on, remove_tree};

/// The folders of checkpoints, damaged checkpoints and fences in a job's folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeContents {
    /// The steps of the committed checkpoints, newest first.
    pub checkpoints: Vec<u64>,
    /// The paths of the checkpoints in `damaged/`.
    pub damaged: Vec<String>,
    /// The paths of the fences' folders: of fences that a group holds, and of fences that a newer group has revoked
    /// (fenced off).
    pub fences: Vec<String>,
}

impl VolumeContents {
    /// Lists the folders of checkpoints, damaged checkpoints and fences on `volume`.
    ///
    /// # Errors
    /// Returns an error if the volume fails.
    pub fn find(volume: &dyn Volume) -> Result<VolumeContents, CheckpointError> {
        let folders = |folder: &str| -> Result<Vec<String>, CheckpointError> {
            let entries = list(volume, folder)?.unwrap_or_default();
            Ok(entries.into_iter().filter(|entry| entry.is_dir).map(|entry| entry.name).collect())
        };
        let own_folders = |folder: &str, is_own: &dyn Fn(&str) -> bool| -> Result<Vec<String>, CheckpointError> {
            Ok(folders(folder)?.iter().filter(|name| is_own(name)).map(|name| format!("{folder}/{name}")).collect())
        };
        let mut checkpoints: Vec<u64> =
            folders(CHECKPOINTS_DIR)?.iter().filter_map(|name| paths::parse_step_dir_name(name)).collect();
        checkpoints.sort_unstable_by(|a, b| b.cmp(a));
        Ok(VolumeContents {
            checkpoints,
            damaged: own_folders(DAMAGED_DIR, &|name| paths::parse_damaged_dir_name(name).is_some())?,
            fences: own_folders(FENCES_DIR, &|name| paths::parse_fence_dir_name(name).is_some())?,
        })
    }

    /// Returns only the fences, which are the folders that the next group removes.
    pub fn fences_only(self) -> VolumeContents {
        VolumeContents { fences: self.fences, ..VolumeContents::default() }
    }

    /// Returns the number of bytes that can be written below `checkpoints/` once these folders are removed, or `None`
    /// if the volume does not report its available bytes.
    pub fn available_bytes_without(&self, volume: &dyn Volume) -> Option<u64> {
        let available = volume.available_bytes(CHECKPOINTS_DIR).or_else(|| volume.available_bytes(""))?;
        Some(self.paths().map(|path| tree_bytes(volume, &path)).fold(available, u64::saturating_add))
    }

    fn paths(&self) -> impl Iterator<Item = String> {
        let checkpoints = self.checkpoints.iter().map(|&step| paths::checkpoint_path(step));
        checkpoints.chain(self.damaged.iter().cloned()).chain(self.fences.iter().cloned())
    }

    /// Removes the folders. Also removes `checkpoints/`, `damaged/` and `fences/` if they are empty afterwards.
    ///
    /// # Errors
    /// Returns an error if the volume fails.
    pub fn remove(&self, volume: &dyn Volume) -> Result<(), CheckpointError> {
        for path in self.paths() {
            remove_tree(volume, &path).map_err(io_error_on(volume, "remove", &path))?;
        }
        for folder in [CHECKPOINTS_DIR, DAMAGED_DIR, FENCES_DIR] {
            // if the folder is a link or is not empty, the call fails and the folder remains
            let _ = volume.remove_dir(folder);
        }
        Ok(())
    }
}

/// Returns the total size of the files below a folder in bytes. An unreadable file or folder counts as 0 bytes.
fn tree_bytes(volume: &dyn Volume, path: &str) -> u64 {
    let size = |entry: DirEntry| {
        let inner = format!("{path}/{}", entry.name);
        match entry.is_dir {
            true => tree_bytes(volume, &inner),
            false => volume.open(&inner).and_then(|file| file.size()).unwrap_or(0),
        }
    };
    volume.list(path).unwrap_or_default().into_iter().map(size).sum()
}

/// Whether a group has run on `volume`, or someone has copied checkpoints to it. A group creates `fences/` before any
/// other folder, so an empty `fences/` also counts.
///
/// # Errors
/// Returns an error if the volume fails.
pub fn is_used(volume: &dyn Volume) -> Result<bool, CheckpointError> {
    let fences = list(volume, FENCES_DIR)?;
    if fences
        .is_some_and(|all| all.is_empty() || all.iter().any(|entry| paths::parse_fence_dir_name(&entry.name).is_some()))
    {
        return Ok(true);
    }
    let steps = VolumeContents::find(volume)?.checkpoints;
    Ok(steps.iter().any(|&step| volume.open(&format!("{}/{MANIFEST_FILE}", paths::checkpoint_path(step))).is_ok()))
}

/// Returns the entries of a folder, or `None` if `folder` is not a folder.
fn list(volume: &dyn Volume, folder: &str) -> Result<Option<Vec<DirEntry>>, CheckpointError> {
    match volume.list(folder) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        listed => listed.map(Some).map_err(io_error_on(volume, "list", folder)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Fence, FileSystemVolume};

    #[test]
    fn other_entries_are_neither_found_nor_removed() {
        let folder = tempfile::tempdir().unwrap();
        let volume = FileSystemVolume::new(folder.path());
        let foreign = [
            "checkpoints/best/weights.bin",
            "checkpoints/step-00000004",
            "damaged/step-00000001.bak/car.jpg",
            "fences/7/garden.txt",
            "fences/old.fenced/garden.txt",
        ];
        for path in foreign {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "mine").unwrap();
        }
        assert_eq!(VolumeContents::find(&volume).unwrap(), VolumeContents::default());
        assert!(!is_used(&volume).unwrap());

        let own = ["checkpoints/step-00000002", "checkpoints/step-00000003", "damaged/step-00000001.2"];
        own.iter().for_each(|path| fs::create_dir_all(folder.path().join(path).join("inside")).unwrap());
        assert!(!is_used(&volume).unwrap());
        fs::write(folder.path().join(own[1]).join(MANIFEST_FILE), "").unwrap();
        assert!(is_used(&volume).unwrap());
        // neither a link nor its target is removed
        std::os::unix::fs::symlink("best", folder.path().join("checkpoints/step-00000009")).unwrap();
        Fence::acquire(&volume).unwrap();
        Fence::acquire(&volume).unwrap();
        let found = VolumeContents::find(&volume).unwrap();
        let expected = VolumeContents {
            checkpoints: vec![3, 2],
            damaged: vec![own[2].into()],
            fences: ["fences/0001.fenced", "fences/0002"].map(str::to_owned).into(),
        };
        assert_eq!(found, expected);
        found.remove(&volume).unwrap();
        assert_eq!(VolumeContents::find(&volume).unwrap(), VolumeContents::default());
        foreign.iter().for_each(|path| assert_eq!(fs::read(folder.path().join(path)).unwrap(), b"mine", "{path}"));
        assert!(folder.path().join("checkpoints/step-00000009").is_symlink());
    }

    #[test]
    fn the_folder_of_fences_marks_a_used_volume() {
        let folder = tempfile::tempdir().unwrap();
        let volume = FileSystemVolume::new(folder.path());
        assert!(!is_used(&volume).unwrap());
        fs::create_dir(folder.path().join(FENCES_DIR)).unwrap();
        assert!(is_used(&volume).unwrap());
        VolumeContents::default().remove(&volume).unwrap();
        assert!(volume.list("").unwrap().is_empty());
    }
}
