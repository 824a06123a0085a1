//! Two groups on one volume. Wherever the older group was suspended, only the newer group commits, and its files are
//! not changed.

use std::sync::{Arc, Mutex};

use stagecoach_checkpoint::*;
use stagecoach_test_volumes::*;

use crate::common::*;

const BEFORE: u64 = 3;
const UNTIL: u64 = 6;

/// A volume with three saved steps, of which the newest is damaged, so that an older group may be suspended while it
/// sets the checkpoint aside.
fn prepared() -> MemoryVolume {
    let volume = MemoryVolume::new();
    TestGroup::new(&volume).run(BEFORE).unwrap();
    assert!(
        volume.edit("checkpoints/step-00000003/stage-1.model.safetensors", |bytes| *bytes.last_mut().unwrap() ^= 1)
    );
    volume
}

/// A group on `volume` in which `rank` uses `handle`.
fn group(volume: &MemoryVolume, mount: Mount, rank: usize, handle: &FaultyVolume<OneFault>) -> TestGroup {
    let mut group = mount.group(volume);
    group.volumes[rank] = Arc::new(handle.clone());
    group
}

fn calls(mount: Mount, rank: usize) -> usize {
    let volume = prepared();
    let handle = FaultyVolume::counting(mount.volume(&volume));
    let mut group = group(&volume, mount, rank, &handle);
    group.run(UNTIL).unwrap();
    assert_eq!(group.warnings.len(), 1);
    handle.trace().len()
}

/// The files that the newer group needs.
fn needed_files(volume: &MemoryVolume, fence: &Fence) -> Vec<(String, Vec<u8>)> {
    let own = format!("fences/{:04}", fence.number());
    let files = ["checkpoints", "damaged", &own].into_iter().flat_map(|path| snapshot(volume, path));
    // a group that is fenced off while it probes the volume still removes its own probe
    files.filter(|(path, _)| !path.contains("/.probe-")).collect()
}

/// Suspends the older group before each of its calls, while `newer` groups run one after another. The last of them is
/// in the middle of a save when the older group continues.
fn suspend_at_every_call(mount: Mount, rank: usize, newer: u64) {
    let mut fenced_off = 0;
    for at in 0..calls(mount, rank) {
        let context = format!("{mount:?}, stage {rank}, call {at}, {newer} newer");
        let volume = prepared();
        let seen = Arc::new(Mutex::new(None));
        let meanwhile = {
            let (volume, seen) = (volume.clone(), seen.clone());
            move || {
                for n in 1..=newer {
                    let mut group = mount.group(&volume);
                    let state = group.run(BEFORE + n).unwrap();
                    let fence = group.fence.unwrap();
                    let save = fence.pending_checkpoint(90);
                    assert!(save.begin(&volume, &identity()).unwrap());
                    let (weights, moments) = views(&state, 0);
                    save.write_stage(&volume, 0, &weights, &moments).unwrap();
                    *seen.lock().unwrap() = Some((needed_files(&volume, &fence), fence));
                }
            }
        };
        let handle = FaultyVolume::interrupted(mount.volume(&volume), at, meanwhile);
        let mut older = group(&volume, mount, rank, &handle);
        let ended = older.run(UNTIL);
        assert!(handle.has_fired(), "{context}");
        let (before, fence) = seen.lock().unwrap().take().unwrap();
        // if the older group was suspended before it had claimed a number, it becomes the newest
        let older_is_newest = older.fence.as_ref().is_some_and(|older| older.number() > fence.number());
        if older_is_newest {
            assert!(ended.unwrap() == state_at(UNTIL), "{context}");
            assert!(matches!(fence.check(&volume), Err(CheckpointError::FencedOff { .. })), "{context}");
            assert_eq!(check(&volume), [UNTIL, UNTIL - 1], "{context}");
            continue;
        }
        match ended {
            Err(CheckpointError::FencedOff { .. }) => fenced_off += 1,
            // the older group found nothing to load, or only had to remove files
            Err(CheckpointError::NoneIntact { .. }) | Ok(_) => {}
            Err(other) => panic!("{context}: {other}"),
        }
        let after = needed_files(&volume, &fence);
        let touched: Vec<&str> = [(&before, &after), (&after, &before)]
            .iter()
            .flat_map(|(a, b)| a.iter().filter(|file| !b.contains(file)).map(|(path, _)| path.as_str()))
            .collect();
        assert!(touched.is_empty(), "{context}, {:?}: {touched:?}", handle.trace()[at]);
        check(&volume);
        fence.check(&volume).unwrap();
        let mut next = TestGroup::new(&volume);
        assert!(next.run(UNTIL + 1).unwrap() == state_at(UNTIL + 1), "{context}");
        assert_eq!(next.warnings, [], "{context}");
    }
    assert!(fenced_off > 10, "{fenced_off}");
}

