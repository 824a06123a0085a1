//! Activation memory per rank. A forward keeps its activations; a full backward frees them. A split backward frees them
//! in I, which keeps the inputs of the weight gradients for W.

use std::collections::BTreeSet;

use rustc_hash::FxHashSet;

use crate::action::Action;
use crate::costs::{ChunkCosts, Costs};
use crate::placement::Placement;
use crate::work_item::WorkItem;

/// The activations that a work item, or a rank, holds, as counts or bytes.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Held {
    /// Held from F to B or I.
    pub(crate) activations: u64,
    /// Held from I to W.
    pub(crate) weight_gradient_inputs: u64,
}

impl Held {
    /// Counts work items.
    pub(crate) const ONE: Held = Held { activations: 1, weight_gradient_inputs: 1 };

    pub(crate) fn total(self) -> u64 {
        self.activations.saturating_add(self.weight_gradient_inputs)
    }
}

/// The activations held after each action, if a work item of a chunk holds `size(chunk)`. A work item that has no
/// backward in the program (an evaluation) holds nothing.
pub(crate) fn held<'a>(actions: &'a [Action], size: impl Fn(usize) -> Held + 'a) -> impl Iterator<Item = Held> + 'a {
    let completed = |action: &Action| action.completes_weight_gradient().then(|| action.item()).flatten();
    let with_backward: FxHashSet<WorkItem> = actions.iter().filter_map(completed).collect();
    actions.iter().scan(Held::default(), move |held, action| {
        let Held { activations, weight_gradient_inputs } = held;
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

/// The maximum of [`held`], by total.
pub(crate) fn peak(actions: &[Action], size: impl Fn(usize) -> Held) -> Held {
    held(actions, size).max_by_key(|held| held.total()).unwrap_or_default()
}

/// The peak in bytes that `rank` holds between actions, and the maximal temporary bytes of an action.
pub(crate) fn peak_of_rank(placement: &Placement, rank: usize, actions: &[Action], costs: &Costs) -> (Held, u64) {
    let size = |chunk| {
        let ChunkCosts { activation_bytes, weight_gradient_bytes, .. } = costs.chunk(chunk);
        Held { activations: activation_bytes, weight_gradient_inputs: weight_gradient_bytes }
    };
    let temporaries = placement.chunks_of(rank).map(|chunk| costs.chunk(chunk).temporary_bytes).max();
    (peak(actions, size), temporaries.unwrap_or(0))
}

/// For each rank, the peak number of bytes that its chunks hold: weights, activations and an action's temporaries.
pub(crate) fn peak_bytes(placement: &Placement, ranks: &[Vec<Action>], costs: &Costs) -> Vec<u64> {
    let rank = |(rank, actions): (usize, &Vec<Action>)| {
        let resident: u64 = placement.chunks_of(rank).map(|chunk| costs.chunk(chunk).static_bytes).sum();
        let (held, temporaries) = peak_of_rank(placement, rank, actions, costs);
        resident.saturating_add(held.total()).saturating_add(temporaries)
    };
    ranks.iter().enumerate().map(rank).collect()
}

/// The pairs (microbatches with activations, microbatches with inputs of weight gradients) that `chunk` holds at some
/// moment, without pairs dominated by another one.
pub(crate) fn microbatches_held(actions: &[Action], chunk: usize) -> Vec<(u64, u64)> {
    let only = |held: Held| {
        move |of: usize| if of == chunk { held } else { Held { activations: 0, weight_gradient_inputs: 0 } }
    };
    let activations = held(actions, only(Held { activations: 1, weight_gradient_inputs: 0 }));
    let inputs = held(actions, only(Held { activations: 0, weight_gradient_inputs: 1 }));
    let moments: BTreeSet<(u64, u64)> = activations.zip(inputs).map(|(a, b)| (a.total(), b.total())).collect();
    let mut most = Vec::new();
    for (activations, inputs) in moments.into_iter().rev() {
        if most.last().is_none_or(|&(_, more)| inputs > more) {
            most.push((activations, inputs));
        }
    }
    most
}
