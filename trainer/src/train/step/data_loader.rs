//! Builds the input and target tensors: token ids on the first stage, targets on the last stage, and nothing on the
//! stages between them.

use std::ops::Range;
use std::time::Duration;

use stagecoach_data::{BatchPlan, DataConfig, DataError, Dataset, HeldOutSet, OnWait, RowSource, StreamPosition};
use stagecoach_kernels::upload;
use stagecoach_pipeline::Placement;
use stagecoach_planner::Plan;
use stagecoach_telemetry::{EventWriter, TrainingEvent};
use tch::{Device, Tensor};

use crate::train::context::StageContext;
use crate::train::leave::LeaveReason;

/// The data loader of this rank.
pub(in crate::train) struct DataLoader {
    dataset: Dataset,
    has_embedding: bool,
    has_head: bool,
    rows: usize,
    seed: u64,
    global_batch_size: usize,
    microbatches: usize,
    device: Device,
}

/// The tensors of one step, or of the microbatches that an evaluation computes at the same time.
#[derive(Debug, Default)]
pub(in crate::train) struct BatchTensors {
    pub(in crate::train) token_ids: Vec<Tensor>,
    pub(in crate::train) targets: Vec<Tensor>,
    /// For each microbatch in `targets`, the sources of its rows. Empty in a job with one source.
    pub(in crate::train) rows: Vec<Vec<RowSource>>,
}

impl DataLoader {
    /// Opens the token cache if `rank` holds the first or the last chunk, and returns `None` on other ranks. The leader
    /// of a group also begins to write the windows of a streamed corpus: files of a fixed number of sequences, which it
    /// writes ahead of training.
    pub(in crate::train) fn open(
        context: &StageContext,
        plan: &Plan,
        rank: usize,
        placement: &Placement,
    ) -> Result<Option<DataLoader>, LeaveReason> {
        let StageContext { config, device, replay, .. } = *context;
        let has_embedding = placement.first_rank() == rank;
        let has_head = placement.last_rank() == rank;
        if !has_embedding && !has_head {
            return Ok(None);
        }
        let on_wait = waits_as_notes(context.monitor.event_writer().clone());
        let data_config = DataConfig { on_wait, ..config.resuming(&plan.identity)?.data_config() };
        let mut dataset = Dataset::open(&data_config, &plan.prepared)?.without(replay.without.clone());
        if context.is_leader() {
            dataset.make_windows(&data_config, &plan.prepared, &plan.trainer_state.streams)?;
        }
        Ok(Some(DataLoader {
            dataset,
            has_embedding,
            has_head,
            rows: config.microbatch_size(),
            seed: config.training.seed,
            global_batch_size: config.training.global_batch_size as usize,
            microbatches: config.training.microbatches as usize,
            device,
        }))
    }

    /// Waits for the data of step `index` (from 0) while `keep_waiting` returns true. The argument of `keep_waiting` is
    /// a number that grows while the sources are read. Returns the duration of the wait, or `None` if the corpus is not
    /// streamed.
    ///
    /// # Errors
    /// If the data can't be read, or `WaitEnded` if `keep_waiting` returns false.
    pub(in crate::train) fn wait_for_step(
        &self,
        index: u64,
        keep_waiting: &dyn Fn(u64) -> bool,
    ) -> Result<Option<Duration>, DataError> {
        self.dataset.wait_for_step(self.position(index), self.global_batch_size, keep_waiting)
    }

    /// Returns the batch of step `index` (from 0). The batch is a function of seed and position only.
    ///
    /// # Errors
    /// If the data can't be read.
    pub(in crate::train) fn step_plan(&self, index: u64) -> Result<BatchPlan, DataError> {
        self.dataset.step_plan(self.seed, self.position(index), self.global_batch_size, self.microbatches)
    }

    /// Returns the positions of the sources after step `index` (from 0), or no positions if the corpus is not streamed.
    pub(in crate::train) fn streams_after(&self, index: u64) -> Vec<StreamPosition> {
        self.dataset.stream_positions(self.position(index + 1))
    }

    /// Returns messages about the documents of a streamed corpus that were read for the first `steps` steps. Returns no
    /// messages if this process has trained none of these steps, or if the corpus is not streamed.
    pub(in crate::train) fn stream_notes(&self, steps: u64) -> Vec<String> {
        self.dataset.stream_notes(self.position(steps))
    }

    fn position(&self, index: u64) -> u64 {
        index * self.global_batch_size as u64
    }

    /// Returns the held-out sets.
    pub(in crate::train) fn evaluation_sets(&self) -> Vec<HeldOutSet> {
        self.dataset.evaluation_sets(self.rows)
    }

    /// Returns the tensors that this rank needs for these microbatches of `plan`.
    pub(in crate::train) fn tensors(&self, plan: &BatchPlan, microbatches: Range<usize>) -> BatchTensors {
        let mut tensors = BatchTensors::default();
        for index in microbatches {
            let microbatch = self.dataset.microbatch(plan, index);
            if self.has_embedding {
                tensors.token_ids.push(upload(&Tensor::from_slice(&microbatch.inputs), self.device));
            }
            if self.has_head {
                let rows = self.dataset.row_sources(plan, index, &microbatch);
                tensors.rows.extend(Some(rows).filter(|rows| !rows.is_empty()));
                tensors.targets.push(upload(&Tensor::from_slice(&microbatch.targets), self.device));
            }
        }
        tensors
    }
}

/// Returns a callback that reports waits for remote sources as notes.
fn waits_as_notes(event_writer: EventWriter) -> OnWait {
    OnWait::without_repetitions(move |sentence| {
        event_writer.emit(&TrainingEvent::Note { message: sentence.to_owned() });
    })
}
