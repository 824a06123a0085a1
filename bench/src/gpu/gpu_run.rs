//! One run of `make gpu`: the device, the remaining time, the omitted measurements, and the jobs of the run.

use std::any::Any;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};
use stagecoach_tests::{Deadline, Group, Launched, Outcome, TestJob, corpus, nccl, stagecoach, until_within};

use crate::stats::line;

/// A GPU, as its driver describes it.
pub(super) struct GpuInfo {
    pub(super) name: String,
    pub(super) driver: String,
}

impl GpuInfo {
    fn find() -> Option<GpuInfo> {
        let query = ["--query-gpu=name,driver_version", "--format=csv,noheader"];
        let output = Command::new("nvidia-smi").args(query).output().ok().filter(|output| output.status.success())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (name, driver) = text.lines().next()?.split_once(", ")?;
        Some(GpuInfo { name: name.to_owned(), driver: driver.to_owned() })
    }
}

/// Whether `nvidia-smi` reports a GPU.
pub(super) fn has_gpu() -> bool {
    GpuInfo::find().is_some()
}

pub(super) struct GpuRun<'a> {
    folder: &'a Path,
    /// The file for the complete output of each failure.
    failures: PathBuf,
    gpu: Option<GpuInfo>,
    deadline: Instant,
    /// The part of `make gpu` that this run currently measures; `None` before the first part.
    part: Mutex<Option<&'static str>>,
    not_measured: Mutex<Vec<Value>>,
    wrong: Mutex<Vec<String>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GpuRun<'_> {
    /// Begins a run. `folder` is the workspace of the timed jobs. Most documents of their corpus are longer than a
    /// sequence, so few sequences contain a document boundary. Attention does not cross a boundary, while MFU counts
    /// the FLOPs of attention without boundaries. Because the boundaries are few, the trainer computes nearly all FLOPs
    /// that MFU counts. The PyTorch model in the comparison computes all of them.
    pub(super) fn begin(folder: &Path, failures: PathBuf, deadline: Instant) -> GpuRun<'_> {
        std::fs::write(folder.join("corpus/long.jsonl"), corpus::jsonl(60, 4000, 7)).unwrap();
        let (part, not_measured, wrong) = Default::default();
        GpuRun { folder, failures, gpu: GpuInfo::find(), deadline, part, not_measured, wrong }
    }

    /// Copies entries of an earlier report: all `wrong` entries, and the `notMeasured` entries except those of the
    /// parts in `again`.
    pub(super) fn keep_earlier(&self, report: &Value, again: &[&str]) {
        let all = |field: &str| report[field].as_array().cloned().unwrap_or_default();
        let stays = |entry: &Value| entry["part"].as_str().is_some_and(|part| !again.contains(&part));
        lock(&self.not_measured).extend(all("notMeasured").into_iter().filter(stays));
        lock(&self.wrong).extend(all("wrong").iter().filter_map(Value::as_str).map(str::to_owned));
    }

    /// Begins a part of `make gpu`. Each later entry about an omitted measurement names this part in the report.
    pub(super) fn begin_part(&self, part: &'static str) {
        *lock(&self.part) = Some(part);
    }

    /// Appends the output of a failure to a file beside the report. The report itself has room only for an excerpt.
    pub(super) fn keep_output(&self, what: &str, output: &str) {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&self.failures);
        let written = file.and_then(|mut file| write!(file, "==== {what}\n{}\n", output.trim_end()));
        if let Err(error) = written {
            eprintln!("{}: {error}", self.failures.display());
        }
    }

    /// Returns the GPU; `None` in a rehearsal, which is a run without a GPU.
    pub(super) fn gpu(&self) -> Option<&GpuInfo> {
        self.gpu.as_ref()
    }

    /// Returns the value of `training.device` for the jobs. With `Cuda`, a job that can't use the GPU fails.
    pub(super) fn device(&self) -> &'static str {
        if self.gpu.is_some() { "Cuda" } else { "Auto" }
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder
    }

    /// Returns the minimum of `seconds` and the remaining seconds.
    pub(super) fn at_most(&self, seconds: u64) -> u64 {
        self.deadline.saturating_duration_since(Instant::now()).as_secs().min(seconds)
    }

    /// Whether `seconds` seconds remain. If not, records that `what` is not measured.
    pub(super) fn has_time_for(&self, what: &str, seconds: u64) -> bool {
        let left = self.at_most(seconds);
        if left < seconds {
            self.not_measured(what, &format!("only {left} s are left"));
        }
        left == seconds
    }

    pub(super) fn not_measured(&self, what: &str, why: &str) {
        line(what, "not measured".into(), why);
        let part = *lock(&self.part);
        lock(&self.not_measured).push(json!({ "part": part, "what": what, "why": why }));
    }

    /// Records an error, which makes the whole run fail at its end.
    pub(super) fn wrong(&self, what: String) {
        lock(&self.wrong).push(what);
    }

    /// Adds the omitted measurements and the errors so far to `report`.
    pub(super) fn tell(&self, report: &mut Value) {
        report["notMeasured"] = json!(*lock(&self.not_measured));
        report["wrong"] = json!(*lock(&self.wrong));
    }

    /// Creates a separate workspace for small jobs (`TestJob`).
    pub(super) fn workspace(&self, name: &str) -> PathBuf {
        let own = self.folder.join(name);
        std::fs::create_dir_all(&own).unwrap();
        corpus::write(&own);
        own
    }

    /// Returns the variables to add to the environment of a job's processes. With the transport NCCL and without a GPU,
    /// a variable lets the dynamic loader find the stand-in for NCCL, a library with NCCL's functions. Otherwise, the
    /// list is empty.
    pub(super) fn environment(&self, transport: &str) -> Vec<(&'static str, String)> {
        let needs_stand_in = self.gpu.is_none() && transport == "Nccl";
        needs_stand_in.then(|| (nccl::LOADER_PATH, nccl::loader_path())).into_iter().collect()
    }

    /// Starts a small job.
    pub(super) fn launch(&self, workspace: &Path, job: &TestJob) -> Launched {
        let file = workspace.join(format!("{}.yaml", job.name));
        std::fs::write(&file, job.yaml()).unwrap();
        self.launch_file(workspace, &file, &job.name, &self.environment(job.transport))
    }

    pub(super) fn launch_file(
        &self,
        workspace: &Path,
        file: &Path,
        name: &str,
        environment: &[(&'static str, String)],
    ) -> Launched {
        let environment: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Launched::start_program(&stagecoach(), workspace, file, workspace.join(name), &[], &environment)
    }

    /// Starts the stages of one attempt of a small job as processes, without the launcher.
    pub(super) fn start_group(&self, workspace: &Path, job: &TestJob, attempt: u64) -> Group {
        let environment = self.environment(job.transport);
        let environment: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Group::start_program(&stagecoach(), &environment, workspace, job, "gpu", attempt)
    }

    /// Runs `work`. If `work` panics, appends the content of `files` to the file of failures, and continues the panic.
    pub(super) fn or_keep_output<T>(&self, what: &str, files: &[PathBuf], work: impl FnOnce() -> T) -> T {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            self.keep_output(what, &read_all(files));
            resume_unwind(panic)
        })
    }

    /// Returns the deadline of work that may take `seconds` seconds, or the run's own deadline if that is earlier.
    pub(super) fn deadline(&self, seconds: u64) -> Deadline {
        Deadline::after(self.at_most(seconds))
    }

    /// Waits for the end of a job.
    ///
    /// # Panics
    /// If the job fails, or if it runs for more than `seconds` seconds or beyond the run's own deadline.
    pub(super) fn finish(&self, launched: Launched, workspace: &Path, seconds: u64) -> Outcome {
        self.or_keep_output(&workspace.display().to_string(), &launcher_files(workspace), || {
            let outcome = launched.finish_before(self.deadline(seconds), workspace);
            assert!(outcome.status.success(), "{}", launcher_said(workspace));
            outcome
        })
    }

    /// Runs a program for at most `seconds` seconds. Returns whether the program succeeded, and its stdout and stderr.
    ///
    /// # Panics
    /// If the program runs for more than `seconds` seconds or beyond the run's own deadline.
    pub(super) fn execute(&self, command: &mut Command, seconds: u64) -> (bool, String, String) {
        let [out, err] = ["program.out", "program.err"].map(|name| self.folder.join(name));
        let [to_out, to_err] = [&out, &err].map(|path| std::fs::File::create(path).unwrap());
        let mut child = command.stdin(Stdio::null()).stdout(to_out).stderr(to_err).spawn().unwrap();
        let ended = attempt(|| {
            until_within("the end of a program", self.at_most(seconds), || child.try_wait().unwrap()).success()
        });
        let _ = child.kill();
        let _ = child.wait();
        let read = |path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        (ended.unwrap_or_else(|late| panic!("{late}:\n{}", read(&err))), read(&out), read(&err))
    }
}

