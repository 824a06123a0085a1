//! The configuration of a recorded job.

use std::path::Path;

use stagecoach_api::PipelineJob;
use stagecoach_data::OnWait;
use stagecoach_engine::StageError;
use stagecoach_planner::{FetchExtent, FetchReports, JobConfig, RemoteModels};
use stagecoach_telemetry::{ProgressDisplay, TrainingEvent};

/// The configuration of `job`, with the settings of its models of the hub at the commits that the record in
/// `recorded_in` has.
///
/// # Errors
/// If the job is invalid, or the settings can't be fetched.
pub(crate) fn job_config(
    job: PipelineJob,
    workspace: &Path,
    recorded_in: &Path,
    display: &mut ProgressDisplay,
) -> Result<JobConfig, StageError> {
    let reports = FetchReports {
        on_resolved: &mut |_| Ok(()),
        on_progress: &mut |what, done, total| {
            display.update(&TrainingEvent::Preparing { what: what.to_owned(), done, total });
        },
        on_wait: OnWait::default(),
    };
    let models = RemoteModels::recorded(recorded_in)?.fetch(&job, workspace, FetchExtent::Settings, reports)?;
    JobConfig::with_models(job, workspace, models)
}
