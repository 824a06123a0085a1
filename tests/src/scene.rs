//! A job that was stopped half-way, to be gone on with as often as one likes: by the faulty trainer, or in a folder
//! that was damaged. Its runs share the corpus and its tokens; each has a copy of the job's folder.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use stagecoach_checkpoint::{FileSystemVolume, list, open, paths};
use stagecoach_test_volumes::VolumeFault;

use crate::faulty::{FAULT_VARIABLE, RECORDS_VARIABLE, StageCall, StageFault, fired, traced};
use crate::{Hashes, Outcome, TestJob, corpus, until};

/// Steps of the job.
pub const STEPS: u64 = 6;
/// The checkpoints that were committed when the job stopped, each by its own save.
pub const COMMITTED: [u64; 3] = [1, 2, 3];

/// The message of a stage whose port another process took between its choice and its use.
const PORT_TAKEN: &str = "could not listen at";

/// The workspace, and what the undisturbed run came to.
#[derive(Debug)]
pub struct Scene {
    /// The program that runs the job.
    pub program: PathBuf,
    workspace: tempfile::TempDir,
    /// Its hashes.
    pub expected: Hashes,
    /// The undisturbed run's calls: it found nothing there.
    pub afresh: Vec<StageCall>,
}

/// One run of the job.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    /// Names the job and so its folder.
    pub name: &'a str,
    /// `spec.checkpoint`.
    pub checkpoint: &'a str,
    /// A fault, or `trace`; none if empty.
    pub fault: &'a str,
    /// Restarts that are allowed.
    pub restarts: u32,
}

/// The results of a run. Its folder is removed with them.
#[derive(Debug)]
pub struct Ran {
    /// Its output and its exit status.
    pub outcome: Outcome,
    /// The job's folder.
    pub folder: PathBuf,
    notes: PathBuf,
}

impl Scene {
    /// A workspace with the job in it that `faulty`, that binary, was stopped in. It is trained once in a process, in a
    /// folder of `scratch`; every scene has a copy.
    pub fn new(faulty: &str, scratch: &str) -> Scene {
        type Seed = (PathBuf, Hashes, Vec<StageCall>);
        static SEED: OnceLock<Seed> = OnceLock::new();
        let (seed, expected, afresh) = SEED.get_or_init(|| {
            let scene = Scene::trained(faulty);
            let seed = Path::new(scratch).join("scene");
            let _ = fs::remove_dir_all(&seed);
            copy(scene.workspace.path(), &seed);
            (seed, scene.expected, scene.afresh)
        });
        let workspace = tempfile::tempdir().unwrap();
        copy(seed, workspace.path());
        Scene { program: faulty.into(), workspace, expected: expected.clone(), afresh: afresh.clone() }
    }

    /// Trains undisturbed, then again up to the commit of step 4, where a stage is killed.
    fn trained(faulty: &str) -> Scene {
        let workspace = corpus::workspace();
        let mut scene = Scene { program: faulty.into(), workspace, expected: Hashes::default(), afresh: Vec::new() };
        let case =
            Case { name: "", checkpoint: "{everySteps: 1, keepLast: 9, mode: Sync}", fault: "trace", restarts: 0 };
        let undisturbed = scene.run(&Case { name: "undisturbed", ..case });
        scene.expected = undisturbed.outcome.hashes();
        scene.afresh = undisturbed.trace();
        let unfinished = paths::checkpoint_path(COMMITTED.len() as u64 + 1);
        let commit = scene.afresh.iter().find(|c| c.operation == "rename" && c.path == unfinished).unwrap();
        let fault = StageFault { rank: 0, call: commit.number, fault: VolumeFault::CrashBefore }.to_string();
        let stopped = scene.run(&Case { name: "killed", fault: &fault, ..case });
        assert!(!stopped.outcome.status.success() && stopped.fired().is_some(), "{}", stopped.outcome.stdout);
        // another run, as far as the launcher knows: so its copies may run side by side
        fs::remove_file(stopped.folder.join("state.json")).unwrap();
        fs::rename(&stopped.folder, scene.path("stopped")).unwrap();
        scene
    }

    /// Paths in the workspace.
    pub fn path(&self, name: &str) -> PathBuf {
        self.workspace.path().join(name)
    }

    /// The folder of job `name`: a copy of the one that was stopped.
    pub fn stopped(&self, name: &str) -> PathBuf {
        copy(&self.path("stopped"), &self.path(name));
        self.path(name)
    }

