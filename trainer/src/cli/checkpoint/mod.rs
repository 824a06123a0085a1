//! `stagecoach checkpoint`: one file per subcommand; `target` resolves the folder argument.

mod export;
mod import;
mod list;
mod merge;
mod prune;
mod show;
mod target;
mod verify;

use clap::{Args, Subcommand};

/// List, verify and prune a job's checkpoints; export and import models.
#[derive(Debug, Args)]
pub(super) struct CheckpointCommand {
    #[command(subcommand)]
    subcommand: CheckpointSubcommand,
    /// Print JSON instead of text.
    #[arg(long, global = true)]
    json: bool,
}

// The help of a subcommand is the doc comment of its arguments, as in `CliCommand`.
#[derive(Debug, Subcommand)]
enum CheckpointSubcommand {
    List(list::ListCommand),
    Show(show::ShowCommand),
    Verify(verify::VerifyCommand),
    Prune(prune::PruneCommand),
    Export(export::ExportCommand),
    Merge(merge::MergeCommand),
    Import(import::ImportCommand),
}

impl CheckpointCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        let json = self.json;
        match self.subcommand {
            CheckpointSubcommand::List(command) => command.main(json),
            CheckpointSubcommand::Show(command) => command.main(json),
            CheckpointSubcommand::Verify(command) => command.main(json),
            CheckpointSubcommand::Prune(command) => command.main(json),
            CheckpointSubcommand::Export(command) => command.main(json),
            CheckpointSubcommand::Merge(command) => command.main(json),
            CheckpointSubcommand::Import(command) => command.main(json),
        }
    }
}
