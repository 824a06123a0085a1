//! Reading a job file, as every command does.

use std::path::{Path, PathBuf};

use clap::Args;
use stagecoach_api::PipelineJob;

use crate::fatal::Fatal;

/// The job file, and what the command line changes in it.
#[derive(Clone, Debug, Args)]
pub(super) struct JobArgs {
    /// A PipelineJob in YAML.
    pub(super) job: PathBuf,
    /// The volume: corpus, caches and results.
    #[arg(long, value_name = "DIR", default_value = "workspace")]
    pub(super) workspace: PathBuf,
    /// Stages instead of the job's.
    #[arg(long, value_name = "N")]
    pub(super) stages: Option<u32>,
    /// Sets a field, for example `training.steps=100`; may be repeated.
    #[arg(long = "set", value_name = "PATH=VALUE", value_parser = assignment)]
    pub(super) set: Vec<(String, String)>,
}

impl JobArgs {
    /// The job, with the command line's changes.
    ///
    /// # Errors
    /// A file that can't be read, or is no PipelineJob: exit 78.
    pub(super) fn read(&self) -> Result<PipelineJob, Fatal> {
        let mut overrides = self.set.clone();
        overrides.extend(self.stages.map(|n| ("spec.stages".to_owned(), n.to_string())));
        job(&self.job, &overrides)
    }
}

/// Reads a job file.
pub(super) fn job(path: &Path, overrides: &[(String, String)]) -> Result<PipelineJob, Fatal> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Fatal::invalid(format!("could not read the job file {}: {e}", path.display())))?;
    stagecoach_api::parse_with(&text, &path.display().to_string(), overrides).map_err(|e| Fatal::invalid(e.to_string()))
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((path, value)) if !path.is_empty() => Ok((path.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not PATH=VALUE, for example training.steps=100")),
    }
}
