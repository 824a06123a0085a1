//! Two groups on one volume: only the newer one commits, and nothing it relies on is touched, wherever the older one was
//! stopped.
#![allow(clippy::unwrap_used, clippy::panic)] // also in what is shared by tests

mod common;

use std::sync::{Arc, Mutex};

use common::*;
use stagecoach_checkpoint::testing::*;
use stagecoach_checkpoint::*;

const BEFORE: u64 = 3;
const UNTIL: u64 = 6;

/// Three steps saved, and the newest one damaged: so that setting aside is among what an older group may be in.
fn prepared() -> MemoryVolume {
    let volume = MemoryVolume::new();
    Group::on(&volume).run(BEFORE).unwrap();
    assert!(
        volume.edit("checkpoints/step-00000003/stage-1.model.safetensors", |bytes| *bytes.last_mut().unwrap() ^= 1)
    );
    volume
}

/// A group in which `rank`'s handle counts, or stops at call `at` for `meanwhile`.
fn group(volume: &MemoryVolume, rank: usize, stop: Option<(usize, Fault)>) -> (Group, FaultyVolume) {
    let inner = Arc::new(volume.clone());
    let handle = match stop {
        Some((at, fault)) => FaultyVolume::failing(inner, at, fault),
        None => FaultyVolume::counting(inner),
    };
    let mut group = Group::on(volume);
    group.volumes[rank] = Arc::new(handle.clone());
    (group, handle)
}

fn calls(rank: usize) -> usize {
    let volume = prepared();
    let (mut group, handle) = group(&volume, rank, None);
    group.run(UNTIL).unwrap();
    assert_eq!(group.warnings.len(), 1);
    handle.trace().len()
}

/// What the newer group relies on.
fn relied_on(volume: &MemoryVolume, fence: &Fence) -> Vec<(String, Vec<u8>)> {
    let own = format!("fences/{:04}", fence.number());
    ["checkpoints", "damaged", &own].iter().flat_map(|path| snapshot(volume, path)).collect()
}

/// The older group is stopped before each of its calls while `newer` groups run one after the other; the last of them is
/// in the middle of a save when the older one continues.
fn stop_everywhere(rank: usize, newer: u64) {
    let mut fenced_off = 0;
    for at in 0..calls(rank) {
        let context = format!("stage {rank}, call {at}, {newer} newer");
        let volume = prepared();
        let seen = Arc::new(Mutex::new(None));
        let meanwhile = {
            let (volume, seen) = (volume.clone(), seen.clone());
            move || {
                for n in 1..=newer {
                    let mut group = Group::on(&volume);
                    let state = group.run(BEFORE + n).unwrap();
                    let fence = group.fence.unwrap();
                    let save = fence.save(90);
                    assert!(save.begin(&volume, &identity()).unwrap());
                    let (weights, moments) = views(&state, 0);
                    save.write_stage(&volume, 0, &weights, &moments).unwrap();
                    *seen.lock().unwrap() = Some((relied_on(&volume, &fence), fence));
                }
            }
        };
        let (mut older, handle) = group(&volume, rank, Some((at, Fault::Pause(Box::new(meanwhile)))));
        let ended = older.run(UNTIL);
        assert!(handle.has_fired(), "{context}");
        let (before, fence) = seen.lock().unwrap().take().unwrap();
        // stopped before it had claimed a number, it comes out as the newest
        let older_is_newest = older.fence.as_ref().is_some_and(|older| older.number() > fence.number());
        if older_is_newest {
            assert!(ended.unwrap() == state_at(UNTIL), "{context}");
            assert!(matches!(fence.check(&volume), Err(CheckpointError::FencedOff { .. })), "{context}");
            assert_eq!(check(&volume), [UNTIL, UNTIL - 1], "{context}");
            continue;
        }
        match ended {
            Err(CheckpointError::FencedOff { .. }) => fenced_off += 1,
            // it found nothing to load any more, or had only cleaning up to do
            Err(CheckpointError::NoneIntact { .. }) | Ok(_) => {}
            Err(other) => panic!("{context}: {other}"),
        }
        let after = relied_on(&volume, &fence);
        let touched: Vec<&str> = [(&before, &after), (&after, &before)]
            .iter()
            .flat_map(|(a, b)| a.iter().filter(|file| !b.contains(file)).map(|(path, _)| path.as_str()))
            .collect();
        assert!(touched.is_empty(), "{context}, {:?}: {touched:?}", handle.trace()[at]);
        check(&volume);
        fence.check(&volume).unwrap();
        let mut next = Group::on(&volume);
        assert!(next.run(UNTIL + 1).unwrap() == state_at(UNTIL + 1), "{context}");
        assert_eq!(next.warnings, [], "{context}");
    }
    assert!(fenced_off > 10, "{fenced_off}");
}

#[test]
fn an_older_coordinator_can_neither_commit_nor_damage() {
    stop_everywhere(0, 1);
    stop_everywhere(0, 3);
}

#[test]
fn an_older_stage_can_neither_commit_nor_damage() {
    stop_everywhere(1, 2);
}

