//! `stagecoach run` as a child process of the test.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use stagecoach_test_wait::{Deadline, is_gone, spawn, until, until_deadline, until_or_tell};

use crate::{Hashes, TestJob};

/// Returns the path of the binary under test. The binary is in the folder of the running program, or in the folder
/// above.
pub fn stagecoach() -> PathBuf {
    built("stagecoach")
}

/// Returns the path of the entry point of the trainer's image, found like [`stagecoach()`].
pub fn entrypoint() -> PathBuf {
    built("stagecoach-entrypoint")
}

fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let mut built = own.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    built.find(|path| path.is_file()).unwrap_or_else(|| panic!("{name} is not built: run `cargo build` first"))
}

/// Runs the binary under test. Returns the exit code, and stdout followed by stderr.
pub fn run(arguments: &[&str]) -> (Option<i32>, String) {
    run_command(Command::new(stagecoach()).args(arguments))
}

/// Like [`run`], but returns only stderr, to which a refused command writes its error.
pub fn refusal(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(stagecoach()).args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Like [`run`], with the command `command`.
pub fn run_command(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.code(), printed)
}

/// Returns the last lines of the output of a launcher and its stages, and the state of each stage's threads.
fn standstill(launcher: u32, folder: &Path, workspace: &Path) -> String {
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let end = |text: &str| {
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    };
    let mut printed = format!(":\nlauncher:\n{}\n", end(&read(workspace.join("stdout"))));
    for entry in std::fs::read_dir(folder.join("logs")).into_iter().flatten().flatten() {
        printed += &format!("{}:\n{}\n", entry.path().display(), end(&read(entry.path())));
    }
    for pid in stages(launcher) {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let task = |task: std::fs::DirEntry| {
            ["comm", "wchan", "syscall"].map(|file| read(task.path().join(file)).trim().to_owned()).join(" ")
        };
        printed += &format!("process {pid}:\n{}\n", tasks.map(task).collect::<Vec<_>>().join("\n"));
    }
    printed
}

/// A running launcher. Dropping this value kills the launcher and its stages.
#[derive(Debug)]
pub struct Launched {
    /// The launcher's process.
    pub child: Child,
    folder: PathBuf,
}

/// The results of a finished launcher.
#[derive(Debug)]
pub struct Outcome {
    /// The exit status.
    pub status: ExitStatus,
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
    /// `result.json`, if the job finished.
    pub result: Option<Value>,
}

impl Launched {
    /// Starts `job` in `workspace`.
    pub fn start(workspace: &Path, job: &TestJob, arguments: &[&str]) -> Launched {
        Launched::start_with(workspace, job, arguments, &[])
    }

    /// Like [`Launched::start`], with additional environment variables for the launcher.
    pub fn start_with(workspace: &Path, job: &TestJob, arguments: &[&str], environment: &[(&str, &str)]) -> Launched {
        let file = workspace.join(format!("{}.yaml", job.name));
        std::fs::write(&file, job.yaml()).unwrap();
        let own = job.environment();
        let own = own.iter().map(|(name, value)| (*name, value.as_str()));
        let environment: Vec<_> = own.chain(environment.iter().copied()).collect();
        let folder = workspace.join(&job.name);
        Launched::start_program(&stagecoach(), workspace, &file, folder, arguments, &environment)
    }

    /// Starts the job in `file`. The job's folder is `folder`.
    pub fn start_file(workspace: &Path, file: &Path, folder: PathBuf, arguments: &[&str]) -> Launched {
        Launched::start_program(&stagecoach(), workspace, file, folder, arguments, &[])
    }

