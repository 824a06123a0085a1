//! The command line: one binary for the laptop, the pod and the tools around them.

mod checkpoint;
mod generate;
mod plan;
mod read;
mod run;
mod stage;
mod tokenize;

use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use stagecoach_api::contract::ExitCode;
use stagecoach_checkpoint::{CheckpointError, FileSystemVolume, Volume};

use crate::fatal::Fatal;
use crate::folder::FolderError;
use crate::launch::LaunchError;

/// Trains language models through a pipeline of stages: as pods on Kubernetes, or as processes on this machine.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a job on this machine, a process per stage.
    Run(run::Run),
    /// Be one stage: the entry point of a pod; everything comes from the environment.
    Stage,
    /// Show how a job would run: partition, timeline, bubble, memory.
    Plan(plan::Plan),
    /// Fill the token cache for a job.
    Tokenize(tokenize::Tokenize),
    /// Continue a prompt with a trained model.
    Generate(generate::Generate),
    /// Look at a job's checkpoints, prove them, prune them; take models in and out.
    Checkpoint(checkpoint::Checkpoint),
}

/// Opens the volume in a job's folder.
pub type Mount = fn(&Path) -> Arc<dyn Volume>;

/// The files of this machine.
pub fn open_local_volume(folder: &Path) -> Arc<dyn Volume> {
    Arc::new(FileSystemVolume::new(folder))
}

/// Parses the arguments, runs the command, returns the process's exit code. Checkpoints go through what `mount` opens:
/// tests put something in between that fails or dies at a chosen call.
pub fn main(mount: Mount) -> i32 {
    let cli = Cli::parse();
    // stdout belongs to events and results
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    // a stage's stderr is a file on the volume: one that is full must not end the stage, which telling of it on stderr would
    let log = tracing_subscriber::fmt().with_env_filter(filter).log_internal_errors(false);
    log.with_writer(std::io::stderr).init();
    match cli.command {
        Command::Run(run) => run.main(),
        Command::Stage => stage::main(mount),
        Command::Plan(plan) => finish(plan.main()),
        Command::Tokenize(tokenize) => finish(tokenize.main()),
        Command::Generate(generate) => finish(generate.main()),
        Command::Checkpoint(checkpoint) => finish(checkpoint.main()),
    }
}

/// Prints a line, or several. Whoever reads may leave early, as `head` does: that stops nothing.
fn say(text: impl Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints a complaint to stderr. Where that is a file on a full volume, what happened keeps its exit code.
fn complain(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "stagecoach: {text}");
}

/// Prints what went wrong in a sentence.
fn finish(result: anyhow::Result<()>) -> i32 {
    match result {
        Ok(()) => ExitCode::Done.code(),
        Err(error) => {
            complain(sentence(&error));
            exit_code(&error).code()
        }
    }
}

/// The error and its causes, without those that it tells itself.
fn sentence(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |said, cause| match cause.to_string() {
        cause if said.contains(&cause) => said,
        cause => format!("{said}: {cause}"),
    })
}

/// A request that can't be met is 1; damage, and a volume that fails, have a code of their own.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    if let Some(fatal) = error.downcast_ref::<Fatal>() {
        return fatal.kind.exit_code();
    }
    if let Some(refused) = error.downcast_ref::<LaunchError>() {
        return refused.exit_code();
    }
    if let Some(refused) = error.downcast_ref::<FolderError>() {
        return match refused {
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
