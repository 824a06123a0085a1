//! Two groups use one folder at the same time. The test stops the older group in some phase, starts the newer group,
//! and later lets the older group continue. Only the newer group commits, and the older group changes no file that the
//! newer group relies on.
//!
//! In a phase that uses the volume, a stage of the older group blocks in a call on the volume. In any other phase, the
//! test waits until it observes a stage in that phase, and then stops the stage.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use stagecoach_tests::block_io::{self, IoBlock};
use stagecoach_tests::faulty::{FAULT_VARIABLE, RECORDS_VARIABLE};
use stagecoach_tests::fixture::{contents, files, recorded_steps};
use stagecoach_tests::phases::{Phase, stop_in};
use stagecoach_tests::{Deadline, Ended, Group, Hashes, TestJob, corpus, fences, saved, undisturbed, until};

/// The time at which the older group continues.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// After the newer group has acquired the fence, the right to change the job's checkpoints. If a stage blocks in a
    /// call, the test stops no process of the older group. The group therefore misses no heartbeat, and only the fence
    /// can end it.
    Fenced,
    /// After the newer group has committed a checkpoint.
    Committed,
    /// After the newer group has ended.
    Done,
}

/// A case: the older group is stopped or blocked when stage `rank` is in `phase`, and continues at `when`.
#[derive(Clone, Copy, Debug)]
struct AttemptCase {
    phase: Phase,
    rank: usize,
    when: When,
    /// Whether the newer group belongs to a job that was deleted and created again on the same PersistentVolumeClaim.
    is_recreated: bool,
}

impl AttemptCase {
    /// Whether the older group must train until its last step.
    fn ends(self) -> bool {
        matches!(self.phase, Phase::LastSave | Phase::Finish)
    }
}

/// The number of steps of a group that must train until its last step.
const STEPS: u64 = 40;

/// Returns the job of a group. `keep` is the number of checkpoints that the group keeps. For the newer group, `keep` is
/// large: if that group removed checkpoints itself, the test could not detect a removal by the older group.
fn job(keep: u64) -> TestJob {
    // a stage waits this long for its group if another job has already replaced the group
    let restart = "  restart: {startupTimeoutSeconds: 30}\n";
    let extra = format!("  checkpoint: {{everySteps: 4, keepLast: {keep}}}\n{restart}");
    TestJob {
        name: "twice".into(),
        stages: 2,
        layers: 3,
        steps: STEPS,
        decay_steps: Some(STEPS),
        extra,
        ..TestJob::default()
    }
}

/// Returns the files that a group relies on: all files except the fences, since each group has a separate fence.
fn relied_on(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    contents(folder).into_iter().filter(|(path, _)| !path.starts_with("fences")).collect()
}

/// Returns the paths of the files that differ between `before` and `after`.
fn changed(before: &BTreeMap<PathBuf, Vec<u8>>, after: &BTreeMap<PathBuf, Vec<u8>>) -> BTreeSet<PathBuf> {
    let paths: BTreeSet<&PathBuf> = before.keys().chain(after.keys()).collect();
    paths.into_iter().filter(|path| before.get(*path) != after.get(*path)).cloned().collect()
}

/// Returns the attempt of each committed checkpoint, by the name of its folder.
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

/// Returns the files of all committed checkpoints. Excludes the probe, a folder that a starting group writes beside the
/// checkpoints and then removes.
fn checkpoint_files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files_of_checkpoint = |name: String| {
        let files = contents(&folder.join("checkpoints").join(&name));
        files.into_iter().map(move |(path, bytes)| (Path::new(&name).join(path), bytes))
    };
    checkpoints(folder).into_keys().flat_map(files_of_checkpoint).collect()
}

/// The numbers of the attempts. The first group leaves checkpoints that the older group can load. The older group and
/// the newer group run at the same time.
const FIRST: u64 = 1;
const OLDER: u64 = 2;
const NEWER: u64 = 3;

/// An older group that is stopped in a phase, or whose stage is blocked in the phase.
struct Caught {
    workspace: tempfile::TempDir,
    group: Group,
    /// The folder whose files arm, report and release the block.
    records: PathBuf,
}

