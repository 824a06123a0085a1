//! Tests a link that replaces a checkpoint, and a checkpoint that a user copied out of its job's folder.

use std::os::unix::fs::symlink;

use crate::common::*;
use stagecoach_checkpoint::*;

/// Returns a job's folder with checkpoints up to step 3.
fn trained() -> (tempfile::TempDir, FileSystemVolume) {
    let folder = tempfile::tempdir().unwrap();
    let volume = FileSystemVolume::new(folder.path());
    let handles = std::array::from_fn(|_| std::sync::Arc::new(volume.clone()) as std::sync::Arc<dyn Volume>);
    TestGroup::with_volumes(handles).run(3).unwrap();
    (folder, volume)
}

#[test]
fn a_link_in_place_of_the_newest_checkpoint_is_no_fresh_start() {
    let (folder, volume) = trained();
    let (step, archived) = (folder.path().join("checkpoints/step-00000003"), folder.path().join("archived"));
    std::fs::rename(&step, &archived).unwrap();
    symlink(&archived, &step).unwrap();
    let refused = open_newest(&volume, VerifyLevel::Sizes, &[]).unwrap_err();
    assert!(matches!(&refused, CheckpointError::StepIsLink { path } if *path == step), "{refused}");
    assert!(list(&volume).unwrap().foreign[0].reason.starts_with("is a link"));
    // a link does not prevent a resume if a real checkpoint is newer
    std::fs::rename(&archived, folder.path().join("checkpoints/step-00000003.real")).unwrap();
    std::fs::remove_file(&step).unwrap();
    std::fs::rename(folder.path().join("checkpoints/step-00000003.real"), &step).unwrap();
    symlink("nowhere", folder.path().join("checkpoints/step-00000001")).unwrap();
    assert_eq!(open_newest(&volume, VerifyLevel::Sizes, &[]).unwrap().checkpoint.unwrap().manifest().step, 3);
}

#[test]
fn a_copied_checkpoint_is_one_under_any_name() {
    let (folder, _) = trained();
    for name in ["step-00000003", "model"] {
        let elsewhere = tempfile::tempdir().unwrap();
        let copy = elsewhere.path().canonicalize().unwrap().join(name);
        std::fs::create_dir(&copy).unwrap();
        for file in std::fs::read_dir(folder.path().join("checkpoints/step-00000003")).unwrap().flatten() {
            std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
        }
        let location = CheckpointLocation::resolve(&copy).unwrap();
        assert_eq!((location.job_folder.as_path(), location.step, location.is_copy), (copy.as_path(), Some(3), true));
        let volume = location.volume();
        assert_eq!(list(&volume).unwrap().steps, [3]);
        assert_eq!(volume.display("checkpoints/step-00000003/manifest.json"), copy.join("manifest.json"));
        assert!(verify(&volume, 3, &mut |_| {}).unwrap());
        std::fs::write(copy.join("manifest.json"), "{}").unwrap();
        assert!(CheckpointLocation::resolve(&copy).unwrap_err().to_string().contains("manifest.json"));
    }
}