/// Runs `work`. If `work` panics, the error is the shortened message, because a report has no room for whole logs.
pub(super) fn attempt<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| shortened(&panic_message(&*panic)))
}

/// Like [`attempt`], for work that starts a job in this workspace. The error also contains an excerpt of the output of
/// the job's launcher: at most 12 lines, without the lines of steps, saves and the start.
pub(super) fn attempt_in<T>(workspace: &Path, work: impl FnOnce() -> T) -> Result<T, String> {
    attempt(work).map_err(|failure| match launcher_said(workspace) {
        logged if failure.contains(&logged) => failure,
        logged => format!("{failure}\n{logged}"),
    })
}

/// Returns the measurements of `work`, or the message of its panic.
pub(super) fn measured_or_failure(what: &str, work: impl FnOnce() -> Value) -> Value {
    attempt(work).unwrap_or_else(|failure| {
        line(what, "FAILED".into(), failure.lines().next().unwrap_or_default());
        json!({ "failure": failure })
    })
}

/// Returns the files with the output of the last launcher in this workspace.
fn launcher_files(workspace: &Path) -> [PathBuf; 2] {
    ["stdout", "stderr"].map(|name| workspace.join(name))
}

fn read_all(files: &[PathBuf]) -> String {
    files.iter().map(|file| std::fs::read_to_string(file).unwrap_or_default()).collect()
}

/// Returns the launcher's output for a report: an excerpt without the lines of steps, saves and the start.
fn launcher_said(workspace: &Path) -> String {
    let logs = read_all(&launcher_files(workspace));
    let is_reported = |line: &&str| !["page ", "prep ", "step ", "saved "].iter().any(|usual| line.starts_with(usual));
    shortened(&logs.lines().filter(is_reported).collect::<Vec<_>>().join("\n"))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Returns the first line and the last ten lines.
pub(super) fn shortened(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().collect();
    match lines.len() {
        0..=11 => lines.join("\n"),
        count => [&lines[..1], &["..."], &lines[count - 10..]].concat().join("\n"),
    }
}