impl Caught {
    fn folder(&self) -> PathBuf {
        self.workspace.path().join("twice")
    }

    fn resume(&self) {
        block_io::release(&self.records);
        self.group.resume();
    }
}

fn caught(case: AttemptCase) -> Caught {
    let workspace = corpus::workspace();
    let folder = workspace.path().join("twice");
    let records = workspace.path().join("records");
    std::fs::create_dir(&records).unwrap();
    let trains = |group: &mut Group| {
        until("checkpoints", || (group.is_whole() && checkpoints(&folder).len() > 1).then_some(()));
    };
    if case.phase == Phase::Load {
        trains(&mut Group::start(workspace.path(), &job(2).endless(), "a", FIRST));
    }
    let block = IoBlock::new(case.rank as u32, case.phase);
    let fault = block.map(|block| block.to_string()).unwrap_or_default();
    let env = [(FAULT_VARIABLE, fault.as_str()), (RECORDS_VARIABLE, records.to_str().unwrap())];
    let env = if block.is_some() { &env[..] } else { &[] };
    let job = if case.ends() { job(2) } else { job(2).endless() };
    let faulty = Path::new(env!("CARGO_BIN_EXE_faulty"));
    let start = || Group::start_program(faulty, env, workspace.path(), &job, "a", OLDER);
    let mut group;
    if case.ends() || case.phase == Phase::Load {
        block_io::arm(&records);
        group = start();
    } else {
        group = start();
        trains(&mut group);
        block_io::arm(&records);
    }
    match block {
        Some(_) => block_io::held(&records, || group.is_whole()),
        None => assert!(stop_in(group.pids()[case.rank], case.phase, Deadline::start().limit()), "never in {case:?}"),
    }
    if block.is_none() || case.when != When::Fenced {
        group.stop();
    }
    Caught { workspace, group, records }
}

/// Runs the case: starts the newer group, lets the older group continue, and checks the results of both groups.
fn met(case: AttemptCase) {
    let mut older = caught(case);
    let (workspace, folder) = (older.workspace.path(), older.folder());
    let older_fence = fences(&folder);
    // unless the case waits for the newer group's end, that group must still train when the older group continues
    let newer_job = if case.ends() { job(1000) } else { job(1000).ending_after(saved(&folder) + 40) };
    let mut newer = Group::start(workspace, &newer_job, if case.is_recreated { "b" } else { "a" }, NEWER);
    match case.when {
        When::Fenced => until("the newer fence", || {
            let held = fences(&folder);
            (newer.is_whole() && !held.is_empty() && held.is_disjoint(&older_fence)).then_some(())
        }),
        When::Committed => {
            until("a newer checkpoint", || checkpoints(&folder).values().any(|&attempt| attempt == NEWER).then_some(()))
        }
        When::Done => all_done(case, &newer.finish()),
    }
    let (before, committed) = (checkpoint_files(&folder), checkpoints(&folder));
    // if the newer group has ended, only the older group can change the folder from now on
    let everything = (case.when == When::Done).then(|| relied_on(&folder));
    older.resume();
    let ended = older.group.finish();
    report(case, &ended);
    match everything {
        Some(everything) => assert_eq!(changed(&everything, &relied_on(&folder)), BTreeSet::new(), "{case:?}"),
        None => all_done(case, &newer.finish()),
    }

    assert_eq!(Hashes::read(&folder), undisturbed(&newer_job), "{case:?}");
    // the newer group removes nothing, so it must still have every checkpoint from before the older group continued
    let after = checkpoint_files(&folder);
    for (path, bytes) in &before {
        assert!(after.get(path) == Some(bytes), "{case:?}: {}", path.display());
    }
    for (name, attempt) in checkpoints(&folder) {
        assert!(attempt == NEWER || committed.contains_key(&name), "{case:?}: {name} is of attempt {attempt}");
    }
    assert!(files(&folder.join("damaged")).is_empty(), "{case:?}");
    assert_eq!(recorded_steps(&folder), (1..=newer_job.steps).collect::<Vec<_>>(), "{case:?}: metrics.jsonl");
    for Ended { code, termination_message, .. } in &ended {
        assert!(
            code.is_some_and(|code| code != 0),
            "{case:?}: a stage of the older group exited with {code:?}, expected an error: {termination_message}"
        );
    }
}

