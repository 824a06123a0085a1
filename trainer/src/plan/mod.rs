//! What stage 0 decides before the first step and all stages follow: numbers the job leaves open (steps, vocabulary),
//! the partition, and the programs. `settings` reads the job, `layout` plans the pipeline, `Plan` is what travels.

mod extension;
mod identity;
mod layout;
mod progress;
mod settings;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stagecoach_checkpoint::Fence;
use stagecoach_data::{MicrobatchLayout, PreparedCorpus};
use stagecoach_pipeline::{Limits, Partition, Programs, verify, verify_evaluation};

pub use extension::Extension;
pub use layout::{Layout, SENDS_IN_FLIGHT, layout};
pub use progress::Progress;
pub use settings::{Settings, tokenizer_vocabulary};

use crate::fatal::Fatal;

/// Made by stage 0, sent to all, the same for all. What is not here is in the job, which every stage has read itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The tokens to train on.
    pub prepared: PreparedCorpus,
    /// Words of embedding and head.
    pub vocab_size: usize,
    /// Steps in all.
    pub steps: u64,
    /// What decides the numbers: checkpoints carry it, and a resume must match it.
    pub identity: serde_json::Value,
    /// The right to commit checkpoints, until a newer group takes the next.
    pub fence: Fence,
    /// Where training goes on: from the checkpoint of `progress.step`, or from fresh weights at step 0.
    pub progress: Progress,
    /// Where fresh weights come from instead, below the volume's root: a Hugging Face model directory.
    pub initial: Option<PathBuf>,
    /// The schedule's name.
    pub schedule: String,
    /// Layers of each chunk.
    pub partition: Vec<usize>,
    /// A training step, in the text form of [`Programs`].
    pub programs: String,
    /// A pass over the held-out part, if there is one.
    pub evaluation: Option<String>,
    /// The held-out part's microbatches.
    pub evaluation_layouts: Vec<MicrobatchLayout>,
    /// Bubble that the simulator expects, 0 to 1, averaged over stages.
    pub expected_bubble: f64,
    /// Training sequences and their tokens, for people.
    pub training_tokens: u64,
    /// Entropy of the held-out part's words, in nats.
    pub unigram_entropy: Option<f64>,
}

/// A plan's programs, read and verified.
#[derive(Clone, Debug)]
pub struct Verified {
    /// A training step.
    pub training: Programs,
    /// A pass over the held-out part.
    pub evaluation: Option<Programs>,
    /// Layers of each chunk.
    pub partition: Partition,
}

impl Plan {
    /// As it travels.
    ///
    /// # Errors
    /// None in practice: the plan has no map keys or numbers that JSON can't hold.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Fatal> {
        serde_json::to_vec(self).map_err(|e| Fatal::invalid(format!("the plan can't be written: {e}")))
    }

    /// Reads and verifies what stage 0 sent.
    ///
    /// # Errors
    /// If it is no plan of this version, or its programs are not correct.
    pub fn from_bytes(bytes: &[u8]) -> Result<(Plan, Verified), Fatal> {
        let plan: Plan = serde_json::from_slice(bytes).map_err(|e| {
            Fatal::invalid(format!("stage 0's plan can't be read ({e}): all stages must run one version"))
        })?;
        let verified = plan.verify()?;
        Ok((plan, verified))
    }

    /// Reads the programs and proves them correct: every stage does so before its first step.
    ///
    /// # Errors
    /// The first violation, with the action.
    pub fn verify(&self) -> Result<Verified, Fatal> {
        let read = |text: &str| Programs::from_text(text).map_err(|e| Fatal::invalid(format!("stage 0's plan: {e}")));
        let limits = Limits { sends_in_flight: SENDS_IN_FLIGHT, max_in_flight: None };
        let wrong = |e| Fatal::invalid(format!("stage 0's plan is wrong: {e}"));
        let training = read(&self.programs)?;
        verify(&training, &limits).map_err(wrong)?;
        let evaluation = self.evaluation.as_deref().map(read).transpose()?;
        if let Some(evaluation) = &evaluation {
            verify_evaluation(evaluation, &limits).map_err(wrong)?;
        }
        Ok(Verified { training, evaluation, partition: Partition { layers: self.partition.clone() } })
    }
}
