//! `stagecoach checkpoint`: looking at a job's checkpoints, and taking models in and out. A file a subcommand; `target`
//! finds what a person pointed to, `table` and `time` write it down.

mod export;
mod import;
mod list;
mod prune;
mod show;
mod table;
mod target;
mod time;
mod verify;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{complain, say};

/// Look at a job's checkpoints, prove them, prune them; take models in and out.
#[derive(Debug, Args)]
pub(super) struct Checkpoint {
    #[command(subcommand)]
    command: Command,
    /// Print JSON instead of text.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List a job's checkpoints, and what lies beside them.
    List(list::List),
    /// Show what one checkpoint holds, and what it was written under.
    Show(show::Show),
    /// Read every byte and compare it with what was written: exit code 74 if one differs.
    Verify(verify::Verify),
    /// Remove old checkpoints, never the newest intact one.
    ///
    /// Takes the folder as a new group of the job would. While the job runs on this machine, this is refused. A group
    /// that runs elsewhere, such as in a cluster, is fenced off: it can commit nothing more and ends, and the group that
    /// is started in its place goes on from the newest checkpoint. Steps since that one are trained again; nothing else
    /// is lost.
    Prune(prune::Prune),
    /// Write a checkpoint's weights for other tools, every byte proven.
    Export(export::Export),
    /// Make the first checkpoint of a new folder from a Hugging Face model directory.
    ///
    /// Its weights, as fp32, become step 0, without optimizer state. A job starts from it by `checkpoint.initFrom`; none
    /// takes it for a checkpoint of its own.
    Import(import::Import),
}

impl Checkpoint {
    pub(super) fn main(self) -> anyhow::Result<()> {
        let json = self.json;
        match self.command {
            Command::List(list) => list.main(json),
            Command::Show(show) => show.main(json),
            Command::Verify(verify) => verify.main(json),
            Command::Prune(prune) => prune.main(json),
            Command::Export(export) => export.main(json),
            Command::Import(import) => import.main(json),
        }
    }
}

fn say_json(value: &impl Serialize) -> anyhow::Result<()> {
    say(serde_json::to_string_pretty(value)?);
    Ok(())
}
