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

// The help of a command is the doc comment of its arguments. A doc comment of a variant would replace all paragraphs of
// that help.
#[derive(Debug, Subcommand)]
enum CliCommand {
    Init(init::InitCommand),
    Explain(explain::ExplainCommand),
    Run(run::RunCommand),
    Stage(stage::StageCommand),
    Plan(plan::PlanCommand),
    Top(top::TopCommand),
    Why(why::WhyCommand),
    Page(page::PageCommand),
    Timeline(timeline::TimelineCommand),
    Tensorboard(tensorboard::TensorboardCommand),
    Replay(replay::ReplayCommand),
    Audit(audit::AuditCommand),
    Diff(diff::DiffCommand),
    Blame(blame::BlameCommand),
    Data(data::DataCommand),
    Tokenize(tokenize::TokenizeCommand),
    Generate(generate::GenerateCommand),
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Returns the help of `stagecoach COMMAND`, in one line.
    fn help(command: &str) -> String {
        let mut cli = Cli::command();
        let of_command = command.split(' ').fold(&mut cli, |parent, name| parent.find_subcommand_mut(name).unwrap());
        let help = of_command.render_long_help().to_string();
        help.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_help_of_a_command_has_all_its_paragraphs() {
        for (command, sentence) in [
            ("stage", "Run one stage: the entry point of a pod, configured by environment variables"),
            ("top", "A line has the phase, the steps, the loss"),
            ("page", "The job may run, be stopped or be finished."),
            ("timeline", "The simulation runs the same actions with the measured time of each kind of action."),
            ("replay", "The replay starts from the newest checkpoint before the step"),
            ("audit", "The audit first checks the record against its receipts."),
            ("diff", "The command compares the records of both runs"),
            ("blame", "A step is a spike if its loss or gradient norm is more than K deviations above the median"),
            ("data", "Show a job's data as training reads it"),
            ("generate", "Continue prompts with a trained model, or talk to it"),
            ("checkpoint prune", "A group that runs elsewhere, such as in a cluster, loses the fence"),
            ("checkpoint merge", "The command merges adapters into the weights from which the job started"),
            ("checkpoint import", "A job starts from this checkpoint with `checkpoint.initFrom`."),
        ] {
            assert!(help(command).contains(sentence), "{command}: {}", help(command));
        }
    }

    #[test]
    fn every_command_has_a_summary() {
        let mut commands = vec![Cli::command()];
        while let Some(command) = commands.pop() {
            let summary = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(!summary.is_empty() && summary.len() <= 110, "{}: {summary}", command.get_name());
            commands.extend(command.get_subcommands().cloned());
        }
    }
}
