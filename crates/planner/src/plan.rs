//! The plan of a group, the processes of a job that train together. The leader of the group makes the plan, and every
//! stage verifies it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stagecoach_api::job::Recompute;
use stagecoach_checkpoint::Fence;
use stagecoach_data::{MicrobatchLayout, PreparedCorpus};
use stagecoach_engine::StageError;
use stagecoach_pipeline::{
    GradientBlocks, Limits, Partition, Programs, Replica, ReplicaBlocks, verify, verify_evaluation,
};

use crate::trainer_state::TrainerState;

/// The plan of a group. The leader creates the plan and sends it to every member. All other settings are in the job,
/// which each stage reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The tokenized corpus.
    pub prepared: PreparedCorpus,
    /// The number of rows of embedding and head.
    pub vocab_size: usize,
    /// The number of steps, including the steps that are already trained.
    pub steps: u64,
    /// The identity: everything that determines the numerical results. Checkpoints contain the identity, and the job
    /// resumes only from a checkpoint with the same identity.
    pub identity: serde_json::Value,
    /// The group's fence: the right to commit checkpoints. The right ends when a newer group acquires the next fence.
    pub fence: Fence,
    /// The state from which the group starts: the state in the checkpoint from which it resumes, or the initial state
    /// at step 0.
    #[serde(rename = "progress")]
    pub trainer_state: TrainerState,
    /// The Hugging Face model directory, relative to the volume's root, with the weights of step 0. `None` if the
    /// weights are initialised randomly.
    #[serde(rename = "initial")]
    pub initial_weights: Option<PathBuf>,
    /// The schedule's name.
    pub schedule: String,
    /// The number of layers of each chunk of the programs. A chunk is a group of consecutive layers on one stage.
    pub partition: Vec<usize>,
    /// The number of parts into which the programs divide each chunk of the schedule.
    pub parts: Vec<usize>,
    /// The activations that the backward pass recomputes.
    pub recompute: Recompute,
    /// The planned number of work items in flight on each stage: microbatches of a chunk whose forward has run and
    /// whose backward is not complete. The program of a stage may not exceed this number.
    pub in_flight: Vec<usize>,
    /// The planned peak bytes of each stage.
    pub stage_bytes: Vec<u64>,
    /// The number of gradient blocks of a step: fixed groups of microbatches whose gradients are added in a fixed
    /// order.
    pub gradient_blocks: usize,
    /// The number of replicas of the pipeline.
    pub data_parallel: usize,
    /// The number of microbatches of a step, over all replicas.
    pub microbatches: usize,
    /// The programs of a training step, in the text form of [`Programs`]. The first entry is for the replicas with the
    /// most microbatches. The second entry exists if some replicas have fewer microbatches, and is for those replicas.
    pub programs: Vec<String>,
    /// The programs of an evaluation's windows. A window is the group of microbatches that an evaluation runs with one
    /// program. The list has one program for each size of a window, the largest first; it is empty without held-out
    /// sequences.
    pub evaluation: Vec<String>,
    /// The held-out sets.
    pub evaluation_sets: Vec<PlannedSet>,
    /// The simulated bubble, 0 to 1, averaged over stages.
    pub expected_bubble: f64,
    /// The number of tokens in the training sequences, for display; `None` for a streamed corpus.
    pub training_tokens: Option<u64>,
    /// The unigram entropy of the held-out tokens, in nats.
    pub unigram_entropy: Option<f64>,
}

/// A held-out set in a plan.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct PlannedSet {
    /// The name of the set or of the source; empty for a held-out part without a name.
    pub name: String,
    /// Whether the set's targets count towards the job's held-out loss.
    pub counts: bool,
    /// The set's microbatches, over all windows.
    pub layouts: Vec<MicrobatchLayout>,
    /// The number of targets of the set.
    pub target_count: u64,
}

