//! Computes the activation memory of each rank. A forward pass (F) keeps its activations, and a full backward pass (B)
//! frees them. In a split backward pass, the first part (I) frees them, and keeps the inputs of the weight gradients
//! for the second part (W).

use std::collections::BTreeSet;

use rustc_hash::FxHashSet;

use crate::action::Action;
use crate::costs::{ChunkCosts, Costs};
use crate::placement::Placement;
use crate::work_item::WorkItem;

/// The activations that a work item (one microbatch in one chunk) or a rank holds, in work items or in bytes.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct HeldActivations {
    /// The activations, which are held from F to B or I.
    pub(crate) activations: u64,
    /// The inputs of weight gradients, which are held from I to W.
    pub(crate) weight_gradient_inputs: u64,
}

impl HeldActivations {
    /// The size of a work item when activations are counted in work items and not in bytes.
    pub(crate) const ONE: HeldActivations = HeldActivations { activations: 1, weight_gradient_inputs: 1 };

    pub(crate) fn total(self) -> u64 {
        self.activations.saturating_add(self.weight_gradient_inputs)
    }
}

/// Returns the activations held after each action. A work item of a chunk holds `size(chunk)`. A work item without a
/// backward pass in the program (an evaluation) holds nothing.
pub(crate) fn held<'a>(
    actions: &'a [Action],
    size: impl Fn(usize) -> HeldActivations + 'a,
) -> impl Iterator<Item = HeldActivations> + 'a {
    let completed = |action: &Action| action.completes_weight_gradient().then(|| action.item()).flatten();
    let with_backward: FxHashSet<WorkItem> = actions.iter().filter_map(completed).collect();
    actions.iter().scan(HeldActivations::default(), move |held, action| {
        let HeldActivations { activations, weight_gradient_inputs } = held;
        match *action {
            Action::Forward(item) if with_backward.contains(&item) => {
                *activations = activations.saturating_add(size(item.chunk).activations);
            }
            Action::FullBackward(item) => *activations = activations.saturating_sub(size(item.chunk).activations),
            Action::BackwardInput(item) => {
                *activations = activations.saturating_sub(size(item.chunk).activations);
                *weight_gradient_inputs =
                    weight_gradient_inputs.saturating_add(size(item.chunk).weight_gradient_inputs);
            }
            Action::BackwardWeight(item) => {
                *weight_gradient_inputs =
                    weight_gradient_inputs.saturating_sub(size(item.chunk).weight_gradient_inputs);
            }
            _ => {}
        }
        Some(*held)
    })
}

/// Returns, for each rank, the peak number of work items in flight: items whose F has run and whose B or W has not.
pub(crate) fn in_flight(ranks: &[Vec<Action>]) -> Vec<usize> {
    ranks.iter().map(|actions| peak(actions, |_| HeldActivations::ONE).total() as usize).collect()
}

/// Returns the element of [`held`] with the maximal total.
pub(crate) fn peak(actions: &[Action], size: impl Fn(usize) -> HeldActivations) -> HeldActivations {
    held(actions, size).max_by_key(|held| held.total()).unwrap_or_default()
}

/// Returns the peak bytes that `rank` holds between actions, and the maximal temporary bytes of an action.
pub(crate) fn peak_of_rank(
    placement: &Placement,
    rank: usize,
    actions: &[Action],
    costs: &Costs,
) -> (HeldActivations, u64) {
    let size = |chunk| {
        let ChunkCosts { activation_bytes, weight_gradient_bytes, .. } = costs.chunk(chunk);
        HeldActivations { activations: activation_bytes, weight_gradient_inputs: weight_gradient_bytes }
    };
    let temporaries = placement.chunks_of(rank).map(|chunk| costs.chunk(chunk).temporary_bytes).max();
    (peak(actions, size), temporaries.unwrap_or(0))
}

/// Returns the peak number of bytes that each rank holds: the static bytes of its chunks (weights, gradient
/// accumulators and optimizer moments), activations, inputs of weight gradients, and the temporaries of an action.
pub(crate) fn peak_bytes(placement: &Placement, ranks: &[Vec<Action>], costs: &Costs) -> Vec<u64> {
    let rank = |(rank, actions): (usize, &Vec<Action>)| {
        let resident: u64 = placement.chunks_of(rank).map(|chunk| costs.chunk(chunk).static_bytes).sum();
        let (held, temporaries) = peak_of_rank(placement, rank, actions, costs);
        resident.saturating_add(held.total()).saturating_add(temporaries)
    };
    ranks.iter().enumerate().map(rank).collect()
}

/// Returns the pairs (microbatches with activations, microbatches with inputs of weight gradients) that `chunk` holds
/// at some moment. A pair is omitted if another pair has at least as many microbatches of each kind.
pub(crate) fn microbatches_held(actions: &[Action], chunk: usize) -> Vec<(u64, u64)> {
    let only = |held: HeldActivations| {
        move |of: usize| if of == chunk { held } else { HeldActivations { activations: 0, weight_gradient_inputs: 0 } }
    };
    let activations = held(actions, only(HeldActivations { activations: 1, weight_gradient_inputs: 0 }));
    let inputs = held(actions, only(HeldActivations { activations: 0, weight_gradient_inputs: 1 }));
    let moments: BTreeSet<(u64, u64)> = activations.zip(inputs).map(|(a, b)| (a.total(), b.total())).collect();
    let mut most = Vec::new();
    for (activations, inputs) in moments.into_iter().rev() {
        if most.last().is_none_or(|&(_, more)| inputs > more) {
            most.push((activations, inputs));
        }
    }
    most
}