    /// The same, with its newest checkpoint damaged, and with what a group leaves that was fenced off long ago and
    /// never swept: half a save, and a damaged checkpoint on its way out.
    pub fn mess(&self, name: &str) -> PathBuf {
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

    /// Writes the job file.
    pub fn job(&self, case: &Case) -> PathBuf {
        let Case { name, checkpoint, restarts, .. } = case;
        let extra = format!(
            "  checkpoint: {checkpoint}\n  restart: {{maxRestarts: {restarts}, backoff: {{initialSeconds: 0}}, terminationTimeoutSeconds: 2}}\n"
        );
        let job = TestJob { name: (*name).into(), stages: 2, layers: 1, steps: STEPS, extra, ..TestJob::default() };
        let file = self.path(&format!("{name}.yaml"));
        fs::write(&file, job.yaml()).unwrap();
        file
    }

    /// Runs the job under the launcher until that ends by itself.
    pub fn run(&self, case: &Case) -> Ran {
        let file = self.job(case);
        self.run_file(case, &file)
    }

    /// The same, with a job file of one's own.
    pub fn run_file(&self, case: &Case, file: &Path) -> Ran {
        let (folder, notes) = (self.path(case.name), self.path(&format!("{}.notes", case.name)));
        let mut launcher = Command::new(&self.program);
        launcher.arg("run").arg(file).arg("--workspace").arg(self.workspace.path());
        if !case.fault.is_empty() {
            launcher.env(FAULT_VARIABLE, case.fault).env(RECORDS_VARIABLE, &notes);
        }
        let mut outcome = finish(&mut launcher, &notes);
        // if another process took the port, and there was no other attempt, then nothing has happened so far
        while case.restarts == 0 && !outcome.status.success() && outcome.stdout.contains(PORT_TAKEN) {
            outcome = finish(&mut launcher, &notes);
        }
        outcome.result = fs::read(folder.join("result.json")).ok().and_then(|b| serde_json::from_slice(&b).ok());
        Ran { outcome, folder, notes }
    }
}

/// Runs a command to its end. What it says goes through files in `notes`, which is made: a pipe that nobody reads would
/// stop it.
///
/// # Panics
/// If it doesn't end; it is killed then.
pub fn finish(command: &mut Command, notes: &Path) -> Outcome {
    fs::create_dir_all(notes).unwrap();
    let log = |name: &str| File::create(notes.join(name)).unwrap();
    command.stdin(Stdio::null()).stdout(log("stdout")).stderr(log("stderr"));
    let mut child = command.spawn().unwrap();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        until("the launcher's end", 120, || child.try_wait().unwrap())
    }));
    let read = |name: &str| fs::read_to_string(notes.join(name)).unwrap_or_default();
    let Ok(status) = ended else {
        child.kill().unwrap(); // its stages follow
        child.wait().unwrap();
        panic!("it did not end:\n{}\n{}", read("stdout"), read("stderr"));
    };
    Outcome { status, stdout: read("stdout"), stderr: read("stderr"), result: None }
}

impl Ran {
    /// The calls, if they were to be traced.
    pub fn trace(&self) -> Vec<StageCall> {
        traced(&self.notes)
    }

    /// The place of the fault.
    pub fn fired(&self) -> Option<StageCall> {
        fired(&self.notes)
    }

    /// How many times the group was formed or started, by the launcher's own record, not counting those that found
    /// their port taken.
    pub fn attempts(&self) -> u64 {
        let record: serde_json::Value =
            serde_json::from_slice(&fs::read(self.folder.join("state.json")).unwrap()).unwrap();
        let taken = self.outcome.stdout.matches(PORT_TAKEN).count() as u64;
        let state = &record["state"];
        state["attempt"]["number"].as_u64().unwrap() + state["budget"]["replaced"].as_u64().unwrap() - taken
    }

    /// The committed steps, newest first.
    ///
    /// # Panics
    /// If one is not whole.
    pub fn checkpoints(&self) -> Vec<u64> {
        let volume = FileSystemVolume::new(&self.folder);
        let steps = list(&volume).unwrap().steps;
        steps.iter().for_each(|&step| open(&volume, step).and_then(|loaded| loaded.verify()).unwrap());
        steps
    }

    /// Asserts that nothing of the disturbance is left in the numbers, and that what is committed is whole.
    pub fn ended_well(&self, scene: &Scene) {
        assert_eq!(self.outcome.hashes(), scene.expected);
        assert_eq!(self.checkpoints().first(), Some(&STEPS));
        assert!(!self.outcome.stderr.contains("panicked"), "{}", self.outcome.stderr);
    }

    /// The step that the last attempt went on after; none if it began.
    pub fn went_on_after(&self) -> Option<u64> {
        let (_, rest) = self.outcome.stdout.rsplit_once("going on after step ")?;
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().ok()
    }

    /// Asserts that nothing unfinished lies about, and that these steps are in `damaged/` and no others.
    pub fn is_tidy(&self, damaged: &[u64]) {
        let mut unfinished = files(&self.folder.join("fences"));
        // what the last group published stays until the next one begins
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

/// Runs `check` on every item, a few at a time, with a line of progress now and then.
///
/// # Panics
/// In the end, if a check did.
pub fn each<T: Sync>(what: &str, threads: usize, items: &[T], check: impl Fn(usize, &T) + Sync) {
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::SeqCst);
                    let Some(item) = items.get(at) else { return };
                    if at % 50 == 0 {
                        println!("{what}: {at} of {}", items.len());
                    }
                    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(at, item)));
                    failed.fetch_add(usize::from(checked.is_err()), Ordering::SeqCst);
                }
            });
        }
    });
    let failed = failed.into_inner();
    assert_eq!(failed, 0, "{what}: {failed} of {} failed, see above", items.len());
}

/// The seed of what is drawn, which STAGECOACH_SEED changes.
pub fn seed() -> u64 {
    std::env::var("STAGECOACH_SEED").map_or(1, |seed| seed.parse().expect("STAGECOACH_SEED is a whole number"))
}

/// Changes the last bit of a file.
pub fn flip(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(file, bytes).unwrap();
}

/// Every file below a folder, sorted.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    files.sort();
    files
}

/// Copies a folder with all that is in it; `to` is made if it is not there.
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
