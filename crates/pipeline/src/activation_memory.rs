//! Activation memory per rank: a forward keeps its activations until the weight gradients of its work item are
//! complete.

use crate::action::{Action, WorkItem};
use std::collections::HashSet;

/// The activations held after each action, counting `size(chunk)` for each work item. A work item that has no backward
/// in the program (an evaluation) holds nothing.
pub(crate) fn activations_held<'a>(
    actions: &'a [Action],
    size: impl Fn(usize) -> u64 + 'a,
) -> impl Iterator<Item = u64> + 'a {
    let completed = |action: &Action| action.completes_weight_gradient().then(|| action.item()).flatten();
    let with_backward: HashSet<WorkItem> = actions.iter().filter_map(completed).collect();
    actions.iter().scan(0u64, move |held, action| {
        match *action {
            Action::Forward(item) if with_backward.contains(&item) => *held = held.saturating_add(size(item.chunk)),
            Action::FullBackward(item) | Action::BackwardWeight(item) => *held = held.saturating_sub(size(item.chunk)),
            _ => {}
        }
        Some(*held)
    })
}

/// The maximum of [`activations_held`].
pub(crate) fn peak_activations(actions: &[Action], size: impl Fn(usize) -> u64) -> u64 {
    activations_held(actions, size).max().unwrap_or(0)
}
