//! `stagecoach why`. The command only reads a job's folder, so the job may run at the same time.

use std::path::PathBuf;

use clap::Args;
use stagecoach_launcher::History;

use super::output::print_line;

/// Explain a run's last failure, its consequences and the remedy.
#[derive(Debug, Args)]
pub(super) struct WhyCommand {
    /// A job's folder, such as `workspace/NAME`.
    folder: PathBuf,
}

impl WhyCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        print_line(History::read(&self.folder)?);
        Ok(())
    }
}
