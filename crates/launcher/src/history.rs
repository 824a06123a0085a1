//! The facts that a job's folder records about its last failure. The module only reads the folder.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use stagecoach_api::job::{RestartSpec, TrainingLength};
use stagecoach_display::{Replicas, Successor};
use stagecoach_lifecycle::{AttemptFailure, InstanceId, JobState, UnixMillis};
use stagecoach_telemetry::StepRecord;

use super::LaunchError;
use super::job_lock::is_locked;
use super::launcher_state::{EarlierFailure, LauncherState, Recovery};
use super::stage_process::{SEPARATOR, end_of_file, place_line, start_line};
use crate::folder::{FolderError, JobFolder};

/// The maximum number of bytes that this module reads from the end of a log or of the metrics.
const TAIL_BYTES: u64 = 16 << 20;

/// A job's last failure, its consequences, and the job's current status. `Display` writes sentences for the user.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The path of the job's folder, as the user wrote it.
    pub(super) folder: PathBuf,
    /// The job's state, as the launcher recorded it; `None` if no launcher has run the job.
    pub(super) state: Option<JobState>,
    /// The recovery from the last failure, if a launcher has recorded it.
    pub(super) recovery: Option<Recovery>,
    /// The number of replicas of the pipeline that train now; 0 if no replica trains.
    pub(super) training_replicas: u32,
    /// The failures before the last one, the newest last.
    pub(super) earlier: Vec<EarlierFailure>,
    /// The log of the process that failed.
    pub(super) log: Option<ProcessLog>,
    /// The process that replaced the failed process.
    pub(super) successor: Option<Successor>,
    /// `restart.maxRestarts`.
    pub(super) max_restarts: u32,
    /// The number of steps that the job trains; `None` if its length is in epochs.
    pub(super) steps: Option<u64>,
    /// The last step that the metrics record.
    pub(super) trained: Option<u64>,
    /// The message of the last difference that an audit found.
    pub(super) audit_difference: Option<String>,
    /// Whether `result.json` exists.
    pub(super) is_finished: bool,
    /// The reason why training ended before its last step, from `result.json`; `None` if training did not end early.
    pub(super) ended_early: Option<String>,
    /// `Some` if a launcher holds the lock, with the launcher's process id if the lock file has one.
    pub(super) running: Option<Option<u32>>,
    /// The time at which the folder was read.
    pub(super) now: UnixMillis,
}

/// The output of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessLog {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

impl History {
    /// Reads a job's folder.
    ///
    /// # Errors
    /// Returns an error if the folder belongs to no job, or can't be read.
    pub fn read(path: &Path) -> Result<History, LaunchError> {
        let Some(folder) = JobFolder::existing(path)? else {
            let found = if path.exists() { "is no job's folder" } else { "does not exist" };
            return Err(FolderError::NotAJob { folder: path.to_owned(), found }.into());
        };
        let trained = last_record(&folder).map(|record| record.step);
        let history = History::without_logs(&folder, path.to_owned(), trained)?;
        let failure = history.last_failure();
        let (log, successor) = (
            failure.and_then(|failure| log_of(&folder, failure)),
            failure.and_then(|failure| successor_of(&folder, failure)),
        );
        let audit_difference = last_audit_difference(&folder);
        Ok(History { log, successor, audit_difference, ..history })
    }

    /// Reads a job's folder without the logs of the stages and without the results of audits. `shown_as` is the
    /// folder's path as the user wrote it, and `trained` is the last step in the metrics.
    ///
    /// # Errors
    /// Returns an error if the folder can't be read.
    pub fn without_logs(folder: &JobFolder, shown_as: PathBuf, trained: Option<u64>) -> Result<History, LaunchError> {
        // The lock is read before the state. A run that ends between the two reads is therefore reported as running,
        // not as a run whose launcher died.
        let running = is_locked(folder)?.then(|| folder.lock_holder());
        let stored = LauncherState::stored(folder)?;
        let (recovery, earlier) = stored.as_ref().map_or((None, Vec::new()), |s| (s.recovery, s.earlier.clone()));
        let training_replicas = stored.as_ref().map_or(0, |stored| stored.training_replicas);
        let state = stored.map(|stored| stored.state);
        let failed_at = state.as_ref().and_then(|state| Some(state.last_failure.as_ref()?.failed_at));
        let job = folder.stored_job();
        let restart = job.as_ref().map_or_else(RestartSpec::default, |job| job.spec.restart.clone());
        let length = job.as_ref().and_then(|job| job.spec.training.as_ref()?.length());
        let summary = folder.summary();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(History {
            folder: shown_as,
            log: None,
            successor: None,
            recovery: recovery.filter(|recovery| failed_at == Some(recovery.failed_at)),
            training_replicas,
            earlier,
            max_restarts: restart.max_restarts,
            steps: length.and_then(|length| match length {
                TrainingLength::Steps(steps) => Some(steps),
                TrainingLength::Epochs(_) => None,
            }),
            trained,
            audit_difference: None,
            is_finished: summary.is_some(),
            ended_early: summary.and_then(|summary| summary.ended_early),
            running,
            now: UnixMillis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)),
            state,
        })
    }

    /// Returns the job's replicas, or `None` if the job has a single one.
    pub(super) fn replicas(&self) -> Option<Replicas> {
        Replicas::of(self.state.as_ref()?.attempt.mesh, self.training_replicas)
    }

    /// Returns the root cause of the last failure, if an attempt has failed.
    fn last_failure(&self) -> Option<&AttemptFailure> {
        self.state.as_ref()?.last_failure.as_ref()
    }

    /// Returns the recorded failures of all runs, the newest first, each with its recovery. The recovery from the last
    /// failure is `None` if no launcher has recorded it.
    pub fn failures(&self) -> impl Iterator<Item = (&AttemptFailure, Option<&Recovery>)> {
        let last = self.last_failure().map(|failure| (failure, self.recovery.as_ref()));
        last.into_iter().chain(self.earlier.iter().rev().map(|earlier| (&earlier.failure, Some(&earlier.recovery))))
    }
}

