//! The configuration of a recorded job, and notes that explain waits, such as a wait for the hub.

use std::path::Path;

use stagecoach_api::PipelineJob;
use stagecoach_data::{OnWait, PrepareProgress};
use stagecoach_engine::StageError;
use stagecoach_planner::{JobConfig, RemoteModels};
use stagecoach_telemetry::{ProgressDisplay, TrainingEvent};

/// Returns the configuration of `job`. The settings of the job's hub models come from the commits that are recorded in
/// the job's folder, `recorded_in`.
///
/// # Errors
/// Returns an error if the job is invalid, or the settings can't be fetched.
pub(crate) fn job_config(
    job: PipelineJob,
    workspace: &Path,
    recorded_in: &Path,
    display: &mut ProgressDisplay,
) -> Result<JobConfig, StageError> {
    let known = RemoteModels::recorded(&job, recorded_in)?;
    let on_progress = &mut |what: &str, done, total| {
        display.update(&TrainingEvent::Preparing { what: what.to_owned(), done, total });
    };
    JobConfig::with_settings(job, workspace, known, on_progress, waits_as_notes())
}

/// Shows the progress of a pass over the corpus.
pub(crate) fn show_progress(display: &mut ProgressDisplay, progress: PrepareProgress) {
    let PrepareProgress { phase, bytes_done, bytes_total } = progress;
    display.update(&TrainingEvent::Preparing { what: phase.to_owned(), done: bytes_done, total: bytes_total });
}

/// Returns a receiver that shows the reasons for waits, such as a hub's rate limit, as notes.
pub(crate) fn waits_as_notes() -> OnWait {
    OnWait::without_repetitions(|sentence| {
        ProgressDisplay::notes().update(&TrainingEvent::Note { message: sentence.to_owned() });
    })
}
