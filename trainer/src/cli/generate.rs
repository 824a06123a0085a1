//! `stagecoach generate`: continue a prompt.

use std::path::PathBuf;

use clap::Args;

use crate::generate::{Sampling, sample};

/// Continue a prompt with a trained model.
#[derive(Debug, Args)]
pub(super) struct Generate {
    /// A Hugging Face model directory, a checkpoint's folder, or a job's (then its newest checkpoint).
    model: PathBuf,
    /// What the text starts with.
    #[arg(long, default_value = "")]
    prompt: String,
    /// Tokens to add at most.
    #[arg(long, default_value_t = Sampling::default().max_tokens)]
    max_tokens: usize,
    /// Below 1 the likely becomes likelier; 0 always takes the likeliest.
    #[arg(long, default_value_t = Sampling::default().temperature)]
    temperature: f64,
    /// Draw from so many of the likeliest tokens.
    #[arg(long, default_value_t = Sampling::default().top_k)]
    top_k: usize,
    /// Another seed, another text.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Generate {
    pub(super) fn main(self) -> anyhow::Result<()> {
        let Generate { model, prompt, max_tokens, temperature, top_k, seed } = self;
        super::say(sample(&model, &prompt, Sampling { max_tokens, temperature, top_k, seed })?);
        Ok(())
    }
}
