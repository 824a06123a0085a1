//! `stagecoach top`. It reads jobs' folders and writes nothing, so that the jobs may run meanwhile.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use stagecoach_display::{top, watch};

use super::output::print_line;
use crate::folder::JobFolder;
use crate::launch::top_row;
use crate::stage_error::StageError;

/// Show the jobs of a workspace, a line each: phase, steps, loss, speed, stages, restarts, checkpoint, slowest stage.
#[derive(Debug, Args)]
pub(super) struct TopCommand {
    /// A job's folder in the workspace; all of them by default.
    name: Option<String>,
    /// The folder with the jobs' folders.
    #[arg(long, value_name = "DIR", default_value = "workspace")]
    workspace: PathBuf,
    /// Renew it every two seconds, until Ctrl-C.
    #[arg(long, short)]
    watch: bool,
}

impl TopCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        if self.watch {
            return watch(|| self.text());
        }
        print_line(self.text()?);
        Ok(())
    }

    fn text(&self) -> anyhow::Result<String> {
        let names = match &self.name {
            Some(name) => vec![name.clone()],
            None => folders(&self.workspace)?,
        };
        let mut rows = Vec::new();
        for name in names {
            if let Some(folder) = JobFolder::existing(&self.workspace.join(&name))? {
                rows.push(top_row(&folder, name)?);
            }
        }
        if !rows.is_empty() {
            return Ok(top(&rows));
        }
        let workspace = self.workspace.display();
        match &self.name {
            Some(name) => Err(StageError::invalid(format!(
                "{workspace}/{name} is no job's folder: expected one in which `stagecoach run` has trained; \
                 `stagecoach top` without a name shows all"
            ))
            .into()),
            None => Ok(format!("no job has a folder in {workspace}")),
        }
    }
}

/// The names of the folders in the workspace, sorted.
fn folders(workspace: &Path) -> anyhow::Result<Vec<String>> {
    let entries = std::fs::read_dir(workspace).with_context(|| {
        format!("could not list the workspace {}: name another with --workspace DIR", workspace.display())
    })?;
    let folders = entries.flatten().filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = folders.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    Ok(names)
}
