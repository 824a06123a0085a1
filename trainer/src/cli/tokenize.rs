//! `stagecoach tokenize`

use clap::Args;
use indicatif::HumanCount;

use super::job_args::JobArgs;
use super::output::{byte_progress_bar, print_line};

/// Fill the token cache for a job.
#[derive(Debug, Args)]
pub(super) struct TokenizeCommand {
    #[command(flatten)]
    job: JobArgs,
}

impl TokenizeCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        let config = self.job.config()?;
        stagecoach_data::hide_caught_panics();
        let bar = byte_progress_bar(0);
        let prepared = stagecoach_data::prepare(&config.data_config(), &mut |progress| {
            bar.set_message(progress.phase);
            bar.set_length(progress.bytes_total);
            bar.set_position(progress.bytes_done);
        })
        .map_err(stagecoach_engine::StageError::from)?;
        bar.finish_and_clear();
        prepared.notes.iter().for_each(|note| print_line(format!("note: {note}")));
        let what = if config.streams { "held-out tokens" } else { "tokens" };
        print_line(format!(
            "{} {what} in {} documents, vocabulary of {} tokens, in {}",
            HumanCount(prepared.tokens),
            HumanCount(prepared.documents),
            HumanCount(prepared.vocab_size as u64),
            config.data_config().cache_root.join(&prepared.folder).display()
        ));
        Ok(())
    }
}
