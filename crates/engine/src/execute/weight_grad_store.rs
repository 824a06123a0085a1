//! Weight gradients of split backward passes (zero bubble), kept until their W action.

use std::collections::BTreeMap;

use stagecoach_model::WeightGradient;
use stagecoach_pipeline::WorkItem;

/// Weight gradients by chunk and microbatch. Gradients of different microbatches are never merged, because a merge
/// would change the order of summation.
#[derive(Debug, Default)]
pub(super) struct WeightGradStore(BTreeMap<WorkItem, Vec<WeightGradient>>);

impl WeightGradStore {
    pub(super) fn push(&mut self, item: WorkItem, gradient: WeightGradient) {
        self.0.entry(item).or_default().push(gradient);
    }

    /// Adds all gradients of `item` to their accumulators, in the order in which the backward pass produced them.
    pub(super) fn accumulate(&mut self, item: WorkItem) {
        self.0.remove(&item).unwrap_or_default().into_iter().for_each(WeightGradient::accumulate);
    }
}
