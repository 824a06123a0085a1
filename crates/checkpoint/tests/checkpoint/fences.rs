//! Tests fences. A fence is the right of one group (the processes of one attempt) to change a job's checkpoints. The
//! tests cover races to acquire a fence, late claims of old numbers, the owners of fences, and the refusals that a
//! fenced-off group gets.

use std::sync::{Arc, Mutex};

use stagecoach_checkpoint::*;
use stagecoach_test_volumes::*;

use crate::common::*;

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

/// Suspends a group in [`Fence::acquire`], after it has chosen number 1 and before it claims that number. During the
/// suspension, `older` runs and claims the numbers 1 and 2. The group then claims number 1 too late, and crashes
/// `calls` calls after the claim.
fn late_claim(volume: &MemoryVolume, older: impl FnOnce() + Send + 'static, calls: usize) {
    let dying = Arc::new(FaultyVolume::failing(Arc::new(volume.clone()), CLAIM + calls, VolumeFault::CrashBefore));
    let late = FaultyVolume::interrupted(dying, CLAIM, older);
    assert!(Fence::acquire(&late).is_err());
    let claim = &late.trace()[CLAIM];
    assert_eq!((claim.operation, claim.path.as_str()), ("make_dir", "fences/0001"));
}

/// The index of the volume call by which [`Fence::acquire`] claims its number.
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
        fenced_off(prune(&volume, &old, KEEP_ONE, 4).unwrap_err());
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

#[test]
fn a_fence_names_its_owner_and_a_lost_fence_its_new_owner() {
    let volume = MemoryVolume::new();
    assert_eq!(newest_owner(&volume).unwrap(), None);
    // a fence has no owner if an earlier version of Stagecoach, or one of its commands, acquired it
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
    let printed = first.check(&volume).unwrap_err().to_string();
    let expected = "this group may no longer change the job's checkpoints: a newer group holds the right (fence 3, this \
                    group had fence 2)";
    assert_eq!(printed, expected);
    Fence::acquire_for(&volume, &two, None).unwrap();
    assert_eq!(lost(&second), Some(two.clone()));
    let printed = second.check(&volume).unwrap_err().to_string();
    assert!(printed.contains("the job two (UID 22") && printed.contains("storage.path"), "{printed}");
}

#[test]
fn missing_fence_folder_is_reported() {
    let volume = MemoryVolume::new();
    let fence = Fence::acquire(&volume).unwrap();
    volume.rename("fences", "gone").unwrap();
    let message = fence.pending_checkpoint(1).begin(&volume, &identity()).unwrap_err().to_string();
    assert_eq!(message, "this group may no longer change the job's checkpoints: its fence 1 no longer exists");
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
    // the newer group has committed this step, and the older group must not report the commit as its success
    assert!(fenced(older.pending_checkpoint(2).begin(&volume, &identity()).map(drop)));
    let result = volume.open("result.json").unwrap();
    let mut content = vec![0; result.size().unwrap() as usize];
    result.read_at(0, &mut content).unwrap();
    assert_eq!(content, b"again");
}

/// Two groups try to acquire the next fence after the same older fence. Exactly one group succeeds, no matter at which
/// call the second group interrupts the first.
#[test]
fn one_group_at_most_takes_the_fence_after_another() {
    let prepared = || {
        let volume = MemoryVolume::new();
        let last = Fence::acquire(&volume).unwrap().number();
        (volume, last)
    };
    let acquire = |volume: &dyn Volume, last| Fence::acquire_for(volume, &FenceOwner::new("one", "11-aa"), Some(last));
    let (volume, last) = prepared();
    let handle = FaultyVolume::counting(Arc::new(volume));
    acquire(&handle, last).unwrap();
    for at in 0..handle.trace().len() {
        let (volume, last) = prepared();
        let second = Arc::new(Mutex::new(None));
        let meanwhile = {
            let (volume, second) = (volume.clone(), second.clone());
            move || *second.lock().unwrap() = Some(acquire(&volume, last))
        };
        let handle = FaultyVolume::interrupted(Arc::new(volume.clone()), at, meanwhile);
        let first = acquire(&handle, last);
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
