//! How long a step takes and what each rank holds, from the costs of its parts.

use crate::partition::{LayerCost, ModelCost, Partition};
use crate::program::Programs;
use crate::residency;
use crate::timeline::Timeline;
use crate::walk::walk;

/// What one microbatch costs in one chunk.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct ChunkCosts {
    /// Seconds of F.
    pub forward: f64,
    /// Seconds of I. B takes this and `backward_weight`.
    pub backward_input: f64,
    /// Seconds of W.
    pub backward_weight: f64,
    /// Bytes kept from F until B or W.
    pub activation_bytes: u64,
    /// Bytes held all the time: weights, accumulators, moments.
    pub parameter_bytes: u64,
}

/// What a step's parts cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// One entry a chunk; chunks beyond the list cost nothing.
    pub chunks: Vec<ChunkCosts>,
    /// Seconds that one message takes on a link. It starts when both sides are ready and earlier messages of its edge are through.
    pub link: f64,
    /// Seconds of EXCHANGE once all ranks are there.
    pub exchange: f64,
    /// Seconds of UPDATE.
    pub update: f64,
    /// As in [`Limits`](crate::Limits).
    pub sends_in_flight: usize,
}

impl Costs {
    /// Forward and backward take a second each in every chunk (the backward half a second for the input and half for
    /// the weights), everything else nothing; activations are one byte, so that peak bytes count units.
    pub fn uniform(chunks: usize) -> Self {
        let chunk = ChunkCosts {
            forward: 1.0,
            backward_input: 0.5,
            backward_weight: 0.5,
            activation_bytes: 1,
            parameter_bytes: 0,
        };
        Costs { chunks: vec![chunk; chunks], link: 0.0, exchange: 0.0, update: 0.0, sends_in_flight: 2 }
    }

    /// The costs of a partitioned model. `work_per_second` turns a layer's work into seconds (1 if it was measured in
    /// seconds), `link_bytes_per_second` a boundary's bytes.
    pub fn estimate(
        model: &ModelCost,
        partition: &Partition,
        work_per_second: f64,
        link_bytes_per_second: f64,
    ) -> Self {
        let chunk = |index: usize| {
            let parts: Vec<&LayerCost> = partition.parts(model, index).collect();
            let seconds =
                |work: fn(&LayerCost) -> f64| parts.iter().map(|part| work(part)).sum::<f64>() / work_per_second;
            let bytes = |bytes: fn(&LayerCost) -> u64| parts.iter().map(|part| bytes(part)).sum::<u64>();
            let received = if index > 0 { model.boundary_bytes } else { 0 };
            ChunkCosts {
                forward: seconds(|part| part.forward),
                backward_input: seconds(|part| part.backward_input),
                backward_weight: seconds(|part| part.backward_weight),
                activation_bytes: bytes(|part| part.activation_bytes) + received,
                parameter_bytes: bytes(|part| part.parameter_bytes),
            }
        };
        Costs {
            chunks: (0..partition.layers.len()).map(chunk).collect(),
            link: model.boundary_bytes as f64 / link_bytes_per_second,
            ..Costs::uniform(0)
        }
    }

    pub(crate) fn chunk(&self, chunk: usize) -> ChunkCosts {
        self.chunks.get(chunk).copied().unwrap_or_default()
    }
}

/// Runs the programs with costs in place of work. Expects programs that [`verify`](crate::verify()) accepts; others are
/// followed as far as they get.
pub fn simulate(programs: &Programs, costs: &Costs) -> Timeline {
    let peak = |(rank, actions): (usize, &Vec<_>)| {
        let resident = |chunk| costs.chunk(chunk).parameter_bytes;
        let resident: u64 = programs.placement.chunks_of(rank).map(resident).sum();
        resident.saturating_add(residency::peak(actions, |chunk| costs.chunk(chunk).activation_bytes))
    };
    let peak_bytes = programs.ranks.iter().enumerate().map(peak).collect();
    Timeline::new(walk(programs, costs).spans, peak_bytes)
}
