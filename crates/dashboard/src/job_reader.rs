//! Reads a job's folder into a [`PageModel`]. The reader writes nothing, and reads each part of the metrics only once.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use stagecoach_api::PipelineJob;
use stagecoach_api::job::TrainingLength;
use stagecoach_checkpoint::{CheckpointError, list, open, paths};
use stagecoach_display::describe_failure;
use stagecoach_launcher::{History, JobFolder, Recovery};
use stagecoach_lifecycle::UnixMillis;
use stagecoach_telemetry::{GroupRecovery, StageTelemetry};

use super::metrics_tail::MetricsTail;
use super::model::{Checkpoint, Checkpoints, FailureRow, PageModel, phases};
use super::step_timeline::StepTimeline;

/// The shortest time between two reads of the folder. A slow folder is read less often, so that the server spends at
/// most a tenth of its time on reads.
const MIN_MODEL_AGE: Duration = Duration::from_millis(500);
/// The interval between checks of the checkpoints' files. A new or removed checkpoint causes an earlier check.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(10);
/// The largest number of checkpoints that the page shows.
const MAX_CHECKPOINTS: usize = 10;

/// The source of the job's status and failures.
#[derive(Clone, Debug)]
pub enum StatusSource {
    /// The launcher's records in the folder.
    Folder,
    /// The telemetry of the leader, and the job. The leader serves the page from its own process.
    Stage(StageTelemetry, Box<PipelineJob>),
}

/// A job's folder, and the state that was read from the folder.
#[derive(Debug)]
pub(super) struct JobReader {
    folder: JobFolder,
    status: StatusSource,
    metrics: MetricsTail,
    timeline: Option<Arc<StepTimeline>>,
    checkpoints: Checkpoints,
    checkpoints_read: Option<(Instant, Vec<u64>)>,
    current: Option<Arc<PageModel>>,
    /// The earliest time at which a request reads the folder again.
    next: Instant,
}

impl JobReader {
    pub(super) fn new(folder: JobFolder, status: StatusSource) -> JobReader {
        JobReader {
            metrics: MetricsTail::new(folder.metrics()),
            folder,
            status,
            timeline: None,
            checkpoints: Checkpoints::default(),
            checkpoints_read: None,
            current: None,
            next: Instant::now(),
        }
    }

    /// Returns the model of the job: the last one if it is recent, otherwise a new one.
    pub(super) fn current(&mut self) -> Arc<PageModel> {
        let started = Instant::now();
        if let Some(current) = self.current.as_ref().filter(|_| started < self.next) {
            return current.clone();
        }
        // The old model holds a reference to the metrics. Without this reference, the read can usually add to the
        // metrics in place and need not copy them.
        self.current = None;
        let model = Arc::new(self.read());
        self.next = Instant::now() + MIN_MODEL_AGE.max(9 * started.elapsed());
        self.current.insert(model).clone()
    }

    fn read(&mut self) -> PageModel {
        let mut problems = Vec::new();
        let metrics = self.metrics.refresh().unwrap_or_else(|error| {
            problems.push(format!("{} can't be read: {error}.", self.folder.metrics().display()));
            Arc::default()
        });
        match metrics.unreadable {
            0 => {}
            1 => problems.push("One line of metrics.jsonl is not the record of a step and is left out.".into()),
            lines => {
                problems.push(format!("{lines} lines of metrics.jsonl are not records of steps and are left out."))
            }
        }
        let shown = self.timeline.as_ref().map(|timeline| timeline.step);
        if metrics.timeline_step() != shown {
            self.timeline = StepTimeline::new(&metrics.timelines(), metrics.timeline_wait).map(Arc::new);
        }
        if let Err(error) = self.read_checkpoints() {
            problems.push(format!("The checkpoints can't be read: {error}."));
        }
        let trained = metrics.last.as_ref().map(|line| line.step);
        let (status_text, failures) = match &self.status {
            StatusSource::Stage(telemetry, _) => {
                (telemetry.status_text(), telemetry.recoveries().iter().rev().map(stage_failure).collect())
            }
            StatusSource::Folder => match History::without_logs(&self.folder, PathBuf::new(), trained) {
                Ok(history) => (history.status_text(), launcher_failures(&history)),
                Err(error) => {
                    problems.push(format!("{error}."));
                    (String::new(), Vec::new())
                }
            },
        };
        let stored = match &self.status {
            StatusSource::Stage(..) => None,
            StatusSource::Folder => self.folder.stored_job(),
        };
        let job = match &self.status {
            StatusSource::Stage(_, job) => Some(&**job),
            StatusSource::Folder => stored.as_ref(),
        };
        let length = job.and_then(|job| job.spec.training.as_ref()?.length());
        PageModel {
            job: job.map_or_else(|| folder_name(&self.folder), |job| job.metadata.name.clone()),
            now: now(),
            status_text,
            problems,
            steps: match length {
                Some(TrainingLength::Steps(steps)) => Some(steps),
                Some(TrainingLength::Epochs(_)) | None => None,
            },
            unigram_entropy: self.folder.summary().and_then(|summary| summary.unigram_entropy),
            memory_limit: job.and_then(|job| job.spec.pipeline.memory_limit.as_ref()?.bytes()),
            metrics,
            timeline: self.timeline.clone(),
            checkpoints: self.checkpoints.clone(),
            failures,
        }
    }