fn all_done(case: AttemptCase, newer: &[Ended]) {
    for Ended { code, log, .. } in newer {
        assert_eq!(*code, Some(0), "{case:?}: {log}");
    }
}

/// Prints the reasons for the exits of the older group.
fn report(case: AttemptCase, ended: &[Ended]) {
    for (stage, Ended { code, termination_message, .. }) in ended.iter().enumerate() {
        println!(
            "{case:?}: stage {stage} left with {code:?}: {}",
            termination_message["message"].as_str().unwrap_or("no message")
        );
    }
}

/// Runs the cases, one after the other.
fn all(cases: &[(Phase, usize, When)]) {
    for (at, &(phase, rank, when)) in cases.iter().enumerate() {
        met(AttemptCase { phase, rank, when, is_recreated: at % 2 == 1 });
    }
}

#[test]
fn stopped_while_it_trains() {
    all(&[
        (Phase::Forward, 1, When::Fenced),
        (Phase::Forward, 0, When::Done),
        (Phase::Backward, 1, When::Fenced),
        (Phase::Backward, 0, When::Done),
        (Phase::Update, 0, When::Fenced),
        (Phase::Update, 1, When::Committed),
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

/// The sweep, which removes the leftovers of older groups, runs during training: neither loading, nor training, nor the
/// end of training waits for the sweep.
#[test]
fn what_older_groups_left_is_removed_behind_training() {
    let workspace = corpus::workspace();
    let folder = workspace.path().join("twice");
    let left = folder.join("fences/0000.fenced/0123456789abcdef/step-00000009");
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("stage-0.model.safetensors"), "half").unwrap();
    let (records, block) = (workspace.path().join("records"), IoBlock::new(0, Phase::Sweep).unwrap().to_string());
    std::fs::create_dir(&records).unwrap();
    let env = [(FAULT_VARIABLE, block.as_str()), (RECORDS_VARIABLE, records.to_str().unwrap())];
    block_io::arm(&records);
    let faulty = Path::new(env!("CARGO_BIN_EXE_faulty"));
    let mut group = Group::start_program(faulty, &env, workspace.path(), &job(2), "a", FIRST);
    block_io::held(&records, || group.is_whole());
    until("the end of training", || folder.join("result.json").exists().then_some(()));
    assert!(files(&folder.join("fences")).iter().any(|path| path.ends_with("stage-0.model.safetensors")));
    block_io::release(&records);
    // the group ends only after the sweep, so that it leaves no leftovers
    group.finish().iter().for_each(|ended| assert_eq!(ended.code, Some(0), "{}", ended.log));
    assert!(!folder.join("fences/0000.fenced").exists());
}

#[test]
fn stopped_in_its_last_save() {
    all(&[(Phase::LastSave, 0, When::Fenced), (Phase::LastSave, 1, When::Committed), (Phase::LastSave, 0, When::Done)]);
}

#[test]
fn a_result_reported_late_changes_nothing() {
    let case = AttemptCase { phase: Phase::Finish, rank: 0, when: When::Done, is_recreated: true };
    let mut older = caught(case);
    let (workspace, folder) = (older.workspace.path(), older.folder());
    // a user creates the job again with more steps, and the new group commits all of the older group's steps
    let longer = TestJob { steps: STEPS + 40, ..job(1000) };
    all_done(case, &Group::start(workspace, &longer, "b", NEWER).finish());
    let everything = relied_on(&folder);
    older.resume();
    report(case, &older.group.finish());
    assert_eq!(changed(&everything, &relied_on(&folder)), BTreeSet::new());
    assert_eq!(recorded_steps(&folder), (1..=STEPS + 40).collect::<Vec<_>>());
}
