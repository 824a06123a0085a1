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

#[derive(Debug, Subcommand)]
enum CheckpointSubcommand {
    /// List a job's checkpoints, its damaged checkpoints, and foreign entries beside them.
    List(list::ListCommand),
    /// Show a checkpoint's contents and metadata.
    Show(show::ShowCommand),
    /// Verify the hash of every file; exit with code 74 if a hash differs or there is no checkpoint.
    Verify(verify::VerifyCommand),
    /// Remove old checkpoints, never the newest intact one.
    ///
    /// The command takes the fence of the job, as a new group of the job does. It refuses to run while the job runs on
    /// this machine. A group that runs elsewhere, such as in a cluster, loses the fence: it can't commit checkpoints,
    /// and exits. The next group resumes from the newest checkpoint and trains the later steps again. Nothing else is
    /// lost.
    Prune(prune::PruneCommand),
    /// Export a checkpoint's weights for other tools, verified by their hashes.
    Export(export::ExportCommand),
    /// Write the whole model of a checkpoint that has only the trained weights of its job.
    ///
    /// A job with adapters (`training.lora`) or frozen weights (`training.freeze`) saves only the weights that it
    /// trains. The command merges adapters into the weights from which the job started, and adds the frozen weights.
    Merge(merge::MergeCommand),
    /// Import a Hugging Face model directory as the first checkpoint of a new folder.
    ///
    /// The command stores the weights as fp32 at step 0, without optimizer state. A job starts from this checkpoint
    /// with `checkpoint.initFrom`. No job resumes from it.
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