    fn read_checkpoints(&mut self) -> Result<(), CheckpointError> {
        let volume = self.folder.volume();
        let steps = list(&volume)?.steps;
        let is_fresh = |(at, known): &(Instant, Vec<u64>)| at.elapsed() < CHECKPOINT_INTERVAL && *known == steps;
        if self.checkpoints_read.as_ref().is_some_and(is_fresh) {
            return Ok(());
        }
        let newest = steps.iter().take(MAX_CHECKPOINTS).map(|step| self.checkpoint(*step)).collect::<Vec<_>>();
        self.checkpoints = Checkpoints {
            older: steps.len().saturating_sub(newest.len()),
            newest: newest.into_iter().flatten().collect(),
        };
        self.checkpoints_read = Some((Instant::now(), steps));
        Ok(())
    }

    /// Returns the checkpoint of `step`; `None` if the job has pruned the checkpoint during the read.
    fn checkpoint(&self, step: u64) -> Option<Checkpoint> {
        let opened = open(&self.folder.volume(), step);
        let folder = self.folder.root().join(paths::checkpoint_path(step));
        let manifest = std::fs::metadata(folder.join(paths::MANIFEST_FILE));
        if opened.is_err() && !folder.exists() {
            return None;
        }
        Some(Checkpoint {
            step,
            committed_at: manifest.and_then(|found| found.modified()).ok().map(unix_millis),
            bytes: opened.as_ref().ok().map(|checkpoint| checkpoint.manifest().bytes()),
            problem: opened.err().map(|error| error.to_string()),
        })
    }
}

/// Returns the failures that the launcher has recorded.
fn launcher_failures(history: &History) -> Vec<FailureRow> {
    let failures = history.failures().map(|(failure, recovery)| FailureRow {
        failed_at: failure.failed_at,
        cause: match failure.stage() {
            Some(stage) => format!("{stage}: {}", describe_failure(failure)),
            None => describe_failure(failure),
        },
        phases: recovery.map_or_else(Vec::new, |recovery| {
            let ends = [
                ("started again", recovery.started_at),
                ("joined and loaded", recovery.loaded_at),
                ("first step", recovery.first_step_at),
            ];
            phases(failure.failed_at, ends)
        }),
        resumption: recovery.and_then(Recovery::resumption),
    });
    failures.collect()
}

/// Returns a failure that the leader has observed.
fn stage_failure(recovery: &GroupRecovery) -> FailureRow {
    let at = |millis: u64| (millis > 0).then_some(UnixMillis(millis));
    let failed_at = UnixMillis(recovery.lost_at);
    let ends = [
        ("joined", at(recovery.group.joined_at)),
        ("loaded", at(recovery.group.loaded_at)),
        ("first step", at(recovery.group.first_step_at)),
    ];
    FailureRow { failed_at, cause: recovery.cause.clone(), phases: phases(failed_at, ends), resumption: None }
}

fn folder_name(folder: &JobFolder) -> String {
    let root = folder.root().canonicalize().unwrap_or_else(|_| folder.root().to_owned());
    root.file_name().map_or_else(|| "job".into(), |name| name.to_string_lossy().into_owned())
}

fn now() -> UnixMillis {
    unix_millis(SystemTime::now())
}

fn unix_millis(time: SystemTime) -> UnixMillis {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