/// Returns the output of the failed process, from its stage's log, or from the spare's log if the process was a spare.
fn log_of(folder: &JobFolder, failure: &AttemptFailure) -> Option<ProcessLog> {
    let (attempt, rank, incarnation) = (failure.attempt, failure.rank?, failure.incarnation);
    let path = folder.log(&format!("stage-{rank}"));
    if let Some(text) = part_after(&tail(&path).ok()?, &start_line(attempt, incarnation)) {
        return Some(ProcessLog { path, text });
    }
    let line = place_line(attempt, InstanceId { rank, incarnation });
    spare_logs(folder).into_iter().find_map(|(_, path)| {
        let text = part_after(&tail(&path).ok()?, &line)?;
        Some(ProcessLog { path, text })
    })
}

/// Returns the process that replaced the failed process: the next incarnation (process of the same stage and attempt)
/// that has a log.
fn successor_of(folder: &JobFolder, failure: &AttemptFailure) -> Option<Successor> {
    let rank = failure.rank?;
    let start_of_process = |incarnation| start_line(failure.attempt, incarnation);
    let promotion_of_spare = |incarnation| place_line(failure.attempt, InstanceId { rank, incarnation });
    let mut found = Vec::new();
    let mut add = |path: &Path, line_of: &dyn Fn(u32) -> String, successor: Successor| {
        let text = tail(path).unwrap_or_default();
        let incarnations = text.lines().filter_map(|line| incarnation_of(line, line_of));
        found.extend(incarnations.filter(|later| *later > failure.incarnation).map(|later| (later, successor)));
    };
    add(&folder.log(&format!("stage-{rank}")), &start_of_process, Successor::Restarted);
    for (number, path) in spare_logs(folder) {
        add(&path, &promotion_of_spare, Successor::Spare(number));
    }
    found.into_iter().min_by_key(|(incarnation, _)| *incarnation).map(|(_, successor)| successor)
}

/// Returns the incarnation for which `line_of` returns `line`. The incarnation is the last number of such a line.
fn incarnation_of(line: &str, line_of: &dyn Fn(u32) -> String) -> Option<u32> {
    let last_number = line.trim_end_matches(" ---").rsplit(' ').next()?.parse().ok()?;
    (line_of(last_number) == line).then_some(last_number)
}

/// Returns the numbers of the spares and the paths of their logs, in ascending order.
fn spare_logs(folder: &JobFolder) -> Vec<(u32, PathBuf)> {
    let entries = std::fs::read_dir(folder.logs()).into_iter().flatten().flatten();
    let numbered = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let number = name.strip_prefix("spare-")?.strip_suffix(".log")?.parse().ok()?;
        Some((number, entry.path()))
    });
    let mut logs: Vec<(u32, PathBuf)> = numbered.collect();
    logs.sort_unstable();
    logs
}

/// Returns the part of a log from the last occurrence of `line` to the first line of the next process.
fn part_after(log: &str, line: &str) -> Option<String> {
    let lines: Vec<&str> = log.lines().collect();
    let begin = lines.iter().rposition(|found| *found == line)? + 1;
    let own = lines[begin..].iter().take_while(|line| !line.starts_with(SEPARATOR));
    Some(own.fold(String::new(), |text, line| text + line + "\n"))
}

/// Returns the record of the last step in the metrics. Skips a last line that is incomplete.
pub(super) fn last_record(folder: &JobFolder) -> Option<StepRecord> {
    tail(&folder.metrics()).ok()?.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

/// Returns the message of the last difference that an audit found.
fn last_audit_difference(folder: &JobFolder) -> Option<String> {
    let metrics = tail(&folder.metrics()).ok()?;
    let found = metrics.lines().rev().filter(|line| line.contains("\"difference\""));
    let record = found.filter_map(|line| serde_json::from_str::<StepRecord>(line).ok());
    record.filter_map(|record| Some(record.audit?.difference?.message)).next()
}

/// Reads the last [`TAIL_BYTES`] bytes of a file.
fn tail(path: &Path) -> io::Result<String> {
    end_of_file(path, 0, TAIL_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_its_part_of_the_log() {
        let log = "--- attempt 1 ---\na\n--- attempt 1, incarnation 1 ---\nb\nc\n--- attempt 2 ---\nd\n";
        let part = |line: &str| part_after(log, line);
        assert_eq!(part(&start_line(1, 0)).as_deref(), Some("a\n"));
        assert_eq!(part(&start_line(1, 1)).as_deref(), Some("b\nc\n"));
        assert_eq!(part(&start_line(2, 0)).as_deref(), Some("d\n"));
        assert_eq!(part(&start_line(3, 0)), None);
    }
}