#[test]
fn of_racing_coordinators_exactly_one_holds() {
    let take = |volume: &MemoryVolume| {
        let handle = FaultyVolume::counting(Arc::new(volume.clone()));
        Fence::take(&handle).unwrap();
        handle.trace().len()
    };
    for others in 1..=3 {
        for at in 0..take(&MemoryVolume::new()) {
            let volume = MemoryVolume::new();
            let held = Arc::new(Mutex::new(Vec::new()));
            let meanwhile = {
                let (volume, held) = (volume.clone(), held.clone());
                move || held.lock().unwrap().extend((0..others).map(|_| Fence::take(&volume)))
            };
            let handle = FaultyVolume::failing(Arc::new(volume.clone()), at, Fault::Pause(Box::new(meanwhile)));
            let ours = Fence::take(&handle);
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
fn threads_on_real_files_race_to_one_fence() {
    let folder = tempfile::tempdir().unwrap();
    let volume = RealVolume::new(folder.path());
    let taken: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| Fence::take(&volume))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for refused in taken.iter().filter_map(|t| t.as_ref().err()) {
        assert!(matches!(refused, CheckpointError::FencedOff { .. }), "{refused}");
    }
    let fences: Vec<&Fence> = taken.iter().flatten().collect();
    let holding = fences.iter().filter(|fence| fence.check(&volume).is_ok()).count();
    assert_eq!(holding, 1, "{fences:?}");
}

/// One sleeps between choosing a number and claiming it; meanwhile two others take it and the next; then it claims the
/// old number late, and dies `calls` later.
fn late_claim(volume: &MemoryVolume, older: impl FnOnce() + Send + 'static, calls: usize) {
    let dying = Arc::new(FaultyVolume::failing(Arc::new(volume.clone()), CLAIM + calls, Fault::CrashBefore));
    let late = FaultyVolume::failing(dying, CLAIM, Fault::Pause(Box::new(older)));
    assert!(Fence::take(&late).is_err());
    assert_eq!(late.trace()[CLAIM], Call { operation: "make_dir", path: "fences/0001".into() });
}

/// The call by which [`Fence::take`] claims its number.
const CLAIM: usize = 6;

#[test]
fn a_late_claim_of_an_old_number_revives_nobody() {
    for calls in 1..10 {
        let volume = MemoryVolume::new();
        let old = Arc::new(Mutex::new(None));
        let others = {
            let (volume, old) = (volume.clone(), old.clone());
            move || {
                let mut group = Group::on(&volume);
                let state = group.run(4).unwrap();
                *old.lock().unwrap() = group.fence.clone().map(|fence| (group, fence, state));
                Group::on(&volume).run(4).unwrap();
            }
        };
        late_claim(&volume, others, calls);
        let (group, old, state) = old.lock().unwrap().take().unwrap();
        assert_eq!(old.number(), 1);
        let before = snapshot(&volume, "checkpoints");
        let fenced_off = |error| assert!(matches!(error, CheckpointError::FencedOff { by: Some(2), .. }), "{error}");
        fenced_off(prune(&volume, &old, Keep { last: 1, every: 0 }, 4).unwrap_err());
        fenced_off(group.save(&old, 5, &state).unwrap_err());
        let damage = Damage { step: 4, file: "x".into(), reason: "y".into() };
        fenced_off(set_aside(&volume, &old, &[damage]).unwrap_err());
        assert!(snapshot(&volume, "checkpoints") == before);
        let mut next = Group::on(&volume);
        next.run(5).unwrap();
        assert_eq!(next.fence.unwrap().number(), 3);
        assert_eq!(volume.list("fences").unwrap().len(), 1);
    }
}

#[test]
fn a_number_that_was_used_twice_is_fenced_off_twice() {
    let volume = MemoryVolume::new();
    let others = volume.clone();
    late_claim(&volume, move || drop([Fence::take(&others).unwrap(), Fence::take(&others).unwrap()]), 1);
    let held = || volume.list("fences").unwrap().into_iter().filter(|e| !e.name.ends_with(".fenced")).count();
    assert_eq!(held(), 2);
    Fence::take(&volume).unwrap();
    assert_eq!(held(), 1);
}

#[test]
fn fences_taken_away_altogether_are_a_sentence() {
    let volume = MemoryVolume::new();
    let fence = Fence::take(&volume).unwrap();
    volume.rename("fences", "gone").unwrap();
    let told = fence.save(1).begin(&volume, &identity()).unwrap_err().to_string();
    assert_eq!(told, "fence 1 is held no more: this group's work ends here");
}

#[test]
fn a_group_that_was_fenced_off_publishes_nothing_and_hears_so_also_where_nothing_is_left_to_do() {
    let volume = MemoryVolume::default();
    let older = Fence::take(&volume).unwrap();
    older.publish(&volume, "result.json", b"first").unwrap();
    older.publish(&volume, "result.json", b"again").unwrap();
    let mut newer = Group::on(&volume);
    newer.run(2).unwrap();
    let fenced = |outcome: Result<(), CheckpointError>| matches!(outcome, Err(CheckpointError::FencedOff { .. }));
    assert!(fenced(older.publish(&volume, "result.json", b"late")));
    // the newer group has committed this step already: that is no success of the older one
    assert!(fenced(older.save(2).begin(&volume, &identity()).map(drop)));
    let result = volume.open("result.json").unwrap();
    let mut content = vec![0; result.size().unwrap() as usize];
    result.read_at(0, &mut content).unwrap();
    assert_eq!(content, b"again");
}
