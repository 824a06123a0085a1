//! The configuration of a stage whose job names models of the Hugging Face hub. Rank 0, which is stage 0 of the first
//! replica, copies the models to the volume, and all other processes wait for the copy.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use stagecoach_api::PipelineJob;
use stagecoach_api::contract::{FailureKind, StageEnv};
use stagecoach_api::job::TrainingSpec;
use stagecoach_checkpoint::FileSystemVolume;
use stagecoach_data::OnWait;
use stagecoach_engine::StageError;
use stagecoach_launcher::JobFolder;
use stagecoach_planner::{FetchExtent, FetchReports, JobConfig, RemoteModels, check_job, has_remote_models};
use stagecoach_telemetry::TrainingEvent;

use crate::train::StageMonitor;
use crate::train::leave::folder_error;
use crate::train::monitor::REPORT_INTERVAL;
use crate::train::setup::resume::recorded_identity;

/// The interval between two checks of the volume.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Returns the configuration of a job as soon as the volume has the job's models. A request to stop during the wait
/// ends the process.
///
/// # Errors
/// If the job is invalid, if its models can't be fetched, or if rank 0 makes no progress.
pub(crate) fn job_config(job: PipelineJob, env: &StageEnv, monitor: &StageMonitor) -> Result<JobConfig, StageError> {
    let workspace = Path::new(&env.workspace);
    check_job(&job)?;
    if !has_remote_models(&job)? {
        return JobConfig::new(job, workspace);
    }
    let models = match env.rank == 0 && env.spare.is_none() {
        true => fetch(&job, workspace, monitor)?,
        false => wait_for_stage_0(&job, workspace, monitor)?,
    };
    JobConfig::with_models(job, workspace, models)
}

/// Copies the models to the volume. Records their commits before it copies the first file. Only rank 0 calls this.
fn fetch(job: &PipelineJob, workspace: &Path, monitor: &StageMonitor) -> Result<RemoteModels, StageError> {
    monitor.set_activity("fetching the model");
    let folder = workspace.join(job.folder());
    // this call fails if the folder holds anything other than a job, so that such a folder stays unchanged
    JobFolder::open(&folder, None).map_err(folder_error)?;
    let mut shown: Option<Instant> = None;
    let reports = FetchReports {
        on_resolved: &mut |models| models.write(&folder),
        on_progress: &mut |what, done, total| {
            if done < total && shown.is_some_and(|at| at.elapsed() < REPORT_INTERVAL) {
                return;
            }
            shown = Some(Instant::now());
            monitor.preparing(what, done, total);
        },
        on_wait: OnWait::new({
            let monitor = monitor.clone();
            move |sentence| monitor.preparing(sentence, 0, 0)
        }),
    };
    RemoteModels::recorded(job, &folder)?.fetch(job, workspace, needed(job, &folder), reports)
}

/// Returns which files of the job's models are needed. A job that resumes needs its initial weights only if it has
/// frozen weights. Without frozen weights, such a job continues even if the hub has deleted the initial weights.
fn needed(job: &PipelineJob, folder: &Path) -> FetchExtent {
    let has_frozen = job.spec.training.as_ref().is_some_and(TrainingSpec::freezes_weights);
    match recorded_identity(&FileSystemVolume::new(folder)) {
        Some(_) if !has_frozen => FetchExtent::Settings,
        Some(_) | None => FetchExtent::All,
    }
}

/// Waits until rank 0 has copied the models. The start-up timeout counts from the last byte that arrived.
fn wait_for_stage_0(job: &PipelineJob, workspace: &Path, monitor: &StageMonitor) -> Result<RemoteModels, StageError> {
    const WAITING: &str = "waiting for stage 0 to fetch the model";
    monitor.set_activity(WAITING);
    let folder = workspace.join(job.folder());
    let timeout = Duration::from_secs(job.spec.restart.startup_timeout_seconds.into());
    let extent = needed(job, &folder);
    let (mut seen, mut progress_at) = (None, Instant::now());
    loop {
        let models = RemoteModels::recorded(job, &folder)?;
        let bytes = match models.fetched(job, workspace, extent)? {
            Ok(()) => return Ok(models),
            Err(bytes) => bytes,
        };
        if seen != Some(bytes) {
            if seen.is_none() {
                monitor.telemetry().record(&TrainingEvent::Note { message: WAITING.to_owned() });
            }
            (seen, progress_at) = (Some(bytes), Instant::now());
        }
        if progress_at.elapsed() >= timeout {
            let seconds = timeout.as_secs();
            return Err(StageError::new(
                FailureKind::PeerLost,
                format!("stage 0 has not fetched the job's model, and no byte of it has come for {seconds} s"),
            ));
        }
        thread::sleep(POLL_INTERVAL);
    }
}
