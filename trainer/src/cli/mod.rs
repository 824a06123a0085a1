//! The command line: the launcher, a stage, and the tools, in one binary.

mod audit;
mod blame;
mod checkpoint;
mod data;
mod diff;
mod explain;
mod generate;
mod init;
mod job_args;
mod output;
mod page;
mod plan;
mod replay;
mod run;
mod stage;
mod tensorboard;
mod timeline;
mod tokenize;
mod top;
mod why;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use stagecoach_api::contract::ExitCode;
use stagecoach_checkpoint::{CheckpointError, FileSystemVolume, Volume};
use stagecoach_launcher::{FolderError, LaunchError};

use output::print_error;
use stagecoach_engine::StageError;

/// Trains language models through a pipeline of stages: as pods on Kubernetes, or as processes on this machine.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Write a job file for the texts in the workspace and for this machine.
    Init(init::InitCommand),
    /// Show the meaning and the allowed values of a field of a job file, as `kubectl explain` does.
    Explain(explain::ExplainCommand),
    /// Train a job on this machine, one process per stage.
    Run(run::RunCommand),
    /// Run one stage: the entry point of a pod, configured by environment variables.
    Stage(stage::StageCommand),
    /// Show how a job would run: partition, timeline, bubble, memory.
    Plan(plan::PlanCommand),
    /// Show the jobs of a workspace, one line each.
    Top(top::TopCommand),
    /// Explain a run's last failure, its consequences and the remedy.
    Why(why::WhyCommand),
    /// Serve a job's live page for a browser on this machine.
    Page(page::PageCommand),
    /// Show a trained step's timeline of every stage, above a simulation of it.
    Timeline(timeline::TimelineCommand),
    /// Write runs in TensorBoard's format.
    Tensorboard(tensorboard::TensorboardCommand),
    /// Train steps of a run again, and compare them bit for bit with the record.
    Replay(replay::ReplayCommand),
    /// Train parts of a run again, and check that each checkpoint follows from the one before.
    Audit(audit::AuditCommand),
    /// Find the first step and the first tensor at which two runs differ.
    Diff(diff::DiffCommand),
    /// Show the contribution of each document to a step's loss and gradient.
    Blame(blame::BlameCommand),
    /// Show a job's documents as training reads them.
    Data(data::DataCommand),
    /// Fill the token cache for a job.
    Tokenize(tokenize::TokenizeCommand),
    /// Continue a prompt with a trained model.
    Generate(generate::GenerateCommand),
    /// List, verify and prune a job's checkpoints; export and import models.
    Checkpoint(checkpoint::CheckpointCommand),
}

/// A function that opens a job's folder as a volume, through which a stage accesses its checkpoints.
pub type VolumeOpener = fn(&Path) -> Arc<dyn Volume>;

/// Opens a job's folder in the local file system as a volume.
pub fn open_local_volume(folder: &Path) -> Arc<dyn Volume> {
    Arc::new(FileSystemVolume::new(folder))
}

/// Parses the arguments, runs the command and ends the process with the command's exit code. A stage accesses its
/// checkpoints through `open_volume`, so that tests can inject faults.
pub fn main(open_volume: VolumeOpener) -> ! {
    let code = match Cli::try_parse() {
        Ok(cli) => run_command(cli, open_volume),
        // the help and the version are errors of the parser too
        Err(error) => {
            let _ = error.print();
            error.exit_code()
        }
    };
    // stdout buffers a last line that has no line feed
    let _ = std::io::stdout().flush();
    stagecoach_os::exit_now(code)
}

/// Runs the command. Returns the process's exit code.
fn run_command(cli: Cli, open_volume: VolumeOpener) -> i32 {
    // The log goes to stderr, because stdout has events and results. Errors of writing the log are not logged: the
    // stderr of a stage is a file, and a second write to a full volume would fail and panic.
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    let log = tracing_subscriber::fmt().with_env_filter(filter).log_internal_errors(false);
    log.with_writer(std::io::stderr).init();
    match cli.command {
        CliCommand::Run(command) => command.main(),
        CliCommand::Stage(command) => stage::main(command, open_volume),
        CliCommand::Plan(command) => to_exit_code(command.main()),
        CliCommand::Init(command) => to_exit_code(command.main()),
        CliCommand::Explain(command) => to_exit_code(command.main()),
        CliCommand::Top(command) => to_exit_code(command.main()),
        CliCommand::Why(command) => to_exit_code(command.main()),
        CliCommand::Page(command) => to_exit_code(command.main()),
        CliCommand::Timeline(command) => to_exit_code(command.main()),
        CliCommand::Tensorboard(command) => to_exit_code(command.main()),
        CliCommand::Replay(command) => to_exit_code(command.main()),
        CliCommand::Audit(command) => to_exit_code(command.main()),
        CliCommand::Diff(command) => to_exit_code(command.main()),
        CliCommand::Blame(command) => to_exit_code(command.main()),
        CliCommand::Data(command) => to_exit_code(command.main()),
        CliCommand::Tokenize(command) => to_exit_code(command.main()),
        CliCommand::Generate(command) => to_exit_code(command.main()),
        CliCommand::Checkpoint(command) => to_exit_code(command.main()),
    }
}

/// Prints the error of a command, if there is one. Returns the exit code.
fn to_exit_code(result: anyhow::Result<()>) -> i32 {
    match result {
        Ok(()) => ExitCode::Done.code(),
        Err(error) => {
            print_error(error_chain(&error));
            exit_code(&error).code()
        }
    }
}

/// Returns the error with its causes, but without the causes that its message already contains.
fn error_chain(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |message, cause| match cause.to_string() {
        cause if message.contains(&cause) => message,
        cause => format!("{message}: {cause}"),
    })
}

/// Returns the exit code of an error. An error of a stage, of the launcher or of a job's folder has its own code. Other
/// errors of checkpoints have the code 75 (`PeerLost`) if another group took the fence, 1 if a file has other content
/// than expected, and 74 (`Storage`) otherwise. All other errors have the code 1.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    if let Some(error) = error.downcast_ref::<StageError>() {
        return error.kind.exit_code();
    }
    if let Some(error) = error.downcast_ref::<LaunchError>() {
        return error.exit_code();
    }
    if let Some(error) = error.downcast_ref::<FolderError>() {
        return match error {
            FolderError::Foreign { .. } => ExitCode::Failure,
            other => other.kind().exit_code(),
        };
    }
    match error.downcast_ref::<CheckpointError>() {
        None | Some(CheckpointError::Content { .. }) => ExitCode::Failure,
        Some(CheckpointError::FencedOff { .. }) => ExitCode::PeerLost,
        Some(_) => ExitCode::Storage,
    }
}
