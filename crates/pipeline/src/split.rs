//! Divides the chunks (groups of consecutive layers) of programs into parts, so that replicas exchange one part while
//! they compute another part.

use crate::action::Action;
use crate::activation_memory;
use crate::costs::{ChunkCosts, Costs};
use crate::partition::Partition;
use crate::placement::Placement;
use crate::program::Programs;
use crate::work_item::WorkItem;

impl Programs {
    /// Returns the programs with each chunk divided into `parts[chunk]` consecutive chunks of the same rank. Chunks
    /// beyond the list stay whole. Call this function before [`replicate`](Programs::replicate). The rank computes the
    /// parts of a chunk one after the other. The first part is first in the forward, and the last part is first in the
    /// backward. Messages between ranks stay the same except for the indices of their chunks.
    #[must_use]
    pub fn split(&self, parts: &[usize]) -> Programs {
        let chunks = 0..self.placement.chunks();
        let count = |chunk| count(parts, chunk);
        let placement =
            chunks.clone().flat_map(|chunk| std::iter::repeat_n(self.placement.rank_of(chunk), count(chunk)));
        let placement = Placement::of_ranks(placement.collect(), self.placement.ranks());
        let first: Vec<usize> =
            chunks.scan(0, |next, chunk| Some(std::mem::replace(next, *next + count(chunk)))).collect();
        let divide = |action: &Action| {
            let Some(WorkItem { chunk, microbatch }) = action.item() else { return vec![*action] };
            let at = |chunk| WorkItem { chunk, microbatch };
            let items = (first[chunk]..first[chunk] + count(chunk)).map(at);
            let (begin, end) = (at(first[chunk]), at(first[chunk] + count(chunk) - 1));
            match action {
                Action::Forward(_) => items.map(Action::Forward).collect(),
                Action::FullBackward(_) => items.rev().map(Action::FullBackward).collect(),
                Action::BackwardInput(_) => items.rev().map(Action::BackwardInput).collect(),
                Action::BackwardWeight(_) => items.rev().map(Action::BackwardWeight).collect(),
                Action::RecvForward(_) => vec![Action::RecvForward(begin)],
                Action::SendForward(_) => vec![Action::SendForward(end)],
                Action::RecvBackward(_) => vec![Action::RecvBackward(end)],
                Action::SendBackward(_) => vec![Action::SendBackward(begin)],
                _ => vec![*action],
            }
        };
        let ranks = self.ranks.iter().map(|actions| actions.iter().flat_map(divide).collect()).collect();
        Programs { placement, microbatches: self.microbatches, ranks }
    }

    /// Returns, for each rank, the peak number of work items in flight. An item is in flight from its forward to the
    /// end of its backward, which is W if the backward is split.
    pub fn in_flight(&self) -> Vec<usize> {
        activation_memory::in_flight(&self.ranks)
    }
}

impl Partition {
    /// Returns the partition of [split](Programs::split) programs. A chunk's layers are divided as evenly as possible.
    /// No part is smaller than the first one: a step can't begin before the other replicas have sent the weights of the
    /// first part.
    #[must_use]
    pub fn split(&self, parts: &[usize]) -> Partition {
        let divided = self.layers.iter().enumerate().flat_map(|(chunk, &layers)| {
            let count = count(parts, chunk);
            (0..count).map(move |part| layers * (part + 1) / count - layers * part / count)
        });
        Partition { layers: divided.collect() }
    }

    /// Returns the partition from which [`split`](Self::split) made this one.
    #[must_use]
    pub fn merge(&self, parts: &[usize]) -> Partition {
        Partition { layers: merged(&self.layers, parts, |layers, part| layers + part) }
    }
}

impl Costs {
    /// Returns the costs of the programs before the [split](Programs::split), from the costs of the split programs.
    #[must_use]
    pub fn merge(&self, parts: &[usize]) -> Costs {
        let whole = |all: ChunkCosts, part: ChunkCosts| ChunkCosts {
            forward_seconds: all.forward_seconds + part.forward_seconds,
            backward_input_seconds: all.backward_input_seconds + part.backward_input_seconds,
            backward_weight_seconds: all.backward_weight_seconds + part.backward_weight_seconds,
            activation_bytes: all.activation_bytes + part.activation_bytes,
            weight_gradient_bytes: all.weight_gradient_bytes + part.weight_gradient_bytes,
            static_bytes: all.static_bytes + part.static_bytes,
            temporary_bytes: all.temporary_bytes.max(part.temporary_bytes),
        };
        let sums = |seconds: &[f64]| merged(seconds, parts, |all, part| all + part);
        Costs {
            chunks: merged(&self.chunks, parts, whole),
            reduce_seconds: sums(&self.reduce_seconds),
            gather_seconds: sums(&self.gather_seconds),
            ..self.clone()
        }
    }
}

/// Returns the number of parts of a chunk.
fn count(parts: &[usize], chunk: usize) -> usize {
    parts.get(chunk).copied().unwrap_or(1).max(1)
}

/// Returns the values of the chunks, from the values of their parts. Chunks beyond the list keep their values.
fn merged<T: Copy + Default>(of_parts: &[T], parts: &[usize], add: impl Fn(T, T) -> T) -> Vec<T> {
    let mut of_parts = of_parts.iter().copied();
    let chunk_sum = |&count: &usize| of_parts.by_ref().take(count.max(1)).fold(T::default(), &add);
    let mut whole: Vec<T> = parts.iter().map(chunk_sum).collect();
    whole.extend(of_parts);
    whole
}
