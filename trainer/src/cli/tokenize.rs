//! `stagecoach tokenize`: fill the token cache, ahead of a job or to look at a corpus.

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::read::JobArgs;
use crate::plan::JobConfig;

/// Fill the token cache for a job.
#[derive(Debug, Args)]
pub(super) struct Tokenize {
    #[command(flatten)]
    job: JobArgs,
}

impl Tokenize {
    pub(super) fn main(self) -> anyhow::Result<()> {
        let config = JobConfig::new(self.job.read()?, &self.job.workspace)?;
        let bar = ProgressBar::new(0).with_style(
            ProgressStyle::with_template("{msg:28} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}")
                .unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        let prepared = stagecoach_data::prepare(&config.data_config(), &mut |progress| {
            bar.set_message(progress.phase);
            bar.set_length(progress.bytes_total);
            bar.set_position(progress.bytes_done);
        })
        .map_err(crate::fatal::Fatal::from)?;
        bar.finish_and_clear();
        super::say(format!(
            "{} tokens in {} documents, {} words, at {}",
            prepared.tokens,
            prepared.documents,
            prepared.vocab_size,
            config.data_config().cache_root.join(&prepared.folder).display()
        ));
        Ok(())
    }
}
