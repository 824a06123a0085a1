//! `stagecoach init --from` without its input and output: proposes a job that continues to train a model. `sizes`
//! chooses the numbers, `file` writes them with their reasons.

mod file;
mod sizes;
#[cfg(test)]
mod tests;

use stagecoach_engine::StageError;
use stagecoach_model::Architecture;

use super::file::{count, plural};
use super::sizes::wanted_stages;
use super::{Facts, MEMORY_SHARE};
use file::job_file;
use sizes::{Method, Sizes, lengths};

/// A model directory to start from.
#[derive(Clone, Debug)]
pub struct SourceModel {
    /// The directory, relative to the volume's root.
    pub path: String,
    /// Parameters, embedding and head included.
    pub parameters: u64,
    /// Decoder layers.
    pub layers: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Tokens of the longest sequence.
    pub max_position_embeddings: usize,
}

impl SourceModel {
    /// The model of `architecture` in the directory `path`, which is relative to the volume's root.
    pub fn new(path: String, architecture: &dyn Architecture, max_position_embeddings: usize) -> SourceModel {
        SourceModel {
            path,
            parameters: architecture.parameter_count(),
            layers: architecture.num_layers(),
            vocab_size: architecture.vocab_size(),
            max_position_embeddings,
        }
    }

    /// The path of its `tokenizer.json`, relative to the volume's root.
    pub fn tokenizer(&self) -> String {
        format!("{}/tokenizer.json", self.path)
    }

    /// The size of the model, in words.
    pub fn size(&self) -> String {
        format!("{} parameters in {}", count(self.parameters as f64), plural(self.layers, "layer"))
    }
}

/// The text of a file for a job that continues to train `model`. The job has as many stages as
/// [`propose`](super::propose) chooses, but fewer if the memory is too small for so many processes. It trains all
/// weights on the longest sequences that the corpus allows, or adapters on the longest sequences that fit, if the
/// memory is too small for all weights. `planned_bytes` is that of [`propose`](super::propose).
///
/// # Errors
/// The problems of the smallest job, or the memory that it needs.
pub fn propose_fine_tuning(
    facts: &Facts,
    model: &SourceModel,
    planned_bytes: &dyn Fn(&str) -> Result<u64, StageError>,
) -> Result<String, StageError> {
    let limit = (facts.memory_bytes as f64 * MEMORY_SHARE) as u64;
    let (fewest, most) = match facts.stages {
        Some(stages) => (stages.max(1), stages.max(1)),
        None => (1, wanted_stages(facts).min(model.layers.max(1) as u32)),
    };
    let stages = || (fewest..=most).rev();
    let full =
        stages().flat_map(|stages| lengths(facts, model).take(1).map(move |length| (Method::Full, stages, length)));
    let lora = stages().flat_map(|stages| lengths(facts, model).map(move |length| (Method::Lora, stages, length)));
    let mut needed = 0;
    for (method, stages, length) in full.chain(lora) {
        let text = job_file(facts, model, &Sizes::new(facts, model, method, stages, length));
        needed = planned_bytes(&text)?;
        if needed <= limit {
            return Ok(text);
        }
    }
    let remedy = if fewest > 1 { "give fewer stages (--stages), or " } else { "" };
    Err(StageError::invalid(format!(
        "{} of the model in {} ({}) over {} needs {needed} bytes of memory, and {limit} of this machine's {} may be used \
         ({:.0}%): {remedy}use a smaller model or a machine with more memory",
        Method::Lora.name(),
        model.path,
        model.size(),
        plural(fewest as usize, "stage"),
        facts.memory_bytes,
        100.0 * MEMORY_SHARE
    )))
}