#[test]
fn an_older_coordinator_can_neither_commit_nor_damage() {
    suspend_at_every_call(Mount::Local, 0, 1);
    suspend_at_every_call(Mount::Local, 0, 3);
}

#[test]
fn an_older_stage_can_neither_commit_nor_damage() {
    suspend_at_every_call(Mount::Local, 1, 2);
}

/// The older group's NFS client still resolves the folder that the newer group has renamed.
#[test]
fn an_older_group_on_nfs_can_neither_commit_nor_damage() {
    suspend_at_every_call(Mount::Nfs, 0, 1);
    suspend_at_every_call(Mount::Nfs, 0, 3);
    suspend_at_every_call(Mount::Nfs, 1, 2);
}

/// The newer group has chosen the checkpoint to resume from, but has not yet removed the older group's files.
#[test]
fn nothing_changes_once_a_newer_group_holds_the_fence() {
    for mount in [Mount::Local, Mount::Nfs] {
        let mut fenced_off = 0;
        for at in 0..calls(mount, 0) {
            let volume = prepared();
            let seen = Arc::new(Mutex::new(None));
            let meanwhile = {
                let (server, newer, seen) = (volume.clone(), mount.volume(&volume), seen.clone());
                move || {
                    let fence = Fence::acquire(&*newer).unwrap();
                    *seen.lock().unwrap() = Some((needed_files(&server, &fence), fence));
                }
            };
            let handle = FaultyVolume::interrupted(mount.volume(&volume), at, meanwhile);
            let ended = group(&volume, mount, 0, &handle).run(UNTIL);
            let (before, fence) = seen.lock().unwrap().take().unwrap();
            if ended.is_ok() {
                continue; // the older group claimed its number later, or was done
            }
            fenced_off += usize::from(matches!(ended, Err(CheckpointError::FencedOff { .. })));
            assert!(needed_files(&volume, &fence) == before, "{mount:?}, call {at}: {:?}", handle.trace()[at]);
        }
        assert!(fenced_off > 10, "{fenced_off}");
    }
}

#[test]
fn exactly_one_racing_coordinator_holds_the_fence() {
    let acquire = |volume: &MemoryVolume| {
        let handle = FaultyVolume::counting(Arc::new(volume.clone()));
        Fence::acquire(&handle).unwrap();
        handle.trace().len()
    };
    for others in 1..=3 {
        for at in 0..acquire(&MemoryVolume::new()) {
            let volume = MemoryVolume::new();
            let held = Arc::new(Mutex::new(Vec::new()));
            let meanwhile = {
                let (volume, held) = (volume.clone(), held.clone());
                move || held.lock().unwrap().extend((0..others).map(|_| Fence::acquire(&volume)))
            };
            let handle = FaultyVolume::interrupted(Arc::new(volume.clone()), at, meanwhile);
            let ours = Fence::acquire(&handle);
            let mut taken: Vec<Fence> = held.lock().unwrap().drain(..).map(Result::unwrap).collect();
            taken.extend(ours);
            let holding: Vec<_> = taken.iter().filter(|fence| fence.check(&volume).is_ok()).collect();
            assert_eq!(holding.len(), 1, "call {at}, {others} others: {taken:?}");
            let highest = taken.iter().map(Fence::number).max();
            assert_eq!(Some(holding[0].number()), highest, "call {at}, {others} others");
        }
    }
}

#[test]
fn exactly_one_racing_thread_holds_the_fence_on_a_file_system() {
    let folder = tempfile::tempdir().unwrap();
    let volume = FileSystemVolume::new(folder.path());
    let taken: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| Fence::acquire(&volume))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for refused in taken.iter().filter_map(|t| t.as_ref().err()) {
        assert!(matches!(refused, CheckpointError::FencedOff { .. }), "{refused}");
    }
    let fences: Vec<&Fence> = taken.iter().flatten().collect();
    let holding = fences.iter().filter(|fence| fence.check(&volume).is_ok()).count();
    assert_eq!(holding, 1, "{fences:?}");
}