    /// Like [`Launched::start_file`], with the binary `program` and these environment variables.
    pub fn start_program(
        program: &Path,
        workspace: &Path,
        file: &Path,
        folder: PathBuf,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Launched {
        // the output goes to files, since the launcher would block on a pipe that no process reads
        let log = |name: &str| std::fs::File::create(workspace.join(name)).unwrap();
        let mut command = Command::new(program);
        command.arg("run").arg(file).arg("--workspace").arg(workspace).args(arguments);
        command.envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(log("stdout")).stderr(log("stderr"));
        Launched { child: spawn(&mut command).unwrap(), folder }
    }

    /// Waits for the launcher's exit.
    pub fn finish(self, workspace: &Path) -> Outcome {
        self.finish_before(Deadline::start(), workspace)
    }

    /// Waits for the launcher's exit.
    ///
    /// # Panics
    /// If the launcher still runs at the deadline.
    pub fn finish_before(mut self, deadline: Deadline, workspace: &Path) -> Outcome {
        let (pid, folder) = (self.child.id(), &self.folder);
        let details = || standstill(pid, folder, workspace);
        let status = until_deadline("the launcher's end", &deadline, || self.child.try_wait().unwrap(), details);
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let result = serde_json::from_str(&read(self.folder.join("result.json"))).ok();
        Outcome { status, stdout: read(workspace.join("stdout")), stderr: read(workspace.join("stderr")), result }
    }

    /// Waits until the metrics contain step `step`.
    pub fn wait_for_step(&mut self, step: u64) {
        until(&format!("step {step}"), || {
            let ended = self.child.try_wait().unwrap();
            let printed = || std::fs::read_to_string(self.folder.with_file_name("stdout")).unwrap_or_default();
            assert!(ended.is_none(), "the launcher ended before step {step}: {}", printed());
            (self.steps() >= step).then_some(())
        });
    }

    /// Returns the number of steps in the metrics.
    pub fn steps(&self) -> u64 {
        std::fs::read_to_string(self.folder.join("metrics.jsonl")).map_or(0, |lines| lines.lines().count() as u64)
    }

    /// Waits until the job has trained a step after a failure, in a new group of the attempt or in a new attempt.
    pub fn wait_for_restart(&mut self, workspace: &Path) {
        until("the next attempt to train", || {
            assert!(self.child.try_wait().unwrap().is_none(), "the launcher ended before the next attempt trained");
            let printed = std::fs::read_to_string(workspace.join("stdout")).unwrap();
            let (_, restarted) = printed.rsplit_once(" restarts left; ")?;
            restarted.contains("\nstep ").then_some(())
        });
    }

    /// Stops the launcher as Ctrl-C does, after which the job saves a checkpoint.
    ///
    /// # Panics
    /// If the launcher's exit code is not that of a stopped run.
    pub fn interrupt(self, workspace: &Path) -> Outcome {
        signal(self.child.id(), libc::SIGINT);
        let outcome = self.finish(workspace);
        assert_eq!(outcome.status.code(), Some(143), "{}\n{}", outcome.stdout, outcome.stderr);
        outcome
    }

    /// Kills the launcher, and waits until its stages have ended.
    pub fn kill(mut self) {
        let stages = self.stages();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        until("the stages' end", || stages.iter().all(|&pid| is_gone(pid)).then_some(()));
    }

    /// Returns the process ids of the stages by rank; see [`stages`].
    pub fn stages(&self) -> Vec<u32> {
        stages(self.child.id())
    }

    /// Waits until `count` stages run, so that every lost stage is replaced. Returns their process ids by rank.
    pub fn wait_for_stages(&self, count: usize) -> Vec<u32> {
        until("all stages", || Some(self.stages()).filter(|stages| stages.len() == count))
    }

    /// Returns the process ids of the spares that have not replaced a stage.
    pub fn waiting_spares(&self) -> Vec<u32> {
        waiting_spares(self.child.id())
    }

    /// Waits until a spare whose process id is not in `others` stands by. Returns its process id.
    pub fn wait_for_spare(&self, workspace: &Path, others: &[u32]) -> u32 {
        let standing_by = || {
            let printed = std::fs::read_to_string(workspace.join("stdout")).unwrap();
            let standing = printed.matches(" stands by").count();
            let spare = self.waiting_spares().into_iter().find(|spare| !others.contains(spare))?;
            (standing > others.len()).then_some(spare)
        };
        let details = || standstill(self.child.id(), &self.folder, workspace);
        until_or_tell("a spare that stands by", standing_by, details)
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        let _ = self.child.kill(); // the stages end with their launcher
        let _ = self.child.wait();
    }
}

impl Outcome {
    /// Returns the hashes of the run without its receipt, because the receipt also depends on the origin of the initial
    /// weights.
    ///
    /// # Panics
    /// If the run did not finish.
    pub fn numbers(&self) -> Hashes {
        Hashes { receipt: String::new(), ..self.hashes() }
    }

