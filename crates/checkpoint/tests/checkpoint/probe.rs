//! Tests the probe that refuses a volume on which a commit can't rename folders.

use std::sync::Arc;

use stagecoach_checkpoint::*;
use stagecoach_test_volumes::*;

/// Returns the index of the first volume call of [`Fence::acquire`] that has this operation and a path that ends with
/// `end`.
fn call_at(operation: &str, end: &str) -> usize {
    let counting = FaultyVolume::counting(Arc::new(MemoryVolume::new()));
    Fence::acquire(&counting).unwrap();
    let is_call = |call: &VolumeCall| call.operation == operation && call.path.ends_with(end);
    counting.trace().iter().position(is_call).unwrap()
}

/// The probe renames a folder into the folder of checkpoints, as a commit does. Here this rename fails with EXDEV.
#[test]
fn a_folder_of_checkpoints_on_another_file_system_is_refused_before_anything_is_trained() {
    let at = call_at("rename", "/probe");
    let volume = FaultyVolume::failing(Arc::new(MemoryVolume::new()), at, VolumeFault::Fail(18));
    let refused = Fence::acquire(&volume).unwrap_err();
    assert!(matches!(refused, CheckpointError::OtherFileSystem { .. }), "{refused}");
    let printed = refused.to_string();
    assert!(printed.contains("checkpoints is on another file system than") && printed.contains("fences"), "{printed}");
}

/// A group that ends after it has renamed the probe's folder, and before it removes the folder, leaves the folder
/// behind. The folder is not a checkpoint, and the next group removes it.
#[test]
fn what_a_probe_leaves_is_no_checkpoint_and_is_removed() {
    let volume = MemoryVolume::new();
    let at = call_at("rename", "/probe");
    let handle = FaultyVolume::failing(Arc::new(volume.clone()), at, VolumeFault::CrashAfter);
    assert!(Fence::acquire(&handle).is_err());
    assert_eq!(volume.list("checkpoints").unwrap().len(), 1);
    assert_eq!(list(&volume).unwrap(), Listing::default());
    Fence::acquire(&volume).unwrap();
    remove_stale_fences(&volume).unwrap();
    assert_eq!(volume.list("checkpoints").unwrap(), []);
}

#[test]
fn a_volume_that_can_not_rename_folders_is_refused_in_one_sentence() {
    let at = call_at("rename", "/probe");
    // the errors EPERM, EMFILE, ENOSYS and EOPNOTSUPP
    for error in [1, 24, 38, 95] {
        let volume = FaultyVolume::failing(Arc::new(MemoryVolume::new()), at, VolumeFault::Fail(error));
        let refused = Fence::acquire(&volume).unwrap_err();
        assert!(matches!(refused, CheckpointError::NoFolderRename { .. }), "{refused}");
        let expected = format!(
            "can't rename a folder ({}), which is how a checkpoint is committed: use a file system that",
            std::io::Error::from_raw_os_error(error)
        );
        assert!(refused.to_string().contains(&expected), "{refused}");
    }
    // a volume that fails for another reason is not reported as unsuitable
    let volume = FaultyVolume::failing(Arc::new(MemoryVolume::new()), at, VolumeFault::Fail(EIO));
    assert!(matches!(Fence::acquire(&volume).unwrap_err(), CheckpointError::Io { .. }));
}

#[test]
fn a_volume_that_renames_by_copying_is_refused() {
    let at = call_at("open", "/probe/file");
    for (is_kept, expected) in [(true, "its file stayed where it was"), (false, "its file was lost")] {
        let volume = MemoryVolume::new();
        let other = volume.clone();
        let meanwhile = move || {
            let fence = other.list("fences/0001").unwrap().pop().unwrap().name;
            let path = |name: &str| format!("fences/0001/{fence}/{name}");
            if is_kept {
                other.make_dir(&path("probe")).unwrap();
                drop(other.create(&path("probe/file")).unwrap());
            } else {
                other.remove_file(&format!("checkpoints/.probe-{fence}/file")).unwrap();
            }
        };
        let refused = Fence::acquire(&FaultyVolume::interrupted(Arc::new(volume), at, meanwhile)).unwrap_err();
        assert!(refused.to_string().contains(expected), "{refused}");
    }
}
