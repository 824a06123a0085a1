//! A job that was stopped before its end. Any number of tests can continue the job, with the faulty trainer or in a
//! damaged folder. The runs of a fixture share the corpus and the token cache. Each run has a copy of the job's folder.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use stagecoach_checkpoint::{FileSystemVolume, list, open, paths};
use stagecoach_test_volumes::VolumeFault;

use crate::faulty::{FAULT_VARIABLE, RECORDS_VARIABLE, StageCall, StageFault, fired, traced};
use crate::{Hashes, Outcome, TestJob, corpus, recorded_state, spawn, until};

/// The number of steps of the job.
pub const STEPS: u64 = 6;
/// The steps of the checkpoints that the job committed before it stopped.
pub const COMMITTED: [u64; 3] = [1, 2, 3];

/// The message of a stage whose port another process took after the launcher had chosen the port.
const PORT_TAKEN: &str = "could not listen at";

/// The workspace of the stopped job, and the results of the undisturbed run.
#[derive(Debug)]
pub struct Fixture {
    /// The program that runs the job.
    pub program: PathBuf,
    workspace: tempfile::TempDir,
    /// The hashes of the undisturbed run.
    pub expected: Hashes,
    /// The calls of the undisturbed run, which started in an empty folder.
    pub first_run: Vec<StageCall>,
}

/// One run of the job.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    /// The name of the job and of its folder.
    pub name: &'a str,
    /// `spec.checkpoint`.
    pub checkpoint: &'a str,
    /// The value of the environment variable `FAULT_VARIABLE`: a fault or a mode, such as `trace`. Empty for no fault.
    pub fault: &'a str,
    /// The number of restarts that the launcher may make.
    pub restarts: u32,
}

/// The results of a run. Dropping this value removes the job's folder.
#[derive(Debug)]
pub struct Ran {
    /// The output and the exit status.
    pub outcome: Outcome,
    /// The job's folder.
    pub folder: PathBuf,
    notes: PathBuf,
}

impl Fixture {
    /// Returns a workspace with the stopped job, trained by the binary `faulty`. Each test process trains the job once,
    /// and keeps the workspace in the folder `scratch`. Every fixture has a copy of that workspace.
    pub fn new(faulty: &str, scratch: &str) -> Fixture {
        type Seed = (PathBuf, Hashes, Vec<StageCall>);
        static SEED: OnceLock<Seed> = OnceLock::new();
        let (seed, expected, first_run) = SEED.get_or_init(|| {
            let fixture = Fixture::trained(faulty);
            let seed = Path::new(scratch).join("fixture");
            let _ = fs::remove_dir_all(&seed);
            copy(fixture.workspace.path(), &seed);
            (seed, fixture.expected, fixture.first_run)
        });
        let workspace = tempfile::tempdir().unwrap();
        copy(seed, workspace.path());
        Fixture { program: faulty.into(), workspace, expected: expected.clone(), first_run: first_run.clone() }
    }

    /// Trains the job undisturbed, and then again up to the commit of step 4, where stage 0 is killed.
    fn trained(faulty: &str) -> Fixture {
        let workspace = corpus::workspace();
        let mut fixture =
            Fixture { program: faulty.into(), workspace, expected: Hashes::default(), first_run: Vec::new() };
        let case =
            Case { name: "", checkpoint: "{everySteps: 1, keepLast: 9, mode: Sync}", fault: "trace", restarts: 0 };
        let undisturbed = fixture.run(&Case { name: "undisturbed", ..case });
        fixture.expected = undisturbed.outcome.hashes();
        fixture.first_run = undisturbed.trace();
        let unfinished = paths::checkpoint_path(COMMITTED.len() as u64 + 1);
        let commit = fixture.first_run.iter().find(|c| c.operation == "rename" && c.path == unfinished).unwrap();
        let fault = StageFault { rank: 0, call: commit.number, fault: VolumeFault::CrashBefore }.to_string();
        let stopped = fixture.run(&Case { name: "killed", fault: &fault, ..case });
        assert!(!stopped.outcome.status.success() && stopped.fired().is_some(), "{}", stopped.outcome.stdout);
        // without `state.json`, the launcher treats each copy as a separate run, so that copies can run at the same
        // time
        fs::remove_file(stopped.folder.join("state.json")).unwrap();
        fs::rename(&stopped.folder, fixture.path("stopped")).unwrap();
        fixture
    }