/// A group is suspended after it has chosen a number and before it claims the number. Meanwhile two other groups claim
/// that number and the next one. The first group then claims the old number late, and crashes `calls` calls later.
fn late_claim(volume: &MemoryVolume, older: impl FnOnce() + Send + 'static, calls: usize) {
    let dying = Arc::new(FaultyVolume::failing(Arc::new(volume.clone()), CLAIM + calls, VolumeFault::CrashBefore));
    let late = FaultyVolume::interrupted(dying, CLAIM, older);
    assert!(Fence::acquire(&late).is_err());
    let claim = &late.trace()[CLAIM];
    assert_eq!((claim.operation, claim.path.as_str()), ("make_dir", "fences/0001"));
}

/// The index of the call by which [`Fence::acquire`] claims its number.
const CLAIM: usize = 6;

#[test]
fn a_late_claim_of_an_old_number_stays_fenced_off() {
    for calls in 1..10 {
        let volume = MemoryVolume::new();
        let old = Arc::new(Mutex::new(None));
        let others = {
            let (volume, old) = (volume.clone(), old.clone());
            move || {
                let mut group = TestGroup::new(&volume);
                let state = group.run(4).unwrap();
                *old.lock().unwrap() = group.fence.clone().map(|fence| (group, fence, state));
                TestGroup::new(&volume).run(4).unwrap();
            }
        };
        late_claim(&volume, others, calls);
        let (group, old, state) = old.lock().unwrap().take().unwrap();
        assert_eq!(old.number(), 1);
        let before = snapshot(&volume, "checkpoints");
        let fenced_off =
            |error| assert!(matches!(error, CheckpointError::FencedOff { newest: Some(2), .. }), "{error}");
        fenced_off(prune(&volume, &old, RetentionPolicy { keep_last: 1, keep_every: 0, best: None }, 4).unwrap_err());
        fenced_off(group.save(&old, 5, &state).unwrap_err());
        let damage = Damage { step: 4, file: "x".into(), reason: "y".into() };
        fenced_off(quarantine(&volume, &old, &[damage]).unwrap_err());
        assert!(snapshot(&volume, "checkpoints") == before);
        let mut next = TestGroup::new(&volume);
        next.run(5).unwrap();
        assert_eq!(next.fence.unwrap().number(), 3);
        assert_eq!(volume.list("fences").unwrap().len(), 1);
    }
}

#[test]
fn a_number_that_was_used_twice_is_fenced_off_twice() {
    let volume = MemoryVolume::new();
    let others = volume.clone();
    late_claim(&volume, move || drop([Fence::acquire(&others).unwrap(), Fence::acquire(&others).unwrap()]), 1);
    let held = || volume.list("fences").unwrap().into_iter().filter(|e| !e.name.ends_with(".fenced")).count();
    assert_eq!(held(), 2);
    Fence::acquire(&volume).unwrap();
    assert_eq!(held(), 1);
}

/// EXDEV is the error of the rename into the folder of checkpoints, which a commit makes as well.
#[test]
fn a_folder_of_checkpoints_on_another_file_system_is_refused_before_anything_is_trained() {
    let at = call_at("rename", "/probe");
    let volume = FaultyVolume::failing(Arc::new(MemoryVolume::new()), at, VolumeFault::Fail(18));
    let refused = Fence::acquire(&volume).unwrap_err();
    assert!(matches!(refused, CheckpointError::OtherFileSystem { .. }), "{refused}");
    let said = refused.to_string();
    assert!(said.contains("checkpoints is on another file system than") && said.contains("fences"), "{said}");
}

/// A group that ends between the probe's rename and its removal leaves a folder. The folder is no checkpoint, and the
/// next group removes it.
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
fn a_fence_names_its_owner_and_a_lost_fence_its_new_owner() {
    let volume = MemoryVolume::new();
    assert_eq!(newest_owner(&volume).unwrap(), None);
    // a fence of an earlier version, or of a command
    let unnamed = Fence::acquire(&volume).unwrap();
    assert_eq!((newest_owner(&volume).unwrap(), unnamed.owner()), (None, None));
    let (one, two) = (FenceOwner::new("one", "11-aa"), FenceOwner::new("two", "22,../bb"));
    assert_eq!(two.uid, "22____bb", "no character has a meaning in a path");
    let first = Fence::acquire_for(&volume, &one, None).unwrap();
    assert_eq!((newest_owner(&volume).unwrap().as_ref(), first.owner().as_ref()), (Some(&one), Some(&one)));
    let lost = |fence: &Fence| match fence.check(&volume) {
        Err(CheckpointError::FencedOff { by, .. }) => by,
        other => panic!("{other:?}"),
    };
    assert_eq!(lost(&unnamed), None);
    let second = Fence::acquire_for(&volume, &one, Some(first.number())).unwrap();
    assert_eq!(lost(&first), None, "to a newer group of its own job");
    Fence::acquire_for(&volume, &two, None).unwrap();
    assert_eq!(lost(&second), Some(two.clone()));
    let said = second.check(&volume).unwrap_err().to_string();
    assert!(said.contains("the job two (UID 22") && said.contains("storage.path"), "{said}");
}

