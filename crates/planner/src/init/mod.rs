//! `stagecoach init` without its input and output: proposes a job for a machine and a workspace. `sizes` chooses the
//! numbers, `file` writes them with their reasons. `fine_tuning` proposes a job for a model that is trained already.

mod file;
mod fine_tuning;
mod sizes;
#[cfg(test)]
mod tests;

use stagecoach_data::Texts;

pub use fine_tuning::{SourceModel, propose_fine_tuning};

use file::{job_file, plural};
use sizes::{SHAPES, Sizes, wanted_stages};
use stagecoach_engine::StageError;

/// The detected hardware and corpus, and the user's choices.
#[derive(Clone, Debug)]
pub struct Facts {
    /// `metadata.name`.
    pub name: String,
    /// The number of stages that the user requested.
    pub stages: Option<u32>,
    /// Usable GPUs.
    pub gpus: usize,
    /// Processors that this process may use.
    pub processors: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The corpus.
    pub texts: Texts,
}

/// The share of the memory that the plan may assign to the stages. The launcher, the corpus in the page cache, and all
/// other processes use the rest.
pub const MEMORY_SHARE: f64 = 0.6;

/// The fewest bytes of text that can be split into training and evaluation text.
pub const MIN_CORPUS_BYTES: u64 = 1000;

/// The text of a job file: the largest model that the corpus, the time of a first run and the memory allow. The job has
/// a stage for each GPU, or a few stages on processors, but fewer if the memory is too small for so many processes.
/// `planned_bytes` validates a job file, and returns the peak bytes of all its stages.
///
/// # Errors
/// The problems of the smallest job, or the memory that it needs.
pub fn propose(facts: &Facts, planned_bytes: &dyn Fn(&str) -> Result<u64, StageError>) -> Result<String, StageError> {
    let limit = (facts.memory_bytes as f64 * MEMORY_SHARE) as u64;
    let (fewest, most) = match facts.stages {
        Some(stages) => (stages.max(1), stages.max(1)),
        None => (1, wanted_stages(facts)),
    };
    let mut needed = 0;
    for stages in (fewest..=most).rev() {
        for shape in SHAPES.iter().rev() {
            let sizes = Sizes::new(facts, shape, stages);
            if !sizes.is_trained_in_time(facts) && shape != &SHAPES[0] {
                continue;
            }
            let text = job_file(facts, &sizes);
            needed = planned_bytes(&text)?;
            if needed <= limit {
                return Ok(text);
            }
        }
    }
    let remedy = if fewest > 1 { "give fewer stages (--stages), or " } else { "" };
    Err(StageError::invalid(format!(
        "the smallest model over {} needs {needed} bytes of memory, and {limit} of this machine's {} may be used \
         ({:.0}%): {remedy}use a machine with more memory",
        plural(fewest as usize, "stage"),
        facts.memory_bytes,
        100.0 * MEMORY_SHARE
    )))
}
