//! Estimates the costs of a step of a partitioned model.

use super::{ModelCost, ModuleCost, Partition};
use crate::costs::{ChunkCosts, Costs};

impl Costs {
    /// Returns the estimated costs of a partitioned model. `work_per_second` converts a module's work to seconds. Its
    /// value is 1 if the work was measured in seconds. `link_bytes_per_second` converts `model.boundary_bytes`, the
    /// bytes of a message between two chunks, to seconds.
    pub fn estimate(
        model: &ModelCost,
        partition: &Partition,
        work_per_second: f64,
        link_bytes_per_second: f64,
    ) -> Self {
        let chunk = |index: usize| {
            let modules: Vec<&ModuleCost> = partition.modules_of(model, index).collect();
            let seconds =
                |work: fn(&ModuleCost) -> f64| modules.iter().map(|module| work(module)).sum::<f64>() / work_per_second;
            let bytes = |bytes: fn(&ModuleCost) -> u64| modules.iter().map(|module| bytes(module)).sum::<u64>();
            ChunkCosts {
                forward_seconds: seconds(|module| module.forward),
                backward_input_seconds: seconds(|module| module.backward_input),
                backward_weight_seconds: seconds(|module| module.backward_weight),
                activation_bytes: bytes(|module| module.activation_bytes),
                weight_gradient_bytes: bytes(|module| module.weight_gradient_bytes),
                static_bytes: bytes(|module| module.parameter_bytes),
                temporary_bytes: partition.temporary_bytes(model, index),
            }
        };
        Costs {
            chunks: (0..partition.layers.len()).map(chunk).collect(),
            link_seconds: model.boundary_bytes as f64 / link_bytes_per_second,
            ..Costs::uniform(0)
        }
    }
}
