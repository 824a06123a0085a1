//! The inputs and results of a step.

use std::time::Instant;

use stagecoach_data::{MicrobatchLayout, RowSource};
use stagecoach_group::{AbortKind, GroupError, StepVote, Verdict};
use stagecoach_kernels::device::CudaError;
use stagecoach_pipeline::{Action, ReplicaBlocks};
use stagecoach_transport::LinkError;
use tch::Tensor;

/// Error of a step.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A link to another stage failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The connection to the group was lost.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The GPU or its driver failed.
    #[error(transparent)]
    Device(#[from] CudaError),
    /// The group decided to end the attempt.
    #[error("{reason}")]
    Aborted {
        /// The kind of failure.
        kind: AbortKind,
        /// The reason, in one sentence.
        reason: String,
    },
    /// An action's input is missing; the verifier should have rejected this program.
    #[error("stage {stage} cannot run {action}: {why}")]
    InvalidProgram {
        /// The stage's number.
        stage: usize,
        /// The action that could not run.
        action: Action,
        /// The missing input.
        why: String,
    },
}

/// Inputs of one step on this rank.
#[derive(Debug)]
pub struct StepInputs<'a> {
    /// Shape and document boundaries of each microbatch of this replica; present on every rank.
    pub layouts: &'a [MicrobatchLayout],
    /// Token ids of each microbatch, `i64[rows * length]`; empty except on the first stage.
    pub token_ids: Vec<Tensor>,
    /// Targets of each microbatch, `i64[rows * length]`; empty except on the last stage.
    pub targets: Vec<Tensor>,
    /// The rows of each microbatch, if the step must measure the loss of each source; empty except on the last stage.
    pub rows: Vec<Vec<RowSource>>,
    /// Number of targets in the global batch that count towards the loss; used on the last stage.
    pub target_count: u64,
    /// The order in which the microbatches' losses and gradients are added; for an evaluation's losses, one block.
    pub blocks: &'a ReplicaBlocks,
    /// The initial sum of the cross-entropies: the sum over the finished windows of an evaluation, otherwise 0.
    pub loss_so_far: f64,
    /// Number of the step, counted from 1; `None` runs a window of an evaluation.
    pub step: Option<u64>,
    /// The learning rate of the step.
    pub learning_rate: f64,
    /// The last instant that all stages share, such as the last step's verdict. Measured times count from it.
    pub origin: Instant,
    /// The fields of this rank's vote that the step does not set, such as a due save.
    pub vote: StepVote,
}

/// Result of executing a program.
#[derive(Debug)]
pub struct StepOutput {
    /// The group's decision; `None` in evaluation.
    pub verdict: Option<Verdict>,
    /// The instant at which the decision arrived.
    pub decided_at: Option<Instant>,
    /// Begin and end of each timed action, in seconds since [`StepInputs::origin`].
    pub spans: Vec<(f64, f64)>,
    /// In evaluation, the sum of this rank's cross-entropies, in nats, with [`StepInputs::loss_so_far`]; empty except
    /// on the last stage.
    pub losses: Vec<f64>,
    /// The reason for which this rank abandoned the step, if one of its links failed.
    pub broken_link: Option<String>,
}