/// A plan's programs, parsed and verified.
#[derive(Clone, Debug)]
pub struct VerifiedPlan {
    /// The replica of the stage that verified the plan.
    pub replica: Replica,
    /// The programs of a training step of this replica.
    pub training: Programs,
    /// The blocks that this replica computes.
    pub blocks: ReplicaBlocks,
    /// The programs of an evaluation's windows, one for each number of microbatches, the largest first.
    pub evaluation: Vec<Programs>,
    /// The layers of each chunk of the programs.
    pub partition: Partition,
}

impl Plan {
    /// Returns the layers of each chunk of the schedule.
    pub fn schedule_partition(&self) -> Partition {
        Partition { layers: self.partition.clone() }.merge(&self.parts)
    }

    /// Serialises the plan for the other stages.
    ///
    /// # Errors
    /// Returns an error if the plan can't be written as JSON. This does not happen in practice, because the plan
    /// contains no map keys or numbers that JSON cannot represent.
    pub fn to_bytes(&self) -> Result<Vec<u8>, StageError> {
        serde_json::to_vec(self).map_err(|e| StageError::invalid(format!("the plan can't be written: {e}")))
    }

    /// Deserialises and verifies the plan that the leader sent, for the stage of `rank`.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a plan of this version, or if the programs are incorrect.
    pub fn from_bytes(bytes: &[u8], rank: usize) -> Result<(Plan, VerifiedPlan), StageError> {
        let plan: Plan = serde_json::from_slice(bytes).map_err(|e| {
            StageError::invalid(format!(
                "the leader's plan can't be read ({e}): all stages must run the same version of Stagecoach"
            ))
        })?;
        let verified = plan.verify(rank)?;
        Ok((plan, verified))
    }

    /// Parses and verifies the programs for the stage of `rank`. Every stage calls this method before its first step.
    ///
    /// # Errors
    /// Returns an error if the programs are incorrect. The error has the first violation, with the action.
    pub fn verify(&self, rank: usize) -> Result<VerifiedPlan, StageError> {
        let read =
            |text: &str| Programs::from_text(text).map_err(|e| StageError::invalid(format!("the leader's plan: {e}")));
        let limits = Limits { max_in_flight: Some(self.in_flight.clone()), ..Limits::default() };
        let wrong = |e| StageError::invalid(format!("the leader's plan is wrong: {e}"));
        let all = self.programs.iter().map(|text| read(text)).collect::<Result<Vec<Programs>, StageError>>()?;
        for programs in &all {
            verify(programs, &limits).map_err(wrong)?;
        }
        let stages = all.first().map_or(1, |programs| programs.placement.ranks());
        let replica = Replica { index: rank / stages, count: self.data_parallel };
        let (blocks, microbatches) = (self.gradient_blocks, self.microbatches);
        let blocks = GradientBlocks::new(blocks, microbatches).filter(|blocks| replica.count <= blocks.count());
        let blocks = blocks.map(|blocks| blocks.of_replica(replica.index, replica.count)).ok_or_else(|| {
            StageError::invalid(format!(
                "the leader's plan is wrong: {} gradient blocks of {microbatches} microbatches for {} replicas",
                self.gradient_blocks, self.data_parallel
            ))
        })?;
        let own = all.into_iter().find(|programs| programs.microbatches == blocks.microbatches().len());
        let training = own.filter(|programs| programs.replicated() == (replica.count > 1)).ok_or_else(|| {
            StageError::invalid(format!("the leader's plan is wrong: it has no programs for replica {}", replica.index))
        })?;
        let evaluation =
            self.evaluation.iter().map(|text| read(text)).collect::<Result<Vec<Programs>, StageError>>()?;
        for window in &evaluation {
            verify_evaluation(window, &limits).map_err(wrong)?;
        }
        Ok(VerifiedPlan {
            replica,
            training,
            blocks,
            evaluation,
            partition: Partition { layers: self.partition.clone() },
        })
    }
}
