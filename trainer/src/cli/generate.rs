//! `stagecoach generate`

use std::path::PathBuf;

use clap::Args;
use stagecoach_engine::generate::{GeneratedText, GenerationConfig, generate_text};

use super::output::{print_data, print_error};

/// Continue a prompt with a trained model.
#[derive(Debug, Args)]
pub(super) struct GenerateCommand {
    /// A Hugging Face model directory, a checkpoint's folder, or a job's folder (its newest checkpoint).
    model: PathBuf,
    /// The text to continue.
    #[arg(long, default_value = "")]
    prompt: String,
    /// The maximum number of tokens to generate.
    #[arg(long, default_value_t = GenerationConfig::default().max_new_tokens)]
    max_tokens: usize,
    /// Divides the logits; 0 always takes the most likely token.
    #[arg(long, default_value_t = GenerationConfig::default().temperature, value_parser = parse_temperature)]
    temperature: f64,
    /// Sample from this many of the most likely tokens.
    #[arg(long, default_value_t = GenerationConfig::default().top_k, value_parser = parse_top_k)]
    top_k: usize,
    /// Seed of the random number generator.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Take text of the prompt that looks like a special token, such as `<|im_start|>`, for that token.
    #[arg(long)]
    parse_special_tokens: bool,
}

impl GenerateCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        let GenerateCommand {
            model,
            prompt,
            max_tokens: max_new_tokens,
            temperature,
            top_k,
            seed,
            parse_special_tokens,
        } = self;
        let generation = GenerationConfig { max_new_tokens, temperature, top_k, seed, parse_special_tokens };
        let GeneratedText { text, spelled } = generate_text(&model, &prompt, generation)?;
        if !spelled.is_empty() {
            let names: Vec<String> = spelled.into_iter().collect();
            print_error(format!(
                "note: the prompt spells {}, which the model reads as characters; --parse-special-tokens makes tokens of them",
                names.join(", ")
            ));
        }
        print_data(&text);
        Ok(())
    }
}

fn parse_temperature(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(temperature) if (0.0..=f64::MAX).contains(&temperature) => Ok(temperature),
        _ => Err("expected a number, 0 or more".to_owned()),
    }
}

fn parse_top_k(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(top_k) if top_k > 0 => Ok(top_k),
        _ => Err("expected a whole number, 1 or more".to_owned()),
    }
}
