//! Two groups work on one folder at once: the older one was stopped in some phase when the newer one started, and is
//! continued later. Only the newer one commits, and nothing of what it relies on is touched.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use stagecoach_tests::phases::{Phase, stop_in};
use stagecoach_tests::{Ended, Group, TestJob, corpus, undisturbed, until};

/// When the older group is continued.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// The newer one has just taken the fence: long before a heartbeat can be missed.
    Fenced,
    /// It has committed a checkpoint of its own.
    Committed,
    /// It is done.
    Done,
}

/// The older group is stopped when stage `rank` is in `phase`.
#[derive(Clone, Copy, Debug)]
struct AttemptCase {
    phase: Phase,
    rank: usize,
    when: When,
    /// The newer group is of another job: deleted, and made anew on the same claim.
    anew: bool,
}

const STEPS: u64 = 100;

/// `keep` differs between the groups: what the newer one would remove itself can't be seen missing.
fn job(keep: u64) -> TestJob {
    let extra = format!("  checkpoint: {{everySteps: 4, keepLast: {keep}}}\n");
    TestJob { name: "twice".into(), stages: 2, layers: 3, steps: STEPS, extra, ..TestJob::default() }
}

/// Every file below `folder`, by its path, with the hash of its content.
fn files(folder: &Path) -> BTreeMap<String, blake3::Hash> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path()).into_iter().map(|(path, hash)| (format!("{name}/{path}"), hash))),
            false => drop(found.insert(name, blake3::hash(&std::fs::read(entry.path()).unwrap()))),
        }
    }
    found
}

/// What a group relies on: all but the fences, which are each group's own.
fn relied_on(folder: &Path) -> BTreeMap<String, blake3::Hash> {
    files(folder).into_iter().filter(|(path, _)| !path.starts_with("fences/")).collect()
}

/// Files that are not the same in both.
fn changed(before: &BTreeMap<String, blake3::Hash>, after: &BTreeMap<String, blake3::Hash>) -> BTreeSet<String> {
    let paths: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    paths.into_iter().filter(|path| before.get(*path) != after.get(*path)).cloned().collect()
}

/// Committed checkpoints: folder and attempt.
fn checkpoints(folder: &Path) -> BTreeMap<String, u64> {
    let folders = std::fs::read_dir(folder.join("checkpoints")).into_iter().flatten().flatten();
    let attempt = |path: &Path| {
        let manifest: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path.join("manifest.json")).ok()?).unwrap();
        manifest["attempt"].as_u64()
    };
    folders
        .filter_map(|entry| Some((entry.file_name().to_string_lossy().into_owned(), attempt(&entry.path())?)))
        .collect()
}

fn fences(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder.join("fences")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|name| !name.contains('.')).collect()
}

/// Attempts of the groups: one leaves checkpoints to load, then the two that meet.
const FIRST: u64 = 1;
const OLDER: u64 = 2;
const NEWER: u64 = 3;

/// An older group that stands still in the case's phase. A phase that comes once in a group's life may be missed: then
/// another group is tried.
fn caught(case: AttemptCase) -> (tempfile::TempDir, Group) {
    for _ in 0..20 {
        let workspace = corpus::workspace();
        let folder = workspace.path().join("twice");
        let trains = |mut group: Group| {
            until("checkpoints", 60, || (group.is_whole() && checkpoints(&folder).len() > 1).then_some(()));
            group
        };
        if case.phase == Phase::Load {
            drop(trains(Group::start(workspace.path(), &job(2), "a", FIRST)));
        }
        let mut older = Group::start(workspace.path(), &job(2), "a", OLDER);
        if Phase::RECURRING.contains(&case.phase) && case.phase != Phase::Load {
            older = trains(older);
        }
        if stop_in(older.pids()[case.rank], case.phase, Duration::from_secs(30)) {
            older.stop();
            return (workspace, older);
        }
    }
    panic!("no group was caught: {case:?}");
}

