//! The jobs from which the tests derive their jobs.

use stagecoach_api::{ParseError, PipelineJob, parse_with};

pub(crate) const MINIMAL: &str = include_str!("../jobs/minimal.yaml");
pub(crate) const FULL: &str = include_str!("../jobs/full.yaml");
pub(crate) const MIXTURE: &str = include_str!("../jobs/mixture.yaml");
pub(crate) const CUSTOM: &str = include_str!("../jobs/custom.yaml");

/// Reads a job and sets fields of it as `--set` does.
pub(crate) fn with(job: &str, overrides: &[(&str, &str)]) -> Result<PipelineJob, ParseError> {
    let overrides: Vec<_> = overrides.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
    parse_with(job, "job.yaml", &overrides)
}
