//! `stagecoach tensorboard`. The command needs only the metrics of jobs' folders.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::Args;
use stagecoach_launcher::METRICS;
use stagecoach_telemetry::{EventFile, read_metrics};

use super::output::print_line;

/// Write runs in TensorBoard's format: `tensorboard --logdir DIR` then shows them side by side.
#[derive(Debug, Args)]
pub(super) struct TensorboardCommand {
    /// Folders of jobs, such as `workspace/NAME`.
    #[arg(required = true)]
    folders: Vec<PathBuf>,
    /// The folder to write to. Each job gets a subfolder of its name.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Continue while the jobs train, until Ctrl-C.
    #[arg(long)]
    follow: bool,
}

/// The shortest interval between polls of a followed job. The interval grows so that reading takes less than a tenth of
/// the time.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// A run, and the event file that the command writes for it.
struct EventRun {
    metrics: PathBuf,
    events: EventFile<BufWriter<File>>,
}

impl TensorboardCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        let mut runs = Vec::new();
        for (output, folder) in output_folders(&self.folders, &self.to)? {
            let mut run = EventRun::create(folder, &output)?;
            let steps = run.update()?;
            print_line(format!("{}: {steps} steps", run.metrics.display()));
            runs.push(run);
        }
        print_line(format!("tensorboard --logdir {}", self.to.display()));
        if !self.follow {
            return Ok(());
        }
        loop {
            let started = Instant::now();
            for run in &mut runs {
                run.update()?;
            }
            std::thread::sleep(FOLLOW_INTERVAL.max(10 * started.elapsed()));
        }
    }
}

/// Returns the folders of the jobs, each with the subfolder of `to` that has the job's name.
///
/// # Errors
/// Returns an error if a folder has no metrics, or if two folders have the same name.
fn output_folders<'a>(jobs: &'a [PathBuf], to: &Path) -> anyhow::Result<Vec<(PathBuf, &'a Path)>> {
    let mut seen: BTreeMap<PathBuf, &Path> = BTreeMap::new();
    let mut folders = Vec::new();
    for job in jobs {
        let metrics = job.join(METRICS);
        if !metrics.exists() {
            bail!("{} does not exist: expected a job's folder, such as workspace/NAME", metrics.display());
        }
        let absolute = job.canonicalize().with_context(|| format!("could not open {}", job.display()))?;
        let output = to.join(absolute.file_name().with_context(|| format!("{} has no name", absolute.display()))?);
        if let Some(other) = seen.insert(output.clone(), job) {
            bail!(
                "{} and {} have the same name, so both would be written to {}: run the command for each of them, the \
                 second time with another folder, such as --to {}",
                other.display(),
                job.display(),
                output.display(),
                to.join("other").display()
            );
        }
        folders.push((output, job.as_path()));
    }
    Ok(folders)
}

impl EventRun {
    /// Creates the event file of a job in the folder `output`.
    fn create(job: &Path, output: &Path) -> anyhow::Result<EventRun> {
        std::fs::create_dir_all(output).with_context(|| format!("could not create {}", output.display()))?;
        // TensorBoard reads every file with `tfevents` in its name
        let path = output.join("events.out.tfevents.stagecoach");
        let file = File::create(&path).with_context(|| format!("could not create {}", path.display()))?;
        Ok(EventRun { metrics: job.join(METRICS), events: EventFile::create(BufWriter::new(file), 0.0)? })
    }

    /// Writes the steps since the last call. Returns the number of steps so far.
    fn update(&mut self) -> anyhow::Result<u64> {
        let records = read_metrics(&self.metrics)?;
        let trained_at = match std::fs::metadata(&self.metrics).and_then(|metadata| metadata.modified()) {
            // a job that is started again with `--fresh` has no metrics until its first step
            Err(error) if error.kind() == ErrorKind::NotFound => SystemTime::now(),
            modified => modified.with_context(|| format!("could not read {}", self.metrics.display()))?,
        };
        let mut wall_time = trained_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        // A record has no time of day. The last record is therefore dated by the modification time of the file.
        wall_time -= records.iter().map(|record| record.seconds).sum::<f64>();
        let last = records.last().map_or(0, |record| record.step);
        if last < self.events.last_step() {
            self.events.rewind(wall_time, last)?;
        }
        let written = self.events.last_step();
        for record in &records {
            wall_time += record.seconds;
            if record.step > written {
                self.events.write(wall_time, record)?;
            }
        }
        self.events.flush()?;
        Ok(records.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use stagecoach_telemetry::StepRecord;

    use super::*;

    /// Creates a job's folder with the metrics of `steps` steps.
    fn job(folder: &Path, steps: u64) {
        fs::create_dir_all(folder).unwrap();
        let record = |step| serde_json::to_string(&StepRecord { step, ..StepRecord::default() }).unwrap() + "\n";
        fs::write(folder.join(METRICS), (1..=steps).map(record).collect::<String>()).unwrap();
    }

    #[test]
    fn two_runs_of_one_name_are_refused_before_a_file_is_written() {
        let workspace = tempfile::tempdir().unwrap();
        let folders = ["a/plays", "b/plays"].map(|name| workspace.path().join(name));
        folders.iter().for_each(|folder| job(folder, 1));
        let to = workspace.path().join("events");
        let command = TensorboardCommand { folders: folders.to_vec(), to: to.clone(), follow: false };
        let error = command.main().unwrap_err().to_string();
        assert!(error.contains("a/plays and ") && error.contains("b/plays have the same name"), "{error}");
        assert!(!to.exists());
        TensorboardCommand { folders: folders[..1].to_vec(), to: to.clone(), follow: false }.main().unwrap();
        assert!(to.join("plays").exists());
    }

    #[test]
    fn a_job_that_starts_afresh_is_followed_from_its_first_step() {
        let workspace = tempfile::tempdir().unwrap();
        job(workspace.path(), 3);
        let mut run = EventRun::create(workspace.path(), &workspace.path().join("events")).unwrap();
        assert_eq!((run.update().unwrap(), run.events.last_step()), (3, 3));
        fs::remove_file(workspace.path().join(METRICS)).unwrap();
        assert_eq!((run.update().unwrap(), run.events.last_step()), (0, 0));
        job(workspace.path(), 2);
        assert_eq!((run.update().unwrap(), run.events.last_step()), (2, 2));
    }
}
