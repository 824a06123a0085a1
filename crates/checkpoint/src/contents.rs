//! What groups have made in a job's folder, told by its name from what somebody else has put there.

use std::io::ErrorKind;

use crate::error::{CheckpointError, on};
use crate::layout::{self, CHECKPOINTS, DAMAGED, FENCES, MANIFEST};
use crate::volume::{Entry, Volume, remove_tree};

/// What is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Steps of committed checkpoints, newest first.
    pub checkpoints: Vec<u64>,
    /// Paths of checkpoints that were set aside.
    pub damaged: Vec<String>,
    /// Paths of fences, held and fenced off.
    pub fences: Vec<String>,
}

impl Contents {
    /// Lists it.
    ///
    /// # Errors
    /// If the volume refuses.
    pub fn find(volume: &dyn Volume) -> Result<Contents, CheckpointError> {
        let folders = |folder: &str| -> Result<Vec<String>, CheckpointError> {
            let entries = list(volume, folder)?.unwrap_or_default();
            Ok(entries.into_iter().filter(|entry| entry.is_dir).map(|entry| entry.name).collect())
        };
        let paths = |folder: &str, is_own: &dyn Fn(&str) -> bool| -> Result<Vec<String>, CheckpointError> {
            Ok(folders(folder)?.iter().filter(|name| is_own(name)).map(|name| format!("{folder}/{name}")).collect())
        };
        let mut checkpoints: Vec<u64> = folders(CHECKPOINTS)?.iter().filter_map(|name| layout::step_of(name)).collect();
        checkpoints.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Contents {
            checkpoints,
            damaged: paths(DAMAGED, &|name| layout::damaged_of(name).is_some())?,
            fences: paths(FENCES, &|name| layout::fence_of(name).is_some())?,
        })
    }

    /// Removes it, and the folders that are empty then.
    ///
    /// # Errors
    /// If the volume refuses.
    pub fn remove(&self, volume: &dyn Volume) -> Result<(), CheckpointError> {
        let checkpoints = self.checkpoints.iter().map(|&step| layout::checkpoint(step));
        for path in checkpoints.chain(self.damaged.iter().cloned()).chain(self.fences.iter().cloned()) {
            remove_tree(volume, &path).map_err(on(volume, "remove", &path))?;
        }
        for folder in [CHECKPOINTS, DAMAGED, FENCES] {
            // it stays if it holds anything else, or is a link
            let _ = volume.remove_dir(folder);
        }
        Ok(())
    }
}

/// Whether a group has worked on `volume`, or checkpoints were brought there. The first thing that a group makes is the
/// folder of fences.
///
/// # Errors
/// If the volume refuses.
pub fn is_used(volume: &dyn Volume) -> Result<bool, CheckpointError> {
    let fences = list(volume, FENCES)?;
    if fences.is_some_and(|all| all.is_empty() || all.iter().any(|entry| layout::fence_of(&entry.name).is_some())) {
        return Ok(true);
    }
    let steps = Contents::find(volume)?.checkpoints;
    Ok(steps.iter().any(|&step| volume.open(&format!("{}/{MANIFEST}", layout::checkpoint(step))).is_ok()))
}

/// What is in a folder; none if there is no such folder.
fn list(volume: &dyn Volume, folder: &str) -> Result<Option<Vec<Entry>>, CheckpointError> {
    match volume.list(folder) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        listed => listed.map(Some).map_err(on(volume, "list", folder)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Fence, RealVolume};

    #[test]
    fn what_is_not_ours_is_neither_found_nor_removed() {
        let folder = tempfile::tempdir().unwrap();
        let volume = RealVolume::new(folder.path());
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
        assert_eq!(Contents::find(&volume).unwrap(), Contents::default());
        assert!(!is_used(&volume).unwrap());

        let own = ["checkpoints/step-00000002", "checkpoints/step-00000003", "damaged/step-00000001.2"];
        own.iter().for_each(|path| fs::create_dir_all(folder.path().join(path).join("inside")).unwrap());
        assert!(!is_used(&volume).unwrap());
        fs::write(folder.path().join(own[1]).join(MANIFEST), "").unwrap();
        assert!(is_used(&volume).unwrap());
        // a link is somebody's: neither it nor what it leads to goes
        std::os::unix::fs::symlink("best", folder.path().join("checkpoints/step-00000009")).unwrap();
        Fence::take(&volume).unwrap();
        Fence::take(&volume).unwrap();
        let found = Contents::find(&volume).unwrap();
        let expected = Contents {
            checkpoints: vec![3, 2],
            damaged: vec![own[2].into()],
            fences: ["fences/0001.fenced", "fences/0002"].map(str::to_owned).into(),
        };
        assert_eq!(found, expected);
        found.remove(&volume).unwrap();
        assert_eq!(Contents::find(&volume).unwrap(), Contents::default());
        foreign.iter().for_each(|path| assert_eq!(fs::read(folder.path().join(path)).unwrap(), b"mine", "{path}"));
        assert!(folder.path().join("checkpoints/step-00000009").is_symlink());
    }

    #[test]
    fn a_group_leaves_its_mark_before_anything_else() {
        let folder = tempfile::tempdir().unwrap();
        let volume = RealVolume::new(folder.path());
        assert!(!is_used(&volume).unwrap());
        fs::create_dir(folder.path().join(FENCES)).unwrap();
        assert!(is_used(&volume).unwrap());
        Contents::default().remove(&volume).unwrap();
        assert!(volume.list("").unwrap().is_empty());
    }
}
