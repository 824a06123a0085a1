//! `stagecoach page`. The command only reads a job's folder, so the job may run at the same time.

use std::io;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use stagecoach_dashboard::{StatusSource, serve};
use stagecoach_engine::StageError;
use stagecoach_launcher::JobFolder;

use super::output::print_line;

/// Serve a job's live page for a browser on this machine, until Ctrl-C.
///
/// The page shows curves, the timeline, memory, checkpoints and recoveries. The job may run, be stopped or be finished.
/// `stagecoach run` serves the page of its own job.
#[derive(Debug, Args)]
pub(super) struct PageCommand {
    /// A job's folder, such as `workspace/NAME`.
    folder: PathBuf,
    #[command(flatten)]
    port: PagePort,
}

/// The port of the page.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct PagePort {
    /// The port of 127.0.0.1 at which the page is served; any free port by default.
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub(super) page_port: u16,
}

impl PageCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        let folder = JobFolder::existing(&self.folder)?.ok_or_else(|| {
            let found = if self.folder.exists() { "is no job's folder" } else { "does not exist" };
            StageError::invalid(format!("{} {found}: expected one such as workspace/NAME", self.folder.display()))
        })?;
        serve_until_killed(self.port, |port| serve(folder, StatusSource::Folder, port))
    }
}

/// Serves the page with `serve` at the port, prints the page's address, and waits until a signal ends the process.
///
/// # Errors
/// If the page can't be served.
pub(super) fn serve_until_killed(
    PagePort { page_port }: PagePort,
    serve: impl FnOnce(u16) -> io::Result<String>,
) -> anyhow::Result<()> {
    let address =
        serve(page_port).with_context(|| format!("could not serve the page at port {page_port} of 127.0.0.1"))?;
    print_line(address);
    loop {
        std::thread::park();
    }
}