    /// Returns the path of `name` in the workspace.
    pub fn path(&self, name: &str) -> PathBuf {
        self.workspace.path().join(name)
    }

    /// Creates the folder of job `name` as a copy of the stopped job's folder, and returns its path.
    pub fn stopped(&self, name: &str) -> PathBuf {
        copy(&self.path("stopped"), &self.path(name));
        self.path(name)
    }

    /// Like [`Fixture::stopped`], but the newest checkpoint is damaged, and the folder of an older group in `fences/`
    /// contains files that no later group has removed: half a save, and a damaged checkpoint that the group was moving
    /// to `damaged/`.
    pub fn with_leftovers(&self, name: &str) -> PathBuf {
        let folder = self.stopped(name);
        let shard = folder.join(paths::checkpoint_path(COMMITTED[2])).join(paths::optimizer_file(0));
        flip(&shard);
        let old = folder.join("fences/0000.fenced/0123456789abcdef");
        let held = (format!("damaged-{}", paths::step_dir_name(0)), paths::MANIFEST_FILE.to_owned());
        for (name, file) in [(paths::step_dir_name(9), paths::weights_file(0)), held] {
            fs::create_dir_all(old.join(&name)).unwrap();
            fs::write(old.join(name).join(file), "half").unwrap();
        }
        folder
    }

    /// Writes the job file, and returns its path.
    pub fn job(&self, case: &Case) -> PathBuf {
        let Case { name, checkpoint, restarts, .. } = case;
        let extra = format!(
            "  checkpoint: {checkpoint}\n  restart: {{maxRestarts: {restarts}, backoff: {{initialSeconds: 0}}, \
             terminationTimeoutSeconds: 2}}\n"
        );
        let job = TestJob { name: (*name).into(), stages: 2, layers: 1, steps: STEPS, extra, ..TestJob::default() };
        let file = self.path(&format!("{name}.yaml"));
        fs::write(&file, job.yaml()).unwrap();
        file
    }

    /// Runs the job under the launcher until the launcher ends by itself.
    pub fn run(&self, case: &Case) -> Ran {
        let file = self.job(case);
        self.run_file(case, &file)
    }

    /// Like [`Fixture::run`], with the job file `file`.
    pub fn run_file(&self, case: &Case, file: &Path) -> Ran {
        let (folder, notes) = (self.path(case.name), self.path(&format!("{}.notes", case.name)));
        let mut launcher = Command::new(&self.program);
        launcher.arg("run").arg(file).arg("--workspace").arg(self.workspace.path());
        if !case.fault.is_empty() {
            launcher.env(FAULT_VARIABLE, case.fault).env(RECORDS_VARIABLE, &notes);
        }
        let mut outcome = run_to_its_end(&mut launcher, &notes);
        // if another process took a port, a run without restarts has failed before it trained anything, so the loop
        // runs the command again
        while case.restarts == 0 && !outcome.status.success() && outcome.stdout.contains(PORT_TAKEN) {
            outcome = run_to_its_end(&mut launcher, &notes);
        }
        outcome.result = fs::read(folder.join("result.json")).ok().and_then(|b| serde_json::from_slice(&b).ok());
        Ran { outcome, folder, notes }
    }
}

/// Runs a command and waits for its exit. The output goes to files in the new folder `notes`, since the command would
/// block on a pipe that no process reads.
///
/// # Panics
/// If the command does not end in time. This function kills the command before it panics.
pub fn run_to_its_end(command: &mut Command, notes: &Path) -> Outcome {
    fs::create_dir_all(notes).unwrap();
    let log = |name: &str| File::create(notes.join(name)).unwrap();
    command.stdin(Stdio::null()).stdout(log("stdout")).stderr(log("stderr"));
    let mut child = spawn(command).unwrap();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        until("the launcher's end", || child.try_wait().unwrap())
    }));
    let read = |name: &str| fs::read_to_string(notes.join(name)).unwrap_or_default();
    let Ok(status) = ended else {
        child.kill().unwrap(); // the stages end with their launcher
        child.wait().unwrap();
        panic!("the command did not end:\n{}\n{}", read("stdout"), read("stderr"));
    };
    Outcome { status, stdout: read("stdout"), stderr: read("stderr"), result: None }
}

