//! Activation memory per rank. A forward keeps its activations; a full backward frees them. One that is split into I and W
//! frees them in I, which leaves the inputs of the weight gradients for W.

use crate::action::{Action, WorkItem};
use crate::placement::Placement;
use crate::simulate::ChunkCosts;
use std::collections::{BTreeSet, HashSet};

/// What a work item holds, as counts or bytes.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Held {
    /// From F to B or I.
    pub(crate) activations: u64,
    /// From I to W.
    pub(crate) weight_gradient_inputs: u64,
}

impl Held {
    /// Counts work items.
    pub(crate) const ONE: Held = Held { activations: 1, weight_gradient_inputs: 1 };
}

/// What is held after each action, where a work item of a chunk holds `size(chunk)`. A work item that has no backward in
/// the program (an evaluation) holds nothing.
pub(crate) fn held<'a>(actions: &'a [Action], size: impl Fn(usize) -> Held + 'a) -> impl Iterator<Item = u64> + 'a {
    let completed = |action: &Action| action.completes_weight_gradient().then(|| action.item()).flatten();
    let with_backward: HashSet<WorkItem> = actions.iter().filter_map(completed).collect();
    actions.iter().scan(0u64, move |held, action| {
        let (more, less) = match *action {
            Action::Forward(item) if with_backward.contains(&item) => (size(item.chunk).activations, 0),
            Action::FullBackward(item) => (0, size(item.chunk).activations),
            Action::BackwardInput(item) => (size(item.chunk).weight_gradient_inputs, size(item.chunk).activations),
            Action::BackwardWeight(item) => (0, size(item.chunk).weight_gradient_inputs),
            _ => (0, 0),
        };
        *held = held.saturating_add(more).saturating_sub(less);
        Some(*held)
    })
}

/// The maximum of [`held`].
pub(crate) fn peak(actions: &[Action], size: impl Fn(usize) -> Held) -> u64 {
    held(actions, size).max().unwrap_or(0)
}

/// For each rank, the most bytes it holds: those of its chunks' weights, and of activations.
pub(crate) fn peak_bytes(placement: &Placement, ranks: &[Vec<Action>], chunks: &[ChunkCosts]) -> Vec<u64> {
    let cost = |chunk: usize| chunks.get(chunk).copied().unwrap_or_default();
    let size = |chunk| {
        let ChunkCosts { activation_bytes, weight_gradient_bytes, .. } = cost(chunk);
        Held { activations: activation_bytes, weight_gradient_inputs: weight_gradient_bytes }
    };
    let rank = |(rank, actions): (usize, &Vec<Action>)| {
        let resident: u64 = placement.chunks_of(rank).map(|chunk| cost(chunk).static_bytes).sum();
        resident.saturating_add(peak(actions, size))
    };
    ranks.iter().enumerate().map(rank).collect()
}

/// Every (microbatches with activations, microbatches with inputs of weight gradients) that `chunk` holds at some moment,
/// without those of which it holds more at another.
pub(crate) fn microbatches_held(actions: &[Action], chunk: usize) -> Vec<(u64, u64)> {
    let only = |held: Held| {
        move |of: usize| if of == chunk { held } else { Held { activations: 0, weight_gradient_inputs: 0 } }
    };
    let activations = held(actions, only(Held { activations: 1, weight_gradient_inputs: 0 }));
    let inputs = held(actions, only(Held { activations: 0, weight_gradient_inputs: 1 }));
    let moments: BTreeSet<(u64, u64)> = activations.zip(inputs).collect();
    let mut most = Vec::new();
    for (activations, inputs) in moments.into_iter().rev() {
        if most.last().is_none_or(|&(_, more)| inputs > more) {
            most.push((activations, inputs));
        }
    }
    most
}
