//! Tests an older group and newer groups on one volume. Only the newest group commits, and its files do not change, no
//! matter at which call the older group is suspended.

use std::sync::{Arc, Mutex};

use stagecoach_checkpoint::*;
use stagecoach_test_volumes::*;

use crate::common::*;

const BEFORE: u64 = 3;
const UNTIL: u64 = 6;

/// Returns a volume after three saved steps. The newest checkpoint is damaged, so that an older group may be suspended
/// while it moves the checkpoint to `damaged/`.
fn prepared() -> MemoryVolume {
    let volume = MemoryVolume::new();
    TestGroup::new(&volume).run(BEFORE).unwrap();
    assert!(
        volume.edit("checkpoints/step-00000003/stage-1.model.safetensors", |bytes| *bytes.last_mut().unwrap() ^= 1)
    );
    volume
}

/// Returns a group on `volume` in which `rank` uses `handle`.
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

/// Returns the files, with their contents, that the group with this fence needs.
fn needed_files(volume: &MemoryVolume, fence: &Fence) -> Vec<(String, Vec<u8>)> {
    let own = format!("fences/{:04}", fence.number());
    let files = ["checkpoints", "damaged", &own].into_iter().flat_map(|path| snapshot(volume, path));
    // probes are excluded, because a group that is fenced off during its probe still removes the probe
    files.filter(|(path, _)| !path.contains("/.probe-")).collect()
}

/// Suspends the older group before each of its calls in turn. During the suspension, `newer` groups run one after
/// another. The last newer group is in the middle of a save when the older group continues.
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
        // an older group that was suspended before it claimed its fence's number becomes the newest group
        let older_is_newest = older.fence.as_ref().is_some_and(|older| older.number() > fence.number());
        if older_is_newest {
            assert!(ended.unwrap() == state_at(UNTIL), "{context}");
            assert!(matches!(fence.check(&volume), Err(CheckpointError::FencedOff { .. })), "{context}");
            assert_eq!(check(&volume), [UNTIL, UNTIL - 1], "{context}");
            continue;
        }
        match ended {
            Err(CheckpointError::FencedOff { .. }) => fenced_off += 1,
            // the older group found no intact checkpoint, or its remaining calls only removed files
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

/// The older group's NFS client still resolves the old name of the folder that the newer group has renamed.
#[test]
fn an_older_group_on_nfs_can_neither_commit_nor_damage() {
    suspend_at_every_call(Mount::Nfs, 0, 1);
    suspend_at_every_call(Mount::Nfs, 0, 3);
    suspend_at_every_call(Mount::Nfs, 1, 2);
}

/// The newer group holds the fence and may choose the checkpoint to resume from, but has not yet removed the older
/// group's files.
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
                continue; // the older group claimed its number after the newer group, or ended before the newer group began
            }
            fenced_off += usize::from(matches!(ended, Err(CheckpointError::FencedOff { .. })));
            assert!(needed_files(&volume, &fence) == before, "{mount:?}, call {at}: {:?}", handle.trace()[at]);
        }
        assert!(fenced_off > 10, "{fenced_off}");
    }
}