impl Ran {
    /// Returns the calls of the run, if its fault was `trace`.
    pub fn trace(&self) -> Vec<StageCall> {
        traced(&self.notes)
    }

    /// Returns the call at which the fault occurred, or `None` if it has not occurred.
    pub fn fired(&self) -> Option<StageCall> {
        fired(&self.notes)
    }

    /// Returns the number of groups of the run according to the launcher's record. Attempts that failed because another
    /// process took a port do not count.
    pub fn attempts(&self) -> u64 {
        let taken = self.outcome.stdout.matches(PORT_TAKEN).count() as u64;
        let state = recorded_state(&self.folder);
        state["attempt"]["number"].as_u64().unwrap() + state["budget"]["replaced"].as_u64().unwrap() - taken
    }

    /// Returns the committed steps, newest first.
    ///
    /// # Panics
    /// If a checkpoint is not complete.
    pub fn checkpoints(&self) -> Vec<u64> {
        let volume = FileSystemVolume::new(&self.folder);
        let steps = list(&volume).unwrap().steps;
        steps.iter().for_each(|&step| open(&volume, step).and_then(|loaded| loaded.verify()).unwrap());
        steps
    }

    /// Asserts that the run ended with the hashes of the undisturbed run and a checkpoint of the last step, and that
    /// all committed checkpoints are complete.
    pub fn ended_well(&self, fixture: &Fixture) {
        assert_eq!(self.outcome.hashes(), fixture.expected);
        assert_eq!(self.checkpoints().first(), Some(&STEPS));
        assert!(!self.outcome.stderr.contains("panicked"), "{}", self.outcome.stderr);
    }

    /// Returns the step after which the last attempt resumed, or `None` if it started at step 1.
    pub fn resumed_after(&self) -> Option<u64> {
        let (_, rest) = self.outcome.stdout.rsplit_once("resuming after step ")?;
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().ok()
    }

    /// Asserts that no unfinished files remain, and that `damaged/` contains the checkpoints of exactly these steps.
    pub fn is_tidy(&self, damaged: &[u64]) {
        let mut unfinished = files(&self.folder.join("fences"));
        // the files that the last group published stay until the next group starts
        unfinished
            .retain(|path| !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("rendezvous,")));
        assert!(unfinished.is_empty(), "left in the fences: {unfinished:?}");
        let mut found = files(&self.folder.join("damaged"));
        found.retain(|path| path.ends_with(paths::MANIFEST_FILE));
        let expected = damaged.iter().map(|&step| Path::new("damaged").join(paths::step_dir_name(step)));
        let expected: Vec<PathBuf> = expected.map(|step| self.folder.join(step).join(paths::MANIFEST_FILE)).collect();
        assert_eq!(found, expected);
    }
}

impl Drop for Ran {
    fn drop(&mut self) {
        for folder in [&self.folder, &self.notes] {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Returns the seed of random choices: the value of STAGECOACH_SEED, or 1.
pub fn seed() -> u64 {
    std::env::var("STAGECOACH_SEED").map_or(1, |seed| seed.parse().expect("STAGECOACH_SEED is a whole number"))
}

/// Flips a bit of the last byte of a file.
pub fn flip(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(file, bytes).unwrap();
}

/// Returns the lines of the metrics in a job's folder.
///
/// # Panics
/// If the metrics can't be read.
pub fn records(folder: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the steps that the metrics in a job's folder record.
pub fn recorded_steps(folder: &Path) -> Vec<u64> {
    records(folder).iter().map(|record| record["step"].as_u64().unwrap()).collect()
}

/// Returns every file below a folder, sorted.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    files.sort();
    files
}

/// Returns the content of every file below a folder, by its path in the folder.
pub fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let name = |path: &Path| path.strip_prefix(folder).unwrap().to_owned();
    files(folder).iter().map(|path| (name(path), fs::read(path).unwrap())).collect()
}

/// Copies a folder with its content. Creates `to` if it is missing.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}
