//! The rules that choose the numbers of a fine-tuning job.

use super::super::Facts;
use super::super::sizes::{TrainingSizes, microbatches};
use super::SourceModel;

/// The sequence lengths that a job can have, the longest first.
pub(super) const LENGTHS: [u32; 8] = [2048, 1024, 512, 256, 128, 64, 32, 16];
/// The longest sequence length on CPUs, where attention over long texts takes most of the time.
const MOST_ON_PROCESSORS: u32 = 512;
/// The smallest number of sequences that the corpus must have at an allowed sequence length. With fewer, a step could
/// train on the same text twice.
const LEAST_SEQUENCES: f64 = 200.0;
/// The number of tokens that a step should have. If a step with one row per microbatch has fewer tokens, each
/// microbatch gets several rows.
const LEAST_TOKENS_OF_STEP: u32 = 2048;
const MOST_ROWS: u32 = 8;
/// The number of passes over the corpus. A pretrained model memorises texts after few passes.
const EPOCHS: f64 = 3.0;
const LEAST_STEPS: u32 = 20;

/// The method of fine-tuning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// Trains every weight.
    Full,
    /// Trains adapters of all linear layers beside frozen weights.
    Lora,
}

impl Method {
    pub(super) fn name(self) -> &'static str {
        match self {
            Method::Full => "full fine-tuning",
            Method::Lora => "fine-tuning of adapters (LoRA)",
        }
    }

    /// Returns the peak of the learning rate. Full fine-tuning needs a far lower rate than training from scratch, and
    /// larger models need lower rates. Adapters begin at zero, and need about ten times the rate of full fine-tuning.
    pub(super) fn learning_rate(self, model: &SourceModel) -> f64 {
        match (self, model.parameters) {
            (Method::Lora, _) => 2e-4,
            (Method::Full, 0..10_000_000) => 3e-4,
            (Method::Full, 10_000_000..100_000_000) => 1e-4,
            (Method::Full, 100_000_000..1_000_000_000) => 5e-5,
            (Method::Full, _) => 2e-5,
        }
    }
}

/// The numbers of a fine-tuning job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FineTuningSizes {
    pub(super) method: Method,
    /// The number of passes over the corpus.
    pub(super) epochs: f64,
    pub(super) training: TrainingSizes,
}

impl FineTuningSizes {
    pub(super) fn new(
        facts: &Facts,
        model: &SourceModel,
        method: Method,
        stages: u32,
        sequence_length: u32,
    ) -> FineTuningSizes {
        let tokens = tokens(facts, model);
        let rows = (LEAST_TOKENS_OF_STEP / (microbatches(stages) * sequence_length)).clamp(1, MOST_ROWS);
        let step = TrainingSizes::of_step(facts, stages, sequence_length, rows, method.learning_rate(model), tokens);
        let by_epochs = (EPOCHS * tokens / step.tokens_of_step()).ceil();
        let training = step.with_steps(facts, model.parameters as f64, by_epochs, LEAST_STEPS, 5);
        let epochs = f64::from(training.steps) * training.tokens_of_step() / tokens.max(1.0);
        FineTuningSizes { method, epochs, training }
    }
}

/// Returns the sequence lengths that model, corpus and machine allow, the longest first. There is at least one.
pub(super) fn lengths(facts: &Facts, model: &SourceModel) -> impl Iterator<Item = u32> {
    let most = if facts.gpus == 0 { MOST_ON_PROCESSORS } else { LENGTHS[0] };
    let by_model = u32::try_from(model.max_position_embeddings).unwrap_or(u32::MAX);
    let by_corpus = tokens(facts, model) / LEAST_SEQUENCES;
    let shortest = LENGTHS[LENGTHS.len() - 1].min(by_model);
    let allowed = move |length: &u32| *length <= most && *length <= by_model && f64::from(*length) <= by_corpus;
    LENGTHS.into_iter().filter(move |length| allowed(length) && *length != shortest).chain([shortest])
}

/// Estimates the number of tokens of the corpus, from the bytes per token of English text with a vocabulary of the
/// model's size.
fn tokens(facts: &Facts, model: &SourceModel) -> f64 {
    let bytes_per_token = match model.vocab_size {
        0..1000 => 1.5,
        1000..8000 => 2.8,
        8000..30_000 => 3.6,
        _ => 4.2,
    };
    facts.texts.bytes as f64 / bytes_per_token
}
