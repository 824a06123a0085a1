//! Implements the rules of `stagecoach init --from`, which propose a job that continues to train a model. The module
//! reads and writes no files. `sizes` chooses the job's numbers, such as the sequence length and the number of steps.
//! `file` returns the job file, whose comments explain the numbers.

mod file;
mod sizes;
#[cfg(test)]
mod tests;

use stagecoach_engine::StageError;
use stagecoach_model::Architecture;

use super::Facts;
use super::file::{count, plural};
use super::sizes::wanted_stages;
use file::job_file;
use sizes::{FineTuningSizes, Method, lengths};

/// A model directory from which training starts.
#[derive(Clone, Debug)]
pub struct SourceModel {
    /// The directory, relative to the volume's root.
    pub path: String,
    /// The number of parameters, including embedding and head.
    pub parameters: u64,
    /// The number of decoder layers.
    pub layers: usize,
    /// The number of rows of the embedding.
    pub vocab_size: usize,
    /// The largest number of tokens of a sequence.
    pub max_position_embeddings: usize,
}

impl SourceModel {
    /// Returns the model of `architecture` in the directory `path`, which is relative to the volume's root.
    pub fn new(path: String, architecture: &dyn Architecture, max_position_embeddings: usize) -> SourceModel {
        SourceModel {
            path,
            parameters: architecture.parameter_count(),
            layers: architecture.num_layers(),
            vocab_size: architecture.vocab_size(),
            max_position_embeddings,
        }
    }

    /// Returns the path of the model's `tokenizer.json`, relative to the volume's root.
    pub fn tokenizer(&self) -> String {
        format!("{}/tokenizer.json", self.path)
    }

    /// Describes the size of the model for the user.
    pub fn size(&self) -> String {
        format!("{} parameters in {}", count(self.parameters as f64), plural(self.layers, "layer"))
    }
}

/// Returns the text of a file for a job that continues to train `model`. The job has as many stages as
/// [`propose`](super::propose) chooses, or fewer if the memory is too small for so many processes. The job trains all
/// weights on the longest sequences that the corpus allows. If the memory is too small for all weights, the job trains
/// adapters on the longest sequences that fit. `planned_bytes` has the same meaning as in [`propose`](super::propose).
///
/// # Errors
/// Returns an error if a proposed job is invalid, or if the smallest job needs more than
/// [`MEMORY_SHARE`](super::MEMORY_SHARE) of the memory.
pub fn propose_fine_tuning(
    facts: &Facts,
    model: &SourceModel,
    planned_bytes: &dyn Fn(&str) -> Result<u64, StageError>,
) -> Result<String, StageError> {
    let allowed = facts.allowed_stages(wanted_stages(facts).min(model.layers.max(1) as u32));
    let stages = || allowed.clone().rev();
    let full =
        stages().flat_map(|stages| lengths(facts, model).take(1).map(move |length| (Method::Full, stages, length)));
    let lora = stages().flat_map(|stages| lengths(facts, model).map(move |length| (Method::Lora, stages, length)));
    let mut needed = 0;
    for (method, stages, length) in full.chain(lora) {
        let text = job_file(facts, model, &FineTuningSizes::new(facts, model, method, stages, length));
        needed = planned_bytes(&text)?;
        if needed <= facts.memory_limit() {
            return Ok(text);
        }
    }
    let job = format!("{} of the model in {} ({})", Method::Lora.name(), model.path, model.size());
    let remedy = "use a smaller model or a machine with more memory";
    Err(facts.too_little_memory(&job, *allowed.start(), needed, remedy))
}
