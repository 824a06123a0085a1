//! `stagecoach explain`: the documentation of the fields of a job file. The command needs no cluster.

use clap::Args;
use stagecoach_api::explain::Field;
use stagecoach_display::{explain, explain_recursively};

use super::output::{print_line, terminal_width};

/// Show the meaning and the allowed values of a field of a job file, as `kubectl explain` does.
#[derive(Debug, Args)]
pub(super) struct ExplainCommand {
    /// A field, such as `spec.data.paths`; the whole PipelineJob by default.
    field: Option<String>,
    /// Show the names and types of all fields below the field.
    #[arg(long)]
    recursive: bool,
}

impl ExplainCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        let job = Field::pipeline_job();
        let field = job.find(self.field.as_deref().unwrap_or_default())?;
        let text = if self.recursive { explain_recursively } else { explain };
        print_line(text(field, terminal_width()));
        Ok(())
    }
}
