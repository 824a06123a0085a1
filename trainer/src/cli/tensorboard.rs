//! `stagecoach tensorboard`. The command needs only the metrics of jobs' folders.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

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
        for folder in &self.folders {
            let mut run = EventRun::create(folder, &self.to)?;
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

impl EventRun {
    fn create(folder: &Path, to: &Path) -> anyhow::Result<EventRun> {
        let metrics = folder.join(METRICS);
        if !metrics.exists() {
            bail!("{} does not exist: expected a job's folder, such as workspace/NAME", metrics.display());
        }
        let folder = folder.canonicalize().with_context(|| format!("could not open {}", folder.display()))?;
        let name = folder.file_name().with_context(|| format!("{} has no name", folder.display()))?;
        let folder = to.join(name);
        std::fs::create_dir_all(&folder).with_context(|| format!("could not create {}", folder.display()))?;
        // TensorBoard reads every file with `tfevents` in its name
        let path = folder.join("events.out.tfevents.stagecoach");
        let file = File::create(&path).with_context(|| format!("could not create {}", path.display()))?;
        Ok(EventRun { metrics, events: EventFile::create(BufWriter::new(file), 0.0)? })
    }

    /// Writes the steps since the last call. Returns the number of steps so far.
    fn update(&mut self) -> anyhow::Result<u64> {
        let records = read_metrics(&self.metrics)?;
        let trained_at = std::fs::metadata(&self.metrics).and_then(|metadata| metadata.modified())?;
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