    /// Returns the hashes of the run.
    ///
    /// # Panics
    /// If the run did not finish.
    pub fn hashes(&self) -> Hashes {
        assert!(self.status.success(), "{}\n{}", self.stdout, self.stderr);
        Hashes::of(self.result.as_ref().expect("result.json of a finished job"))
    }
}

/// Returns the process ids of a launcher's stages by rank, from the kernel's list of processes. A spare that replaced
/// stage 0 comes first. Other spares that replaced a stage come last.
pub fn stages(launcher: u32) -> Vec<u32> {
    let rank_of = |pid, spare: bool, rank: Option<usize>| match has_thread(pid, "group-accept") {
        true => Some(0),
        // a waiting spare is not a member of a group
        false if spare => has_thread(pid, "group-receive").then_some(usize::MAX),
        false => rank,
    };
    let processes = children(launcher);
    let ranked = processes.into_iter().filter_map(|(pid, environment)| {
        let rank = environment.get("RANK").and_then(|rank| rank.parse().ok());
        Some((rank_of(pid, environment.contains_key("STAGECOACH_SPARE"), rank)?, pid))
    });
    let mut stages: Vec<(usize, u32)> = ranked.collect();
    stages.sort_unstable();
    stages.into_iter().map(|(_, pid)| pid).collect()
}

/// Returns the process ids of a launcher's spares that have not replaced a stage, by the number of the spare.
pub fn waiting_spares(launcher: u32) -> Vec<u32> {
    let waits = |pid: u32| !has_thread(pid, "group-receive") && !has_thread(pid, "group-accept");
    let numbered = children(launcher).into_iter().filter_map(|(pid, environment)| {
        let number: u32 = environment.get("STAGECOACH_SPARE")?.parse().ok()?;
        waits(pid).then_some((number, pid))
    });
    let mut spares: Vec<(u32, u32)> = numbered.collect();
    spares.sort_unstable();
    spares.into_iter().map(|(_, pid)| pid).collect()
}

/// Returns the first child of a process, or `None` as long as it has no child.
pub fn only_child(of: u32) -> Option<u32> {
    children(of).first().map(|(pid, _)| *pid)
}

/// Returns the children of a process, with their initial environment variables.
fn children(of: u32) -> Vec<(u32, BTreeMap<String, String>)> {
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let parent: Option<u32> = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        if parent != Some(of) {
            continue;
        }
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let variables = environment.split(|&byte| byte == 0).filter_map(|variable| {
            let (name, value) = std::str::from_utf8(variable).ok()?.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        });
        children.push((pid, variables.collect()));
    }
    children
}

/// Whether a process has a thread of this name.
fn has_thread(pid: u32, name: &str) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .into_iter()
        .any(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name))
}

/// Returns the steps of the checkpoints in a job's folder, ascending.
pub fn checkpoints(folder: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(folder.join("checkpoints")).into_iter().flatten().flatten();
    let step = |name: &str| name.strip_prefix("step-")?.parse().ok();
    let mut steps: Vec<u64> = entries.filter_map(|entry| step(&entry.file_name().to_string_lossy())).collect();
    steps.sort_unstable();
    steps
}

/// Returns the step of the newest checkpoint in a job's folder, or 0 without a checkpoint.
pub fn saved(folder: &Path) -> u64 {
    checkpoints(folder).last().copied().unwrap_or(0)
}

/// Returns the names of the fences in a job's folder that groups hold.
pub fn fences(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder.join("fences")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|name| !name.contains('.')).collect()
}

/// Sends a signal to a process that the test started.
///
/// # Panics
/// If the process or the signal does not exist.
pub fn signal(pid: u32, signal: i32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::from_named_raw(signal).unwrap()).unwrap();
}

/// Returns the state of the job that the launcher has recorded in the job's folder.
pub fn recorded_state(folder: &Path) -> Value {
    let record = std::fs::read(folder.join("state.json")).unwrap();
    serde_json::from_slice::<Value>(&record).unwrap()["state"].take()
}

/// Asserts that the run's output contains `words`.
pub fn says(outcome: &Outcome, words: &str) {
    let printed = outcome.stdout.clone() + &outcome.stderr;
    assert!(printed.contains(words), "no {words:?} in\n{printed}");
}
