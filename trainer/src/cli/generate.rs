//! `stagecoach generate`

use std::io::BufRead;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde::Deserialize;
use serde_json::json;
use stagecoach_engine::generate::{GenerationConfig, Sampling, TextGenerator};

use super::output::{print_data, print_error, print_part};

/// Continue prompts with a trained model.
#[derive(Debug, Args)]
pub(super) struct GenerateCommand {
    /// A Hugging Face model directory, a checkpoint's folder, or a job's folder (its newest checkpoint).
    model: PathBuf,
    /// The text to continue.
    #[arg(long, default_value = "", conflicts_with = "prompts")]
    prompt: String,
    /// A JSON Lines file of prompts, each a line such as {"prompt": "To be"}. Prints a line for each, with its
    /// "completion" and "finishReason". `-` reads the standard input.
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// The maximum number of tokens to generate for a prompt.
    #[arg(long, default_value_t = GenerationConfig::default().max_new_tokens)]
    max_tokens: usize,
    /// Divides the logits; 0 always takes the most likely token.
    #[arg(long, default_value_t = Sampling::default().temperature, value_parser = parse_temperature)]
    temperature: f64,
    /// Sample from this many of the most likely tokens.
    #[arg(long, default_value_t = Sampling::default().top_k, value_parser = parse_top_k)]
    top_k: usize,
    /// Sample from the fewest of the most likely tokens that have this probability together.
    #[arg(long, default_value_t = Sampling::default().top_p, value_parser = parse_top_p)]
    top_p: f64,
    /// A text that ends a continuation, which ends before it. May be given more than once.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    stop: Vec<String>,
    /// Seed of the random number generator. Each prompt begins with it.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Take text of the prompt that looks like a special token, such as `<|im_start|>`, for that token.
    #[arg(long)]
    parse_special_tokens: bool,
}

/// A line of a file of prompts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PromptRecord {
    prompt: String,
}

impl GenerateCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        // a file that can't be read is known before a large model is loaded
        let prompts = self.prompts.as_ref().map(read_prompts).transpose()?;
        let generator = TextGenerator::load(&self.model, self.parse_special_tokens)?;
        let sampling = Sampling { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p };
        let config =
            GenerationConfig { max_new_tokens: self.max_tokens, sampling, stop: self.stop.clone(), seed: self.seed };
        match prompts {
            None => continue_prompt(&generator, &self.prompt, &config),
            Some(prompts) => prompts.iter().try_for_each(|prompt| print_completion(&generator, prompt, &config)),
        }
    }
}

/// Prints the prompt and its continuation as it grows.
fn continue_prompt(generator: &TextGenerator, prompt: &str, config: &GenerationConfig) -> anyhow::Result<()> {
    let spelled: Vec<String> = generator.spelled(prompt).into_iter().collect();
    if !spelled.is_empty() {
        print_error(format!(
            "note: the prompt spells {}, which the model reads as characters; --parse-special-tokens makes tokens of them",
            spelled.join(", ")
        ));
    }
    let ids = generator.prompt_ids(prompt)?;
    print_part(&generator.decode(&ids)?);
    generator.continue_from(&ids, config, &mut |text| print_part(text))?;
    print_part("\n");
    Ok(())
}

/// Prints the completion of a prompt as a line of JSON.
fn print_completion(generator: &TextGenerator, prompt: &str, config: &GenerationConfig) -> anyhow::Result<()> {
    let continuation = generator.continue_from(&generator.prompt_ids(prompt)?, config, &mut |_| {})?;
    let record = json!({
        "prompt": prompt, "completion": continuation.text, "finishReason": continuation.finish_reason.as_str(),
    });
    print_data(&record.to_string());
    Ok(())
}

/// The prompts in a JSON Lines file.
fn read_prompts(path: &PathBuf) -> anyhow::Result<Vec<String>> {
    let name = path.display();
    let input: Box<dyn BufRead> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin().lock()),
        _ => {
            let file = std::fs::File::open(path).with_context(|| format!("can't read {name}"))?;
            Box::new(std::io::BufReader::new(file))
        }
    };
    let mut prompts = Vec::new();
    for (number, line) in (1..).zip(input.lines()) {
        let line = line.with_context(|| format!("can't read {name}, line {number}"))?;
        if line.trim().is_empty() {
            continue;
        }
        let record: PromptRecord = serde_json::from_str(&line)
            .with_context(|| format!("{name}, line {number} is no prompt: expected {{\"prompt\": \"...\"}}"))?;
        prompts.push(record.prompt);
    }
    anyhow::ensure!(!prompts.is_empty(), "{name} has no prompt: expected a line {{\"prompt\": \"...\"}} for each");
    Ok(prompts)
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

fn parse_top_p(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(top_p) if top_p > 0.0 && top_p <= 1.0 => Ok(top_p),
        _ => Err("expected a number above 0, 1 at most".to_owned()),
    }
}
