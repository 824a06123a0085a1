//! Token ids on their way into tensors: on the first stage inputs, on the last targets, elsewhere nothing.

use stagecoach_data::{Dataset, StepPlan};
use stagecoach_pipeline::Placement;
use tch::{Device, Tensor};

use crate::fatal::Fatal;
use crate::plan::{Plan, Settings};

/// This rank's view of the data.
pub(super) struct Batches {
    dataset: Dataset,
    inputs: bool,
    targets: bool,
    rows: usize,
    seed: u64,
    batch: usize,
    microbatches: usize,
    device: Device,
}

/// One pass's tensors.
#[derive(Debug, Default)]
pub(super) struct Tensors {
    pub(super) inputs: Vec<Tensor>,
    pub(super) targets: Vec<Tensor>,
}

impl Batches {
    /// Maps the tokens if `rank` holds the first or the last chunk.
    pub(super) fn open(
        settings: &Settings,
        plan: &Plan,
        rank: usize,
        placement: &Placement,
        device: Device,
    ) -> Result<Option<Batches>, Fatal> {
        let inputs = placement.rank_of(0) == rank;
        let targets = placement.rank_of(placement.chunks() - 1) == rank;
        if !inputs && !targets {
            return Ok(None);
        }
        Ok(Some(Batches {
            dataset: Dataset::open(&settings.data(), &plan.prepared)?,
            inputs,
            targets,
            rows: settings.rows(),
            seed: settings.training.seed,
            batch: settings.training.global_batch_size as usize,
            microbatches: settings.training.microbatches as usize,
            device,
        }))
    }

    /// What step `index` (from 0) trains on: a function of seed and position alone.
    pub(super) fn step(&self, index: u64) -> StepPlan {
        self.dataset.step(self.seed, index * self.batch as u64, self.batch, self.microbatches)
    }

    /// The held-out part.
    pub(super) fn held_out(&self) -> StepPlan {
        self.dataset.evaluation(self.rows)
    }

    /// The tensors of `plan` that this rank needs.
    pub(super) fn tensors(&self, plan: &StepPlan) -> Tensors {
        let mut tensors = Tensors::default();
        for index in 0..plan.layouts.len() {
            let microbatch = self.dataset.microbatch(plan, index);
            let (rows, length) = (microbatch.layout.rows as i64, microbatch.layout.length as i64);
            if self.inputs {
                let ids = Tensor::from_slice(&microbatch.inputs).view([rows, length]);
                tensors.inputs.push(ids.to_device(self.device));
            }
            if self.targets {
                tensors.targets.push(Tensor::from_slice(&microbatch.targets).to_device(self.device));
            }
        }
        tensors
    }

    /// The tokenizer's files, to be saved with the model.
    pub(super) fn tokenizer_files(&self) -> (std::path::PathBuf, std::path::PathBuf) {
        self.dataset.tokenizer_files()
    }
}
