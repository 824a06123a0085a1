//! `stagecoach data`

use std::io::{IsTerminal, Write};

use clap::{Args, Subcommand};
use stagecoach_api::visible;
use stagecoach_data::{ShownDocument, show_documents};
use stagecoach_engine::StageError;

use super::job_args::JobArgs;

/// The number of documents that the command shows if the user names none.
const FIRST_DOCUMENTS: u64 = 5;

/// Show a job's data as training reads it.
#[derive(Debug, Args)]
pub(super) struct DataCommand {
    #[command(subcommand)]
    command: DataSubcommand,
}

#[derive(Debug, Subcommand)]
enum DataSubcommand {
    /// Show documents with the tokens that are trained on: in colour on a terminal, otherwise in ⟦ ⟧.
    Show(ShowCommand),
}

#[derive(Debug, Args)]
struct ShowCommand {
    #[command(flatten)]
    job: JobArgs,
    /// The number of the document, from 1; the first documents by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    document: Option<u64>,
}

/// The text before and after consecutive tokens that are trained on.
struct Marks {
    before: &'static str,
    after: &'static str,
}

impl Marks {
    /// Returns colours if stdout is a terminal, unless the user disables colours (<https://no-color.org>). Otherwise
    /// returns brackets.
    fn of_stdout() -> Marks {
        let wants_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        match std::io::stdout().is_terminal() && !wants_none {
            true => Marks { before: "\x1b[32m", after: "\x1b[0m" },
            false => Marks { before: "⟦", after: "⟧" },
        }
    }
}

impl DataCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        match self.command {
            DataSubcommand::Show(command) => command.main(),
        }
    }
}

impl ShowCommand {
    fn main(self) -> anyhow::Result<()> {
        let config = self.job.config()?;
        stagecoach_data::hide_caught_panics();
        let marks = Marks::of_stdout();
        let mut left = if self.document.is_some() { 1 } else { FIRST_DOCUMENTS };
        let mut is_found = false;
        let read = show_documents(&config.data_config(), self.document.unwrap_or(1), &mut |document| {
            is_found = true;
            left -= 1;
            // the write fails if the reader has closed the pipe: the command then ends
            writeln!(std::io::stdout(), "{}", describe(&document, &marks)).is_ok() && left > 0
        })
        .map_err(StageError::from)?;
        match self.document.filter(|_| !is_found) {
            Some(number) => {
                let problem = format!("there is no document {number}: the corpus has {read} with tokens");
                Err(StageError::invalid(problem).into())
            }
            None => Ok(()),
        }
    }
}

/// Returns a line with the name and the token counts of a document, followed by the document's tokens.
fn describe(document: &ShownDocument, marks: &Marks) -> String {
    let trained = document.tokens.iter().filter(|token| token.is_trained).count();
    let mut text = format!(
        "document {}: {}, {} tokens, {trained} of them trained on\n",
        document.number,
        visible(&document.name.to_string()),
        document.tokens.len()
    );
    for run in document.tokens.chunk_by(|one, other| one.is_trained == other.is_trained) {
        let run_text: String = run.iter().map(|token| token.text.as_str()).collect();
        let run_text = visible(&run_text);
        match run[0].is_trained {
            true => text.extend([marks.before, &run_text, marks.after]),
            false => text += &run_text,
        }
    }
    text + "\n"
}
