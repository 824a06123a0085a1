//! `stagecoach top`. The command only reads jobs' folders, so the jobs may run at the same time.

use std::fs::ReadDir;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use stagecoach_display::{TopRow, top, watch};
use stagecoach_engine::StageError;
use stagecoach_launcher::{JobFolder, top_row};

use super::output::print_line;

/// Show the jobs of a workspace, one line each.
///
/// A line has the phase, the steps, the loss, the speed, the stages, the restarts, the checkpoint and the slowest stage
/// of a job.
#[derive(Debug, Args)]
pub(super) struct TopCommand {
    /// A job's folder in the workspace; all jobs by default.
    name: Option<String>,
    /// The folder with the jobs' folders.
    #[arg(long, value_name = "DIR", default_value = "workspace")]
    workspace: PathBuf,
    /// Refresh the list every two seconds, until Ctrl-C.
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
            None => jobs(&self.workspace)?,
        };
        let mut rows = Vec::new();
        for name in names {
            if let Some(folder) = JobFolder::existing(&self.workspace.join(&name))?.filter(JobFolder::has_run) {
                rows.push(match top_row(&folder, name.clone()) {
                    // a job that can't be read does not hide the other jobs
                    Err(_) if self.name.is_none() => TopRow { name, phase: "Unreadable".into(), ..TopRow::default() },
                    row => row?,
                });
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

/// Returns the paths of the jobs' folders below the workspace, relative to the workspace and sorted.
fn jobs(workspace: &Path) -> anyhow::Result<Vec<String>> {
    let entries = std::fs::read_dir(workspace).with_context(|| {
        format!("could not list the workspace {}: name another with --workspace DIR", workspace.display())
    })?;
    let mut names = Vec::new();
    add_jobs(entries, "", &mut names);
    names.sort_unstable();
    Ok(names)
}

/// Appends to `names` the paths of the jobs' folders among `entries`, which are the entries of the folder `parent`.
/// Descends into folders that are no jobs' folders. Skips hidden folders, and folders that can't be read, such as
/// `lost+found`. Follows a symbolic link only on the first level, and only if it leads to a job's folder.
fn add_jobs(entries: ReadDir, parent: &str, names: &mut Vec<String>) {
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let (path, name) = (entry.path(), format!("{parent}{name}"));
        let is_own = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if entry.file_name().as_encoded_bytes().starts_with(b".") || !(is_own || parent.is_empty() && path.is_dir()) {
            continue;
        }
        let Ok(job) = JobFolder::existing(&path) else { continue };
        if job.is_some() {
            names.push(name);
        } else if is_own && let Ok(entries) = std::fs::read_dir(&path) {
            add_jobs(entries, &format!("{name}/"), names);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use stagecoach_launcher::METRICS;

    use super::*;

    #[test]
    fn jobs_are_found_in_deeper_folders_and_imports_are_none() {
        let workspace = tempfile::tempdir().unwrap();
        for (folder, files) in [
            ("one", &["run.lock", "metrics.jsonl"][..]),
            ("exp/deep/two", &["run.lock", "metrics.jsonl"]),
            ("imported", &["run.lock"]),
            ("corpus", &[]),
            (".hidden/three", &["run.lock", "metrics.jsonl"]),
        ] {
            let folder = workspace.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            for file in files {
                let path = match *file {
                    "run.lock" => JobFolder::open(&folder, None).unwrap().lock(),
                    file => folder.join(file),
                };
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "1\n").unwrap();
            }
        }
        let command = TopCommand { name: None, workspace: workspace.path().to_owned(), watch: false };
        let text = command.text().unwrap();
        assert!(text.contains("\none ") && text.contains("\nexp/deep/two "), "{text}");
        assert!(!text.contains("imported") && !text.contains("three") && !text.contains("corpus"), "{text}");
        let imported = TopCommand { name: Some("imported".into()), ..command };
        assert!(imported.text().unwrap_err().to_string().contains("is no job's folder"));
    }

    #[test]
    fn what_can_not_be_read_hides_no_job() {
        let workspace = tempfile::tempdir().unwrap();
        for name in ["one", "damaged"] {
            let folder = workspace.path().join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(JobFolder::open(&folder, None).unwrap().lock(), "1\n").unwrap();
            fs::write(folder.join(METRICS), "\n").unwrap();
        }
        fs::create_dir(workspace.path().join("damaged/state.json")).unwrap();
        // a link to itself can't be listed, not even by root, whom no permission stops
        let lost = workspace.path().join("lost+found");
        fs::create_dir(&lost).unwrap();
        std::os::unix::fs::symlink("fences", lost.join("fences")).unwrap();
        assert!(JobFolder::existing(&lost).is_err());
        let command = TopCommand { name: None, workspace: workspace.path().to_owned(), watch: false };
        let text = command.text().unwrap();
        assert!(text.contains("\none ") && text.contains("\ndamaged  Unreadable "), "{text}");
        let damaged = TopCommand { name: Some("damaged".into()), ..command };
        assert!(damaged.text().is_err());
    }
}
