//! `stagecoach run`

mod results;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use stagecoach_api::PipelineJob;
use stagecoach_api::contract::ExitCode;
use stagecoach_checkpoint::{FileSystemVolume, list};
use stagecoach_dashboard as page;
use stagecoach_engine::StageError;
use stagecoach_kernels::device::driver_devices;
use stagecoach_launcher::{
    FolderError, JobFolder, JobLock, LaunchConfig, LaunchError, LauncherState, PreviousRun, RunOutcome,
    StageExecutable, rules_for_pods, supervise, write_file,
};
use stagecoach_planner::{JobConfig, RemoteModels};
use stagecoach_telemetry::{ProgressDisplay, read_metrics};

use super::job_args::{JobArgs, job_config};
use super::output::{print_error, print_line};
use super::page::PagePort;
use crate::train::{check_extension, check_start};
use results::{failure_reason, is_shorter, print_earlier_results, print_results};

/// Train a job on this machine, one process per stage.
#[derive(Debug, Args)]
pub(super) struct RunCommand {
    #[command(flatten)]
    job: JobArgs,
    /// First remove everything that earlier runs of the job created, and list it. Other files in the job's folder and
    /// the token cache stay.
    #[arg(long)]
    fresh: bool,
    #[command(flatten)]
    port: PagePort,
}

/// The error that prevents a job from running.
#[derive(Debug, thiserror::Error)]
enum RunError {
    /// The job is invalid.
    #[error(transparent)]
    Job(#[from] StageError),
    /// The launcher failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl From<FolderError> for RunError {
    fn from(error: FolderError) -> Self {
        LaunchError::from(error).into()
    }
}

impl RunCommand {
    /// Runs the job unless it is trained already. Returns the exit code.
    pub(super) fn main(self) -> i32 {
        match self.run() {
            Ok(code) => code,
            Err(error) => {
                // an invalid job may have several problems, one per line
                error.to_string().lines().for_each(print_error);
                match error {
                    RunError::Job(error) => error.kind.exit_code().code(),
                    RunError::Launch(error) => error.exit_code().code(),
                }
            }
        }
    }

    fn run(self) -> Result<i32, RunError> {
        let config = self.config()?;
        let job = &config.job;
        if job.spec.suspend {
            print_line(format!("{} is suspended (spec.suspend: true), so nothing is started", job.metadata.name));
            return Ok(ExitCode::Done.code());
        }
        let workspace = absolute(&self.job.workspace)?;
        let folder = JobFolder::open(&workspace.join(job.folder()), Some(&self.job.job))?;
        let _lock = JobLock::acquire(&folder)?;
        if self.fresh {
            remove_earlier_runs(&config, &folder)?;
        }
        match PreviousRun::inspect(&folder, job) {
            PreviousRun::Nothing => {}
            PreviousRun::Unfinished => check_extension(&config, &FileSystemVolume::new(folder.root()))?,
            PreviousRun::Finished(summary) => {
                print_line(format!(
                    "{} is trained already; this is its result (--fresh trains it again)\n",
                    job.metadata.name
                ));
                return print_earlier_results(job, &folder, &workspace, &summary);
            }
            PreviousRun::OtherLength(summary) if is_shorter(job, &summary) => {
                print_line(format!(
                    "{} was trained for {} steps, and spec.training.steps is less: nothing is left to train, and \
                     this is its result (--fresh trains it again)\n",
                    job.metadata.name, summary.steps
                ));
                return print_earlier_results(job, &folder, &workspace, &summary);
            }
            PreviousRun::OtherLength(summary) => {
                check_extension(&config, &FileSystemVolume::new(folder.root()))?;
                print_line(format!(
                    "{} was trained for {} steps; {}",
                    job.metadata.name,
                    summary.steps,
                    where_it_continues(&folder)?
                ));
            }
            PreviousRun::OtherJob(difference) => {
                return Err(RunError::Job(StageError::invalid(format!(
                    "{} holds the result of a job with other settings ({difference}): set spec.storage.path to \
                     another folder, or discard that result with --fresh",
                    folder.root().display()
                ))));
            }
        }
        train(job, &folder, &workspace, self.port)
    }

