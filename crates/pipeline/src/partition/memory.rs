//! Computes the memory of a rank at its peak, by purpose.

use std::fmt;

use super::{ModelCost, Partition};
use crate::action::Action;
use crate::activation_memory;
use crate::costs::Costs;
use crate::schedule::Schedule;

/// The bytes that a rank holds independently of its layers.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct RankMemory {
    /// The bytes of parameters that no module's cost contains, such as a weight that two modules share.
    pub parameter_bytes: u64,
    /// The bytes on the next rank that hold copies of the parameters in `parameter_bytes`, for in-memory checkpoints.
    pub copied_bytes: u64,
    /// The bytes of the buffers of the rank's links, and of the tensors in the buffers.
    pub link_bytes: u64,
    /// The bytes of the process itself.
    pub process_bytes: u64,
    /// The bytes held at the end of a step, when the rank holds no activations.
    pub step_end_bytes: u64,
}

/// The bytes that a rank holds at its peak.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct StageMemory {
    /// The bytes of weights, accumulators and moments, with all their copies.
    pub parameters: u64,
    /// The bytes of the copies of the previous rank's parameters, for in-memory checkpoints.
    pub copies: u64,
    /// The bytes of activations, which are kept from the forward pass to the full backward pass, or to the first part
    /// (I) of a split backward pass.
    pub activations: u64,
    /// The bytes of the inputs of the weight gradients, which are kept from I to the second part (W).
    pub weight_gradient_inputs: u64,
    /// The temporary bytes that are held while one action runs. The value is at least `step_end_bytes` minus the
    /// activations and the inputs of weight gradients, so that the sum of all fields covers the end of a step.
    pub temporaries: u64,
    /// The bytes of the buffers of links, and of the tensors in the buffers.
    pub links: u64,
    /// The bytes of the process itself.
    pub process: u64,
}

impl StageMemory {
    /// Returns the sum of all parts.
    pub fn total(&self) -> u64 {
        self.parts().iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    fn parts(&self) -> [(&'static str, u64); 7] {
        let StageMemory { parameters, copies, activations, weight_gradient_inputs, temporaries, links, process } =
            *self;
        [
            ("parameters with their state", parameters),
            ("copies of the previous stage's parameters", copies),
            ("activations", activations),
            ("inputs of weight gradients", weight_gradient_inputs),
            ("temporaries", temporaries),
            ("links", links),
            ("the process", process),
        ]
    }

    /// Returns a text that names the settings that reduce the memory, the most effective first.
    pub(super) fn remedies(&self) -> &'static str {
        if self.parameters > self.activations + self.weight_gradient_inputs + self.temporaries {
            "or use more stages"
        } else {
            "use smaller microbatches (more of them, or a smaller batch), recompute more, or use more stages"
        }
    }
}

impl fmt::Display for StageMemory {
    /// Writes the parts that are not 0, the largest first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.parts();
        parts.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
        for (index, (name, bytes)) in parts.iter().filter(|(_, bytes)| *bytes > 0).enumerate() {
            write!(f, "{}{} for {name}", if index > 0 { ", " } else { "" }, size(*bytes))?;
        }
        Ok(())
    }
}

fn size(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{bytes} bytes") } else { format!("{} MiB", bytes >> 20) }
}

impl Partition {
    /// Returns the peak memory of each rank under `schedule`.
    pub fn memory(&self, model: &ModelCost, schedule: &Schedule) -> Vec<StageMemory> {
        let costs = Costs::estimate(model, self, 1.0, 1.0);
        let ranks = schedule.ranks.len();
        let copied = |rank: usize| {
            let modules = schedule.placement.chunks_of(rank).flat_map(|chunk| self.modules_of(model, chunk));
            let rank_bytes = model.ranks.get(rank).map_or(0, |rank| rank.copied_bytes);
            modules.map(|module| module.copied_bytes).fold(rank_bytes, u64::saturating_add)
        };
        let stage = |(rank, actions): (usize, &Vec<Action>)| {
            let RankMemory { parameter_bytes, copied_bytes: _, link_bytes, process_bytes, step_end_bytes } =
                model.ranks.get(rank).copied().unwrap_or_default();
            let chunks = || schedule.placement.chunks_of(rank).map(|chunk| costs.chunk(chunk));
            let (held, temporaries) = activation_memory::peak_of_rank(&schedule.placement, rank, actions, &costs);
            StageMemory {
                parameters: chunks().map(|chunk| chunk.static_bytes).sum::<u64>().saturating_add(parameter_bytes),
                copies: copied((rank + ranks - 1) % ranks),
                activations: held.activations,
                weight_gradient_inputs: held.weight_gradient_inputs,
                temporaries: temporaries.max(step_end_bytes.saturating_sub(held.total())),
                links: link_bytes,
                process: process_bytes,
            }
        };
        schedule.ranks.iter().enumerate().map(stage).collect()
    }
}