#[test]
fn missing_fence_folder_is_reported() {
    let volume = MemoryVolume::new();
    let fence = Fence::acquire(&volume).unwrap();
    volume.rename("fences", "gone").unwrap();
    let message = fence.pending_checkpoint(1).begin(&volume, &identity()).unwrap_err().to_string();
    assert_eq!(message, "fence 1 is held no more: this group's work ends here");
}

/// The index of the first call of [`Fence::acquire`] with this operation and a path that ends with `end`.
fn call_at(operation: &str, end: &str) -> usize {
    let counting = FaultyVolume::counting(Arc::new(MemoryVolume::new()));
    Fence::acquire(&counting).unwrap();
    let is_call = |call: &VolumeCall| call.operation == operation && call.path.ends_with(end);
    counting.trace().iter().position(is_call).unwrap()
}

#[test]
fn a_volume_that_can_not_rename_folders_is_refused_in_one_sentence() {
    let at = call_at("rename", "/probe");
    // EPERM, EMFILE, ENOSYS, EOPNOTSUPP
    for error in [1, 24, 38, 95] {
        let volume = FaultyVolume::failing(Arc::new(MemoryVolume::new()), at, VolumeFault::Fail(error));
        let refused = Fence::acquire(&volume).unwrap_err();
        assert!(matches!(refused, CheckpointError::NoFolderRename { .. }), "{refused}");
        let expected = format!(
            "can't rename a folder ({}), which is how a checkpoint is committed: use a volume of",
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

#[test]
fn a_fenced_off_group_writes_nothing_and_gets_fenced_off() {
    let volume = MemoryVolume::default();
    let older = Fence::acquire(&volume).unwrap();
    older.write_job_file(&volume, "result.json", b"first").unwrap();
    older.write_job_file(&volume, "result.json", b"again").unwrap();
    let mut newer = TestGroup::new(&volume);
    newer.run(2).unwrap();
    let fenced = |outcome: Result<(), CheckpointError>| matches!(outcome, Err(CheckpointError::FencedOff { .. }));
    assert!(fenced(older.write_job_file(&volume, "result.json", b"late")));
    // the newer group has already committed this step, which is no success of the older group
    assert!(fenced(older.pending_checkpoint(2).begin(&volume, &identity()).map(drop)));
    let result = volume.open("result.json").unwrap();
    let mut content = vec![0; result.size().unwrap() as usize];
    result.read_at(0, &mut content).unwrap();
    assert_eq!(content, b"again");
}

/// Two groups try to acquire the fence after the same older fence. Whenever the second group interrupts the first,
/// exactly one of them succeeds.
#[test]
fn one_group_at_most_takes_the_fence_after_another() {
    let prepared = || {
        let volume = MemoryVolume::new();
        let last = Fence::acquire(&volume).unwrap().number();
        (volume, last)
    };
    let (volume, last) = prepared();
    let handle = FaultyVolume::counting(Arc::new(volume));
    Fence::acquire_after(&handle, last).unwrap();
    for at in 0..handle.trace().len() {
        let (volume, last) = prepared();
        let second = Arc::new(Mutex::new(None));
        let meanwhile = {
            let (volume, second) = (volume.clone(), second.clone());
            move || *second.lock().unwrap() = Some(Fence::acquire_after(&volume, last))
        };
        let handle = FaultyVolume::interrupted(Arc::new(volume.clone()), at, meanwhile);
        let first = Fence::acquire_after(&handle, last);
        let second = second.lock().unwrap().take().unwrap();
        let numbers: Vec<u64> =
            [&first, &second].iter().filter_map(|fence| Some(fence.as_ref().ok()?.number())).collect();
        assert_eq!(numbers, [last + 1], "call {at}: {first:?}, {second:?}");
        let refused = if first.is_ok() { second } else { first };
        assert!(
            matches!(refused, Err(CheckpointError::FencedOff { fence, newest: Some(newest), .. }) if (fence, newest) == (last, last + 1))
        );
    }
}
