//! `stagecoach run`: train a job on this machine.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use stagecoach_api::PipelineJob;
use stagecoach_api::contract::ExitCode;
use stagecoach_checkpoint::FileSystemVolume;

use super::read::JobArgs;
use super::{complain, say};
use crate::fatal::Fatal;
use crate::folder::{FolderError, JobFolder, write};
use crate::generate::{self, Sampling};
use crate::launch::{Before, End, Launch, LaunchError, Lock, Program, Record, supervise, wanted_port};
use crate::observe::{self, Closing, Progress, StepRecord, Summary, curve, read_metrics};
use crate::plan::JobConfig;
use crate::train::check_extension;

/// Train a job on this machine, a process per stage.
#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    job: JobArgs,
    /// Remove what earlier runs of the job have made first, after naming it; nothing else in its folder, nor the token
    /// cache, is touched.
    #[arg(long)]
    fresh: bool,
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    /// The job can't be run.
    #[error(transparent)]
    Job(#[from] Fatal),
    /// The launcher can't work.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl From<FolderError> for Refusal {
    fn from(error: FolderError) -> Self {
        LaunchError::from(error).into()
    }
}

impl Run {
    /// Runs the job, or says that it is done already; the exit code.
    pub(super) fn main(self) -> i32 {
        match self.run() {
            Ok(code) => code,
            Err(refusal) => {
                // A sentence a line: a job may have several problems.
                refusal.to_string().lines().for_each(complain);
                match refusal {
                    Refusal::Job(fatal) => fatal.kind.exit_code().code(),
                    Refusal::Launch(error) => error.exit_code().code(),
                }
            }
        }
    }

    fn run(self) -> Result<i32, Refusal> {
        let config = self.config()?;
        let job = &config.job;
        if job.spec.suspend {
            say(format!("{} is suspended (spec.suspend: true), so nothing is started", job.metadata.name));
            return Ok(ExitCode::Done.code());
        }
        let workspace = absolute(&self.job.workspace)?;
        let folder = JobFolder::open(&workspace.join(job.folder()), Some(&self.job.job))?;
        let _lock = Lock::take(&folder)?;
        if self.fresh {
            let results = folder.results()?;
            if !results.is_empty() {
                say(format!("removing of an earlier run, in {}: {results}", near(folder.root()).display()));
            }
            folder.remove(&results)?;
        }
        match Before::look(&folder, job) {
            Before::Nothing => {}
            Before::Unfinished => check_extension(&config, &FileSystemVolume::new(folder.root()))?,
            Before::Finished(summary) => {
                say(format!("{} is trained already; this is its result (--fresh trains it anew)\n", job.metadata.name));
                let restarts = Record::open(&folder)?.state.budget.total;
                show(job, &folder, &workspace, &summary, restarts, None);
                return Ok(ExitCode::Done.code());
            }
            Before::OtherLength(summary) => {
                check_extension(&config, &FileSystemVolume::new(folder.root()))?;
                say(format!(
                    "{} was trained for {} steps; going on from its newest checkpoint",
                    job.metadata.name, summary.steps
                ));
            }
            Before::OtherJob(difference) => {
                return Err(Refusal::Job(Fatal::invalid(format!(
                    "{} holds the result of a job with other settings ({difference}): set spec.storage.path to another \
                     folder, or discard that result with --fresh",
                    folder.root().display()
                ))));
            }
        }
        train(job, &folder, &workspace)
    }

    /// The job with the command line's changes, all of its problems told at once.
    fn config(&self) -> Result<JobConfig, Fatal> {
        let job = self.job.read()?;
        let problems: Vec<String> = job.validate().iter().map(ToString::to_string).collect();
        if !problems.is_empty() {
            return Err(Fatal::invalid(problems.join("\n")));
        }
        JobConfig::new(job, &self.job.workspace)
    }
}

fn train(job: &PipelineJob, folder: &JobFolder, workspace: &Path) -> Result<i32, Refusal> {
    let master_port = wanted_port()?;
    let program = Program::own();
    let mut record = Record::open(folder)?;
    // Logs are this run's; a result is no longer one once training starts again.
    folder.begin()?;
    let yaml = job.to_yaml().map_err(|error| Fatal::invalid(format!("the job can't be written as YAML: {error}")))?;
    write(&folder.job(), &yaml)?;
    let started = Instant::now();
    let mut progress = Progress::on_stdout();
    let launch = Launch { job, workspace, folder, program: &program, master_port };
    let end = supervise(launch, &mut record, &mut progress)?;
    drop(progress);
    match end {
        End::Complete(Some(summary)) => {
            say("");
            show(job, folder, workspace, &summary, record.state.budget.total, Some(started.elapsed().as_secs_f64()));
            Ok(ExitCode::Done.code())
        }
        End::Complete(None) => {
            complain(format!("all stages ended well, but stage 0 told no result: see {}", folder.log(0).display()));
            Ok(ExitCode::Failure.code())
        }
        End::Stopped => Ok(ExitCode::Drained.code()),
        End::Killed => Ok(ExitCode::Killed.code()),
        End::Failed(code) => {
            let logs = folder.log(0).with_file_name("");
            let name = &job.metadata.name;
            complain(format!("{name} failed, exit code {code}; the stages' logs are in {}", logs.display()));
            Ok(code)
        }
    }
}

/// The curve, the closing lines, and a sample of what the model writes.
fn show(
    job: &PipelineJob,
    folder: &JobFolder,
    workspace: &Path,
    summary: &Summary,
    restarts: u32,
    seconds: Option<f64>,
) {
    let records: Vec<StepRecord> = read_metrics(&folder.metrics()).unwrap_or_else(|error| {
        complain(format!("no loss curve: {error}"));
        Vec::new()
    });
    say(curve::terminal(&records, summary.unigram_entropy));
    let picture = curve::svg(&job.metadata.name, &records, summary.unigram_entropy);
    if let Err(error) = write(&folder.curve(), &picture) {
        complain(error);
    }
    let model = workspace.join(&summary.model);
    let closing = Closing {
        job: &job.metadata.name,
        summary,
        restarts,
        seconds,
        model: &near(&model),
        curve: &near(&folder.curve()),
        metrics: &near(&folder.metrics()),
    };
    say(closing.text());
    match generate::sample(&model, "", Sampling::default()) {
        Ok(text) => say(observe::sample(&text).trim_end()),
        Err(error) => complain(format!("no sample: {error:#}")),
    }
}

/// The workspace as the stages get it: they may not start where the launcher did.
fn absolute(path: &Path) -> Result<PathBuf, Fatal> {
    std::path::absolute(path).map_err(|error| Fatal::storage("find", path, error))
}

/// A path as seen from the working directory, where it is below it.
fn near(path: &Path) -> PathBuf {
    let here = std::env::current_dir().ok();
    here.and_then(|here| path.strip_prefix(here).ok().map(Path::to_owned)).unwrap_or_else(|| path.to_owned())
}
