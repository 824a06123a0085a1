//! Weight gradients that are not accumulated yet, by chunk and microbatch.

use std::collections::BTreeMap;

use stagecoach_pipeline::WorkItem;
use tch::Tensor;

use super::ops::{DeferredGradient, GradientSink, accumulate_linear};

/// A weight gradient to be added to the accumulator of `parameter`.
#[derive(Debug)]
enum StoredGradient {
    /// As a layer's backward pass deferred it.
    Layer(DeferredGradient),
    /// Of an embedding: `accumulator[token_ids[i]] += dy[i]`.
    Embedding { parameter: usize, token_ids: Tensor, dy: Tensor },
}

/// `accumulator += gradient`, in place.
pub(crate) fn accumulate(accumulator: &Tensor, gradient: &Tensor) {
    let _ = accumulator.shallow_clone().g_add_(gradient);
}

/// Holds weight gradients from the backward pass to their W action (without delay in schedules that do not split B).
/// Gradients of different microbatches are never merged: that would change the order of summation.
#[derive(Debug, Default)]
pub struct WeightGradStore {
    gradients: BTreeMap<WorkItem, Vec<StoredGradient>>,
}

impl WeightGradStore {
    /// Moves all gradients in `sink` to the store.
    pub(crate) fn collect(&mut self, item: WorkItem, sink: &GradientSink) {
        let gradients = self.gradients.entry(item).or_default();
        gradients.extend(std::iter::from_fn(|| sink.pop()).map(StoredGradient::Layer));
    }

    /// Stores the gradient of an embedding with output gradient `dy[n, hidden]` for the tokens `token_ids[n]`.
    pub(crate) fn push_embedding(&mut self, item: WorkItem, parameter: usize, token_ids: Tensor, dy: Tensor) {
        self.gradients.entry(item).or_default().push(StoredGradient::Embedding { parameter, token_ids, dy });
    }

    /// Adds all gradients of `item` to the fp32 accumulators, in the order in which the backward pass stored them.
    pub fn accumulate<'a>(&mut self, item: WorkItem, accumulator: impl Fn(usize) -> &'a Tensor) {
        for gradient in self.gradients.remove(&item).unwrap_or_default() {
            match gradient {
                StoredGradient::Layer(DeferredGradient { parameter, dy, x: Some(x) }) => {
                    accumulate_linear(accumulator(parameter), &dy, &x);
                }
                StoredGradient::Layer(DeferredGradient { parameter, dy, x: None }) => {
                    accumulate(accumulator(parameter), &dy);
                }
                StoredGradient::Embedding { parameter, token_ids, dy } => {
                    let _ = accumulator(parameter).shallow_clone().index_add_(0, &token_ids, &dy);
                }
            }
        }
    }
}
