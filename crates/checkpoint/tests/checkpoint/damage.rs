//! Tests flipped bits, lost bytes, missing files and unrelated files. A read never crashes and never returns wrong
//! bytes. A resume always finds the newest intact step.

use std::sync::Arc;

use proptest::prelude::*;
use stagecoach_checkpoint::*;
use stagecoach_test_volumes::*;

use crate::common::*;

const NEWEST: &str = "checkpoints/step-00000003";

/// Returns a volume on which steps 2 and 3 are committed.
fn prepared() -> MemoryVolume {
    let volume = MemoryVolume::new();
    TestGroup::new(&volume).run(3).unwrap();
    volume
}

/// Asserts that step 3 is skipped and set aside with a warning that names `file`, and that the run resumes.
fn assert_resumes_from_older(volume: &MemoryVolume, file: &str, reason: &str) {
    let found = open_newest(volume, VerifyLevel::Contents, &[]).unwrap();
    assert_eq!(found.checkpoint.unwrap().manifest().step, 2);
    assert_eq!((found.damage.len(), found.damage[0].step), (1, 3));
    assert_eq!(found.damage[0].file, format!("{NEWEST}/{file}"));
    assert!(found.damage[0].reason.contains(reason), "{}", found.damage[0]);
    let fence = Fence::acquire(volume).unwrap();
    let warnings = quarantine(volume, &fence, &found.damage).unwrap();
    assert!(warnings[0].to_string().contains(file) && warnings[0].reason.contains("damaged/step-00000003"));
    let kept = volume.files("damaged/step-00000003");
    assert!(kept.contains(&"damaged/step-00000003/reason.txt".to_owned()), "{kept:?}");
    volume.cut_power(PowerLoss::Lost);
    assert_eq!(list(volume).unwrap().steps, [2]);
    assert_resumes(volume);
}

fn assert_resumes(volume: &MemoryVolume) {
    assert!(TestGroup::new(volume).run(5).unwrap() == state_at(5));
    assert_eq!(check(volume), [5, 4]);
}

#[test]
fn files_may_be_missing_or_folders() {
    for file in prepared().files(NEWEST) {
        let name = file.rsplit('/').next().unwrap();
        let volume = prepared();
        volume.remove_file(&file).unwrap();
        assert_resumes_from_older(&volume, name, "missing");
        let volume = prepared();
        volume.remove_file(&file).unwrap();
        volume.make_dir(&file).unwrap();
        assert_resumes_from_older(&volume, name, "folder");
    }
    let empty = prepared();
    empty.files(NEWEST).iter().for_each(|file| empty.remove_file(file).unwrap());
    assert_resumes_from_older(&empty, "manifest.json", "missing");
}

#[test]
fn only_the_files_of_the_tensors_that_are_asked_for_are_opened() {
    let volume = prepared();
    let whole = open(&volume, 3).unwrap();
    let first = whole.manifest().tensors[0].clone();
    let others = whole.manifest().files.iter().filter(|file| file.name != first.file);
    others.for_each(|file| volume.remove_file(&format!("{NEWEST}/{}", file.name)).unwrap());
    assert!(matches!(open(&volume, 3), Err(CheckpointError::Damaged(_))));
    let part = open_tensors(&volume, 3, &[first.name.clone()].into()).unwrap();
    assert_eq!(part.read(&first).unwrap(), whole.read(&first).unwrap());
    let other = whole.manifest().tensors.iter().find(|tensor| tensor.file != first.file).unwrap();
    let error = part.read(other).unwrap_err().to_string();
    assert!(error.contains("did not request it"), "{error}");
    // the file of the requested tensor is still checked
    volume.remove_file(&format!("{NEWEST}/{}", first.file)).unwrap();
    assert!(matches!(open_tensors(&volume, 3, &[first.name].into()), Err(CheckpointError::Damaged(_))));
}

#[test]
fn a_newer_format_version_is_quarantined() {
    let volume = prepared();
    let newer = |bytes: &mut Vec<u8>| {
        let text = String::from_utf8(std::mem::take(bytes)).unwrap();
        let (opening, body) = text.split_at(15 + 64);
        let body = body.replace("\"format_version\": 1", "\"format_version\": 2");
        *bytes = format!("{}{}{body}", &opening[..15], blake3::hash(body.as_bytes()).to_hex()).into_bytes();
    };
    assert!(volume.edit(&format!("{NEWEST}/manifest.json"), newer));
    assert_resumes_from_older(&volume, "manifest.json", "format version 2");
}

#[test]
fn a_manifest_of_another_step_is_refused() {
    let volume = prepared();
    volume.rename(NEWEST, "checkpoints/step-00000009").unwrap();
    let found = open_newest(&volume, VerifyLevel::Sizes, &[]).unwrap();
    assert_eq!(found.damage[0].to_string(), "checkpoints/step-00000009/manifest.json belongs to step 3");
    assert_resumes(&volume);
}

