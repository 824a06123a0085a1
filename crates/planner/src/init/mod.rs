//! Implements the rules of `stagecoach init`, which propose a job for a machine and a workspace. The module reads and
//! writes no files. `sizes` chooses the numbers, and `file` returns the job file with the numbers and their reasons.
//! `fine_tuning` proposes a job for a pretrained model.

mod file;
mod fine_tuning;
mod sizes;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

use stagecoach_data::Texts;

pub use fine_tuning::{SourceModel, propose_fine_tuning};

use file::{job_file, plural};
use sizes::{PretrainingSizes, SHAPES, wanted_stages};
use stagecoach_engine::StageError;

/// The detected hardware and corpus, and the user's choices.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The job's `metadata.name`.
    pub name: String,
    /// The number of stages that the user requested; `None` if the rules choose it.
    pub stages: Option<u32>,
    /// The number of usable GPUs.
    pub gpus: usize,
    /// The number of processors that this process may use.
    pub processors: usize,
    /// The machine's memory, in bytes.
    pub memory_bytes: u64,
    /// The texts of the corpus.
    pub texts: Texts,
}

impl Facts {
    /// Returns the numbers of stages that the job may have: the number that the user requested, otherwise 1 to `most`.
    fn allowed_stages(&self, most: u32) -> RangeInclusive<u32> {
        match self.stages {
            Some(stages) => stages.max(1)..=stages.max(1),
            None => 1..=most,
        }
    }

    /// Returns the bytes that the plan may assign to the stages.
    fn memory_limit(&self) -> u64 {
        (self.memory_bytes as f64 * MEMORY_SHARE) as u64
    }

    /// Returns the error of a job that exceeds the memory limit: it needs `needed` bytes even with its fewest stages,
    /// `stages`.
    fn too_little_memory(&self, job: &str, stages: u32, needed: u64, remedy: &str) -> StageError {
        let fewer = if stages > 1 { "give fewer stages (--stages), or " } else { "" };
        StageError::invalid(format!(
            "{job} over {} needs {needed} bytes of memory, and {} of this machine's {} may be used ({:.0}%): \
             {fewer}{remedy}",
            plural(stages as usize, "stage"),
            self.memory_limit(),
            self.memory_bytes,
            100.0 * MEMORY_SHARE
        ))
    }
}

/// The share of the memory that the plan may assign to the stages. The remaining memory is for the launcher, the corpus
/// in the page cache, and all other processes.
pub const MEMORY_SHARE: f64 = 0.6;

/// The fewest bytes of text that can be split into training and evaluation text.
pub const MIN_CORPUS_BYTES: u64 = 1000;

/// Returns the text of a job file with the largest model that the corpus, the time of a first run and the memory allow.
/// The job has a stage for each GPU, or two or three stages on a machine with fewer than two GPUs. It has fewer stages
/// if the memory is too small for so many processes. `planned_bytes` validates the text of a job file and returns the
/// sum of its stages' peak bytes.
///
/// # Errors
/// Returns an error if a proposed job is invalid, or if the smallest job needs more than [`MEMORY_SHARE`] of the
/// memory.
pub fn propose(facts: &Facts, planned_bytes: &dyn Fn(&str) -> Result<u64, StageError>) -> Result<String, StageError> {
    let allowed = facts.allowed_stages(wanted_stages(facts));
    let mut needed = 0;
    for stages in allowed.clone().rev() {
        for shape in SHAPES.iter().rev() {
            let sizes = PretrainingSizes::new(facts, shape, stages);
            if !sizes.is_trained_in_time(facts) && shape != &SHAPES[0] {
                continue;
            }
            let text = job_file(facts, &sizes);
            needed = planned_bytes(&text)?;
            if needed <= facts.memory_limit() {
                return Ok(text);
            }
        }
    }
    Err(facts.too_little_memory("the smallest model", *allowed.start(), needed, "use a machine with more memory"))
}
