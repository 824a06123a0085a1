//! The inputs, results and measurements of a step. The vote that a rank sends at the end of a step contains the
//! measurements as a list of numbers without names.

use std::time::Instant;

use stagecoach_data::{MicrobatchLayout, RowSource};
use stagecoach_group::{AbortKind, GroupError, StepVote, Verdict};
use stagecoach_kernels::device::CudaError;
use stagecoach_pipeline::{Action, ReplicaBlocks};
use stagecoach_transport::LinkError;
use tch::Tensor;

/// The error of a step.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A link to another stage failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The group has failed, or the connection to it was lost.
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

/// The inputs of one step on this rank.
#[derive(Debug)]
pub struct StepInputs<'a> {
    /// The shape and document boundaries of each microbatch of this replica; present on every rank.
    pub layouts: &'a [MicrobatchLayout],
    /// The token ids of each microbatch, `i64[rows * length]`; empty except on the first stage.
    pub token_ids: Vec<Tensor>,
    /// The targets of each microbatch, `i64[rows * length]`; empty except on the last stage.
    pub targets: Vec<Tensor>,
    /// The rows of each microbatch, if the step must measure the loss of each source; empty except on the last stage.
    pub rows: Vec<Vec<RowSource>>,
    /// The number of targets in the global batch that count in the loss; used on the last stage.
    pub target_count: u64,
    /// The gradient blocks, which define the order in which the microbatches' losses and gradients are added. An
    /// evaluation has one block.
    pub blocks: &'a ReplicaBlocks,
    /// The initial sum of the cross-entropies: in an evaluation, the sum over the finished windows, otherwise 0. A
    /// window is the microbatches of an evaluation that one program computes.
    pub loss_so_far: f64,
    /// The number of the step, counted from 1; `None` for a window of an evaluation.
    pub step: Option<u64>,
    /// The learning rate of the step.
    pub learning_rate: f64,
    /// The last instant that all stages share, such as the last step's verdict. Measured times are relative to this
    /// instant.
    pub origin: Instant,
    /// The fields of this rank's vote that the step does not set, such as `save_due`.
    pub vote: StepVote,
}

/// The result of the execution of a program.
#[derive(Debug)]
pub struct StepOutput {
    /// The group's decision; `None` in evaluation.
    pub verdict: Option<Verdict>,
    /// The instant at which the decision arrived.
    pub decided_at: Option<Instant>,
    /// The begin and end of each timed action, in seconds since [`StepInputs::origin`].
    pub spans: Vec<(f64, f64)>,
    /// In evaluation, the sum of this rank's cross-entropies, in nats, including [`StepInputs::loss_so_far`]; empty
    /// except on the last stage.
    pub losses: Vec<f64>,
    /// The reason why this rank abandoned the step, if one of its links failed.
    pub broken_link: Option<String>,
}

/// The measurements of one step on one stage, up to its vote.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepMeasurements {
    /// The number of bytes sent over the links since the links were opened.
    pub bytes_sent: f64,
    /// The peak memory use so far, in bytes: of the stage's tensors on a GPU, otherwise the resident memory of this
    /// process.
    pub peak_bytes: f64,
    /// For each source of the corpus, the sum of the losses of its targets, in nats, and the number of these targets.
    /// Only stages with the head measure these losses, in a job with several sources.
    pub source_losses: Vec<(f64, f64)>,
    /// The begin and end of each timed action, in seconds since the origin that all stages share. Only the first
    /// replica measures them.
    pub spans: Vec<(f64, f64)>,
}

impl StepMeasurements {
    /// Returns the numbers for [`StepVote::measurements`](stagecoach_group::StepVote::measurements).
    pub fn to_vec(&self) -> Vec<f64> {
        let pairs = self.source_losses.iter().chain(&self.spans).flat_map(|&(first, second)| [first, second]);
        [self.bytes_sent, self.peak_bytes, self.source_losses.len() as f64].into_iter().chain(pairs).collect()
    }

    /// Parses the numbers of [`to_vec`](Self::to_vec). A missing number is read as 0.
    pub fn from_slice(numbers: &[f64]) -> StepMeasurements {
        let number = |index: usize| numbers.get(index).copied().unwrap_or(0.0);
        let pairs = numbers.get(3..).unwrap_or_default().chunks_exact(2);
        let mut source_losses: Vec<(f64, f64)> = pairs.map(|pair| (pair[0], pair[1])).collect();
        let spans = source_losses.split_off((number(2) as usize).min(source_losses.len()));
        StepMeasurements { bytes_sent: number(0), peak_bytes: number(1), source_losses, spans }
    }
}
