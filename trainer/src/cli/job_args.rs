//! The job file and its overrides, as arguments of the commands.

use std::path::{Path, PathBuf};

use clap::Args;
use stagecoach_api::PipelineJob;
use stagecoach_data::OnWait;
use stagecoach_engine::StageError;
use stagecoach_planner::{JobConfig, RemoteModels};

use super::output::{byte_progress_bar, print_error};

/// The job file and its overrides.
#[derive(Clone, Debug, Args)]
pub(super) struct JobArgs {
    /// A PipelineJob in YAML.
    pub(super) job: PathBuf,
    /// The folder with the corpus, the token cache and the jobs' folders.
    #[arg(long, value_name = "DIR", default_value = "workspace")]
    pub(super) workspace: PathBuf,
    /// Override the job's number of stages.
    #[arg(long, value_name = "N")]
    pub(super) stages: Option<u32>,
    /// Override the number of spares that wait to replace a lost stage.
    #[arg(long, value_name = "N")]
    pub(super) spares: Option<u32>,
    /// Override a field, for example `training.steps=100`; may be repeated.
    #[arg(long = "set", id = "set", value_name = "PATH=VALUE", value_parser = parse_override)]
    pub(super) overrides: Vec<(String, String)>,
}

impl JobArgs {
    /// Reads the job and applies the overrides.
    ///
    /// # Errors
    /// `InvalidConfig` if the file can't be read or is not a PipelineJob.
    pub(super) fn read(&self) -> Result<PipelineJob, StageError> {
        let mut overrides = self.overrides.clone();
        overrides.extend(self.stages.map(|n| ("spec.stages".to_owned(), n.to_string())));
        overrides.extend(self.spares.map(|n| ("spec.spares".to_owned(), n.to_string())));
        read_job(&self.job, &overrides)
    }

    /// Returns the job's configuration. If the job's folder records the commits of its models on the Hugging Face hub,
    /// the configuration uses these commits.
    ///
    /// # Errors
    /// Like [`JobArgs::read`] and [`job_config`].
    pub(super) fn config(&self) -> Result<JobConfig, StageError> {
        let job = self.read()?;
        let known = RemoteModels::recorded(&job, &self.workspace.join(job.folder()))?;
        job_config(job, &self.workspace, known)
    }
}

/// Fetches the settings of a job's models on the Hugging Face hub, without their weights, and returns the configuration
/// of the job in `workspace`. `known` contains the commits of these models that the job's folder records.
///
/// # Errors
/// If the job is invalid, or the settings can't be fetched.
pub(super) fn job_config(job: PipelineJob, workspace: &Path, known: RemoteModels) -> Result<JobConfig, StageError> {
    let bar = byte_progress_bar(0);
    let on_progress = &mut |what: &str, done, total| {
        bar.set_message(what.to_owned());
        bar.set_length(total);
        bar.set_position(done);
    };
    let on_wait = OnWait::without_repetitions(|sentence| print_error(sentence));
    let config = JobConfig::with_settings(job, workspace, known, on_progress, on_wait);
    bar.finish_and_clear();
    config
}

/// The size limit of etcd for one object: a job in a cluster is never larger.
const MAX_JOB_BYTES: u64 = 3 << 19;

/// Reads a job file. `overrides` are pairs of a field's path and its new value.
pub(super) fn read_job(path: &Path, overrides: &[(String, String)]) -> Result<PipelineJob, StageError> {
    let unreadable = |e| StageError::invalid(format!("could not read the job file {}: {e}", path.display()));
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if metadata.is_dir() {
        let name = path.display();
        return Err(StageError::invalid(format!("{name} is a folder: give a job file, such as job.yaml")));
    }
    let bytes = metadata.len();
    if bytes > MAX_JOB_BYTES {
        return Err(StageError::invalid(format!(
            "{} has {bytes} bytes, expected a job file of at most {MAX_JOB_BYTES} bytes: give the path of a job file",
            path.display()
        )));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    stagecoach_api::parse_with(&text, &path.display().to_string(), overrides)
        .map_err(|e| StageError::invalid(e.to_string()))
}

fn parse_override(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((path, value)) if !path.is_empty() => Ok((path.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not PATH=VALUE, for example training.steps=100")),
    }
}

/// Parses a number that is not negative.
pub(super) fn parse_not_negative(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (0.0..=f64::MAX).contains(&number) => Ok(number),
        _ => Err("expected a number, 0 or more".to_owned()),
    }
}