#[test]
fn unrelated_entries_are_ignored() {
    let volume = prepared();
    for folder in ["checkpoints/lost+found", "checkpoints/step-7"] {
        volume.make_dir(folder).unwrap();
    }
    for file in ["checkpoints/notes.txt", "checkpoints/step-00000010", "checkpoints/step-00000003/.nfs0001"] {
        drop(volume.create(file).unwrap());
    }
    let found = open_newest(&volume, VerifyLevel::Contents, &[]).unwrap();
    assert_eq!(found.checkpoint.unwrap().manifest().step, 3);
    let named: Vec<&str> = found.foreign.iter().map(|w| w.path.as_str()).collect();
    assert_eq!(
        named,
        ["checkpoints/lost+found", "checkpoints/notes.txt", "checkpoints/step-00000010", "checkpoints/step-7"]
    );
    TestGroup::new(&volume).run(6).unwrap();
    let left: Vec<String> = list(&volume).unwrap().foreign.into_iter().map(|w| w.path).collect();
    assert_eq!(left, named);
}

#[test]
fn none_intact_is_reported_on_every_start() {
    let volume = prepared();
    for step in [2, 3] {
        volume.remove_file(&format!("checkpoints/step-0000000{step}/stage-2.optimizer.safetensors")).unwrap();
    }
    for _ in 0..3 {
        let refused = TestGroup::new(&volume).run(5).unwrap_err();
        let message = refused.to_string();
        assert!(matches!(refused, CheckpointError::NoneIntact { damage, .. } if damage.len() == 2));
        assert!(message.contains("step-00000003/stage-2.optimizer.safetensors is missing"), "{message}");
    }
    assert!(volume.list("damaged").is_err());
}

#[test]
fn repeated_damage_keeps_every_copy() {
    let volume = prepared();
    for kept in ["damaged/step-00000003", "damaged/step-00000003.2", "damaged/step-00000003.3"] {
        TestGroup::new(&volume).run(3).unwrap();
        assert!(volume.edit(&format!("{NEWEST}/manifest.json"), |bytes| bytes.truncate(100)));
        let mut group = TestGroup::new(&volume);
        group.run(2).unwrap();
        assert!(group.warnings[0].reason.ends_with(kept), "{:?}", group.warnings);
    }
}

#[test]
fn a_reader_outlives_pruning() {
    let volume = prepared();
    let fence = Fence::acquire(&volume).unwrap();
    let loaded = open(&volume, 2).unwrap();
    assert_eq!(prune(&volume, &fence, KEEP_ONE, 3).unwrap(), [2]);
    loaded.verify().unwrap();
    assert!(open(&volume, 2).is_err());
}

#[test]
fn a_reader_finds_a_checkpoint_during_commits_and_prunes() {
    let counting = FaultyVolume::counting(Arc::new(prepared()));
    open_newest(&counting, VerifyLevel::Contents, &[]).unwrap();
    for at in 0..counting.trace().len() {
        let volume = prepared();
        let training = volume.clone();
        let meanwhile = move || drop(TestGroup::new(&training).run(6).unwrap());
        let handle = FaultyVolume::interrupted(Arc::new(volume), at, meanwhile);
        let found = open_newest(&handle, VerifyLevel::Contents, &[]).unwrap();
        let step = found.checkpoint.unwrap().manifest().step;
        assert!([3, 6].contains(&step) && found.damage.is_empty(), "call {at}: {step}, {:?}", found.damage);
    }
}

#[test]
fn a_truncated_file_is_detected_by_its_size() {
    let volume = prepared();
    assert!(volume.edit(&format!("{NEWEST}/stage-2.optimizer.safetensors"), |bytes| bytes.truncate(bytes.len() - 1)));
    let found = open_newest(&volume, VerifyLevel::Sizes, &[]).unwrap();
    assert_eq!(found.checkpoint.unwrap().manifest().step, 2);
    assert!(found.damage[0].to_string().contains("stage-2.optimizer.safetensors has "), "{}", found.damage[0]);
}

#[test]
fn pruning_never_removes_the_newest_intact_one() {
    let volume = prepared();
    let fence = Fence::acquire(&volume).unwrap();
    // step 2 is the newest checkpoint that the group knows to be intact: step 3 may have undetected damage
    assert_eq!(prune(&volume, &fence, KEEP_ONE, 2).unwrap(), [0; 0]);
    assert_eq!(prune(&volume, &fence, KEEP_ONE, 77).unwrap(), [0; 0]);
    assert_eq!(check(&volume), [3, 2]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn no_flipped_bit_is_ever_used(
        file in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<bool>()
    ) {
        let volume = prepared();
        let files = volume.files(NEWEST);
        let file = &files[file.index(files.len())];
        let edited = volume.edit(file, |bytes| {
            let at = at.index(bytes.len());
            if cut { bytes.truncate(at) } else { bytes[at] ^= 1u8 << bit }
        });
        prop_assert!(edited);
        // each read returns the right bytes or an error
        if let Ok(loaded) = open(&volume, 3) {
            prop_assert!(loaded.verify().is_err());
            for (name, bytes) in state_at(3) {
                match loaded.read(loaded.tensor(&name).unwrap()) {
                    Ok(read) => prop_assert!(read == bytes),
                    Err(e) => prop_assert!(matches!(e, CheckpointError::Damaged(_)), "{}", e),
                }
            }
            if file.ends_with("config.json") {
                prop_assert!(loaded.read_small_file("config.json").is_err());
            }
        }
        assert_resumes_from_older(&volume, file.rsplit('/').next().unwrap(), "");
    }
}