    /// Reads the job and applies its overrides. Reports all problems at once.
    fn config(&self) -> Result<JobConfig, StageError> {
        let job = self.job.read()?;
        let problems: Vec<String> = job.validate().iter().map(ToString::to_string).collect();
        if !problems.is_empty() {
            return Err(StageError::invalid(problems.join("\n")));
        }
        let workspace = &self.job.workspace;
        if !workspace.is_dir() {
            return Err(StageError::invalid(format!(
                "the workspace {} is not a folder: set --workspace to the folder to which the job's paths are relative",
                workspace.display()
            )));
        }
        // `--fresh` removes the recorded commits of the models
        let known = match self.fresh {
            true => RemoteModels::default(),
            false => RemoteModels::recorded(&job, &workspace.join(job.folder()))?,
        };
        Ok(JobConfig { starts_over: self.fresh, ..job_config(job, workspace, known)? })
    }
}

/// Describes where training continues if the job has more steps than its last run trained.
fn where_it_continues(folder: &JobFolder) -> Result<String, FolderError> {
    Ok(match list(&folder.volume())?.steps.first() {
        Some(step) => format!("training continues from its newest checkpoint, of step {step}"),
        None => "its checkpoints are gone, so training starts again at step 1".to_owned(),
    })
}

/// Removes everything that earlier runs of the job created, and lists it. Removes nothing if the job can't start.
fn remove_earlier_runs(config: &JobConfig, folder: &JobFolder) -> Result<(), RunError> {
    let artifacts = folder.artifacts()?;
    check_start(config, artifacts.available_bytes_without(folder))?;
    if !artifacts.is_empty() {
        let root = relative_to_working_directory(folder.root());
        print_line(format!("removing the files of earlier runs in {}: {artifacts}", root.display()));
    }
    Ok(folder.remove(&artifacts)?)
}

fn train(job: &PipelineJob, folder: &JobFolder, workspace: &Path, port: PagePort) -> Result<i32, RunError> {
    let executable = StageExecutable::current();
    let mut state = LauncherState::load(folder)?;
    let (previous, trained) = (folder.previous_files()?, trained_steps(folder));
    folder.start_run()?;
    let yaml =
        job.to_yaml().map_err(|error| StageError::invalid(format!("the job can't be written as YAML: {error}")))?;
    write_file(&folder.resolved_job(), &yaml)?;
    let started = Instant::now();
    if let Some(note) = rules_for_pods(&job.spec.restart) {
        print_line(note);
    }
    match page::serve(folder.clone(), page::StatusSource::Folder, port.page_port) {
        Ok(address) => print_line(format!("page   {address}")),
        Err(error) => print_error(format!("the job has no page: port {} of 127.0.0.1: {error}", port.page_port)),
    }
    let mut display = ProgressDisplay::stdout();
    let config = LaunchConfig { job, workspace, folder, executable: &executable, count_gpus: driver_devices };
    let outcome = supervise(config, &mut state, &mut display);
    drop(display);
    // if this run has trained no step, because the stages refused the job or a signal stopped them early, restore the
    // files of the previous run
    if !matches!(outcome, Ok(RunOutcome::Complete(_))) && trained_steps(folder) == trained {
        previous.restore()?;
    }
    match outcome? {
        RunOutcome::Complete(Some(summary)) => {
            print_line("");
            print_results(
                job,
                folder,
                workspace,
                &summary,
                state.state.budget.total,
                Some(started.elapsed().as_secs_f64()),
            );
            Ok(ExitCode::Done.code())
        }
        RunOutcome::Complete(None) => {
            print_error(format!(
                "all stages succeeded, but none reported a result: see the logs in {}",
                folder.logs().display()
            ));
            Ok(ExitCode::Failure.code())
        }
        RunOutcome::Stopped => Ok(ExitCode::Drained.code()),
        RunOutcome::Killed => Ok(ExitCode::Killed.code()),
        RunOutcome::Failed(code) => {
            let logs = folder.logs();
            let (name, reason) = (&job.metadata.name, failure_reason(&state.state));
            print_error(format!("{name} failed, exit code {code}{reason}; the stages' logs are in {}", logs.display()));
            Ok(code)
        }
    }
}

/// Returns the last step in the metrics, or `None` if there is none or the metrics can't be read.
fn trained_steps(folder: &JobFolder) -> Option<u64> {
    Some(read_metrics(&folder.metrics()).ok()?.last()?.step)
}

/// Returns the workspace's absolute path.
fn absolute(path: &Path) -> Result<PathBuf, StageError> {
    std::path::absolute(path).map_err(|error| StageError::storage("resolve", path, error))
}

/// Returns the path relative to the working directory if the path is below the working directory.
fn relative_to_working_directory(path: &Path) -> PathBuf {
    let current = std::env::current_dir().ok();
    current.and_then(|current| path.strip_prefix(current).ok().map(Path::to_owned)).unwrap_or_else(|| path.to_owned())
}