/// The two groups meet. Whether it was the fence that ended the older one.
fn met(case: AttemptCase, expected: &(String, String)) -> bool {
    let (workspace, mut older) = caught(case);
    let folder = workspace.path().join("twice");
    let held = fences(&folder);
    let mut newer = Group::start(workspace.path(), &job(1000), if case.anew { "b" } else { "a" }, NEWER);
    match case.when {
        When::Fenced => until("the newer fence", 60, || (newer.is_whole() && fences(&folder) != held).then_some(())),
        When::Committed => until("a newer checkpoint", 60, || {
            checkpoints(&folder).values().any(|&attempt| attempt == NEWER).then_some(())
        }),
        When::Done => all_done(case, &newer.finish(120)),
    }
    let (before, committed) = (files(&folder.join("checkpoints")), checkpoints(&folder));
    let everything = relied_on(&folder);
    older.go_on();
    let ended = older.finish(60);
    report(case, &ended);
    match case.when {
        When::Done => assert_eq!(changed(&everything, &relied_on(&folder)), BTreeSet::new(), "{case:?}"),
        _ => all_done(case, &newer.finish(120)),
    }

    let result: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("result.json")).unwrap()).unwrap();
    let hashes = (result["lossesHash"].as_str().unwrap(), result["weightsHash"].as_str().unwrap());
    assert_eq!(hashes, (&*expected.0, &*expected.1), "{case:?}");
    // the newer group removes nothing: what was there when the older one was continued is there for good
    let after = files(&folder.join("checkpoints"));
    for (path, hash) in &before {
        assert_eq!(after.get(path), Some(hash), "{case:?}: {path}");
    }
    for (name, attempt) in checkpoints(&folder) {
        assert!(attempt == NEWER || committed.contains_key(&name), "{case:?}: {name} is of attempt {attempt}");
    }
    assert!(files(&folder.join("damaged")).is_empty(), "{case:?}");
    assert_eq!(steps_in(&folder.join("metrics.jsonl")), (1..=STEPS).collect::<Vec<_>>(), "{case:?}: metrics.jsonl");
    for Ended { code, words, .. } in &ended {
        assert!(code.is_some_and(|code| code != 0), "{case:?}: the older group left with {code:?}: {words}");
    }
    ended.iter().any(|ended| ended.words["message"].as_str().is_some_and(|why| why.contains("held no more")))
}

fn all_done(case: AttemptCase, newer: &[Ended]) {
    for Ended { code, log, .. } in newer {
        assert_eq!(*code, Some(0), "{case:?}: {log}");
    }
}

fn steps_in(metrics: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(metrics).unwrap();
    text.lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64().unwrap())
        .collect()
}

/// Says what ended the older group.
fn report(case: AttemptCase, ended: &[Ended]) {
    for (stage, Ended { code, words, .. }) in ended.iter().enumerate() {
        println!("{case:?}: stage {stage} left with {code:?}: {}", words["message"].as_str().unwrap_or("no message"));
    }
}

/// Each case in turn. A group that is continued at once must be ended by the fence: if a machine is so slow that a
/// missed heartbeat was quicker, the case is tried again.
fn all(cases: &[(Phase, usize, When)]) {
    let expected = undisturbed(&TestJob { stages: 1, ..job(2) });
    for (at, &(phase, rank, when)) in cases.iter().enumerate() {
        let case = AttemptCase { phase, rank, when, anew: at % 2 == 1 };
        let fenced = (0..5).any(|_| met(case, &expected) || when != When::Fenced);
        assert!(fenced, "{case:?}: it was never the fence that ended the older group");
    }
}

#[test]
fn stopped_while_it_trains() {
    all(&[
        (Phase::Forward, 1, When::Fenced),
        (Phase::Forward, 0, When::Done),
        (Phase::Exchange, 0, When::Fenced),
        (Phase::Exchange, 1, When::Done),
        (Phase::Snapshot, 1, When::Fenced),
        (Phase::Snapshot, 0, When::Committed),
        (Phase::Snapshot, 0, When::Done),
    ]);
}

#[test]
fn stopped_while_it_saves() {
    all(&[
        (Phase::Write, 1, When::Fenced),
        (Phase::Write, 0, When::Done),
        (Phase::Commit, 0, When::Fenced),
        (Phase::Commit, 0, When::Committed),
        (Phase::Commit, 0, When::Done),
        (Phase::Prune, 0, When::Done),
        (Phase::Prune, 0, When::Committed),
        (Phase::Prune, 0, When::Fenced),
    ]);
}

#[test]
fn stopped_while_it_loads() {
    all(&[(Phase::Load, 1, When::Fenced), (Phase::Load, 0, When::Committed), (Phase::Load, 0, When::Done)]);
}

#[test]
fn stopped_in_its_last_save() {
    all(&[(Phase::LastSave, 0, When::Fenced), (Phase::LastSave, 1, When::Committed), (Phase::LastSave, 0, When::Done)]);
}

#[test]
fn a_result_told_late_changes_nothing() {
    let case = AttemptCase { phase: Phase::Finish, rank: 0, when: When::Done, anew: true };
    let (workspace, mut older) = caught(case);
    let folder = workspace.path().join("twice");
    // made anew with more steps to train: all of the older group's are committed
    let longer = TestJob { steps: STEPS + 40, ..job(1000) };
    all_done(case, &Group::start(workspace.path(), &longer, "b", NEWER).finish(120));
    let everything = relied_on(&folder);
    older.go_on();
    report(case, &older.finish(60));
    assert_eq!(changed(&everything, &relied_on(&folder)), BTreeSet::new());
    assert_eq!(steps_in(&folder.join("metrics.jsonl")), (1..=STEPS + 40).collect::<Vec<_>>());
}
