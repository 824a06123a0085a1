//! How much a rank holds: a forward keeps its activations until the unit's weight gradients are complete.

use crate::action::{Action, Unit};
use std::collections::HashSet;

/// What is held after each action, in units of `size(chunk)`. A unit that has no backward in the program (an
/// evaluation) keeps nothing.
pub(crate) fn held<'a>(actions: &'a [Action], size: impl Fn(usize) -> u64 + 'a) -> impl Iterator<Item = u64> + 'a {
    let ends = |action: &Action| action.completes_gradient().then(|| action.unit()).flatten();
    let kept: HashSet<Unit> = actions.iter().filter_map(ends).collect();
    actions.iter().scan(0u64, move |held, action| {
        match *action {
            Action::Forward(unit) if kept.contains(&unit) => *held = held.saturating_add(size(unit.chunk)),
            Action::Backward(unit) | Action::BackwardWeight(unit) => *held = held.saturating_sub(size(unit.chunk)),
            _ => {}
        }
        Some(*held)
    })
}

/// The most that is held at once.
pub(crate) fn peak(actions: &[Action], size: impl Fn(usize) -> u64) -> u64 {
    held(actions, size).max().unwrap_or(0)
}
