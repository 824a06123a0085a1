//! Planning the pipeline: `select` takes the candidate with the shortest simulated step, `evaluate` partitions the
//! model for a candidate.

mod evaluate;
mod select;

use std::collections::BTreeSet;

use stagecoach_api::job::Recompute;
use stagecoach_pipeline::{
    Costs, ModelCost, Partition, PartitionError, Programs, Schedule, Timeline, forward_only_programs,
};

use super::candidates::{Candidate, candidates};
use super::job_config::JobConfig;
use super::memory::StageBytes;
use evaluate::programs_in_parts;
pub use select::{plan_pipeline, plan_pipeline_on};
use stagecoach_engine::StageError;
use stagecoach_model::Architecture;

/// Microbatches of an evaluation's window, per stage. A stage with several chunks runs them one after another, and
/// holds the inputs of the next chunk for a whole window. With fewer microbatches than stages, the stage would wait.
const EVALUATION_WINDOW_PER_STAGE: usize = 4;

/// A planned pipeline.
#[derive(Clone, Debug)]
pub struct PipelineLayout {
    /// The order of computations on each rank, without communication.
    pub schedule: Schedule,
    /// Layers of each chunk.
    pub partition: Partition,
    /// The number of parts into which the programs divide each chunk.
    pub parts: Vec<usize>,
    /// The programs of a training step: the schedule with its communication.
    pub programs: Programs,
    /// The activations that the backward pass recomputes.
    pub recompute: Recompute,
    /// The model's costs per microbatch.
    pub cost: ModelCost,
    /// The costs for the simulation.
    pub costs: Costs,
    /// The simulated step.
    pub timeline: Timeline,
    /// The peak memory of each stage.
    pub memory: Vec<StageBytes>,
    /// The alternatives of `Auto`, including this layout; otherwise empty.
    pub alternatives: Vec<Alternative>,
    /// Messages for the user.
    pub notes: Vec<String>,
}

/// An alternative of `Auto`.
#[derive(Clone, Debug)]
pub struct Alternative {
    /// The schedule's name.
    pub schedule: String,
    /// Chunks per stage.
    pub chunks_per_stage: usize,
    /// The activations that the backward pass recomputes.
    pub recompute: Recompute,
    /// Seconds of a simulated step, and the peak bytes of the largest stage; or the reason that the alternative is
    /// impossible.
    pub step: Result<(f64, u64), PartitionError>,
}

/// A stage of a planned pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedStage {
    /// The number of layers of each chunk.
    pub layers: Vec<usize>,
    /// The share of the model's work, 0 to 1.
    pub work: f64,
    /// The largest number of work items between F and their B or W.
    pub in_flight: usize,
    /// The peak bytes.
    pub bytes: u64,
    /// The share of the simulated step in which the stage does not compute, 0 to 1.
    pub bubble: f64,
}

impl PlannedStage {
    /// The numbers of layers as `3+2`.
    pub fn layers_text(&self) -> String {
        self.layers.iter().map(usize::to_string).collect::<Vec<String>>().join("+")
    }
}

/// The programs of the replicas with fewer microbatches than the first replica, for which `layout` was planned; `None`
/// if all replicas have the same number.
///
/// # Errors
/// If the schedule's CSV is for another number of microbatches.
pub fn smaller_programs(
    config: &JobConfig,
    architecture: &dyn Architecture,
    layout: &PipelineLayout,
) -> Result<Option<Programs>, StageError> {
    let all = config.microbatches_of_replicas()?;
    let Some(&fewer) = all.iter().find(|&&microbatches| Some(&microbatches) != all.first()) else { return Ok(None) };
    let placement = &layout.schedule.placement;
    let candidates = candidates(config, architecture, placement.ranks(), fewer)?;
    let same = |candidate: &Candidate| {
        candidate.schedule.name == layout.schedule.name && candidate.programs.placement == *placement
    };
    let found = candidates.into_iter().find(same).map(|candidate| layout.in_parts(&candidate.programs));
    let name = &layout.schedule.name;
    found.map(Some).ok_or_else(|| {
        StageError::invalid(format!(
            "spec.pipeline.schedule: {name} is not possible with a replica's {fewer} microbatches: name one"
        ))
    })
}

impl PipelineLayout {
    /// Converts programs for this layout's chunks, without replicas, to the executed form: with this layout's parts and
    /// the exchange between replicas.
    pub(super) fn in_parts(&self, programs: &Programs) -> Programs {
        programs_in_parts(programs, &self.parts, self.programs.replicated())
    }

    /// The layers of each chunk of the programs.
    pub fn program_partition(&self) -> Partition {
        self.partition.split(&self.parts)
    }

    /// The forward-only programs of an evaluation, one for each size of a window, the largest first. `sets` are the
    /// sets' numbers of microbatches. The last window of a set may be smaller than the others.
    pub fn evaluation_programs(&self, sets: impl IntoIterator<Item = usize>) -> Vec<Programs> {
        let placement = &self.programs.placement;
        let window = EVALUATION_WINDOW_PER_STAGE * placement.ranks();
        let sizes_of = |microbatches: usize| [window.min(microbatches), microbatches % window];
        let sizes: BTreeSet<usize> = sets.into_iter().flat_map(sizes_of).filter(|&size| size > 0).collect();
        sizes.into_iter().rev().map(|size| forward_only_programs(placement, size)).collect()
    }

    /// The peak bytes of the largest stage.
    pub fn largest_stage(&self) -> u64 {
        self.memory.iter().map(|stage| stage.parts.total()).max().unwrap_or(0)
    }

    /// All alternatives of `Auto`, the fastest first and impossible alternatives last.
    pub fn ranked_alternatives(&self) -> Vec<&Alternative> {
        let mut alternatives: Vec<&Alternative> = self.alternatives.iter().collect();
        let seconds = |alternative: &Alternative| alternative.step.as_ref().map_or(f64::INFINITY, |step| step.0);
        alternatives.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        alternatives
    }

    /// The stages in their order.
    pub fn stages(&self) -> impl Iterator<Item = PlannedStage> {
        let PipelineLayout { partition, schedule, cost, timeline, memory, .. } = self;
        let in_flight = schedule.in_flight();
        (0..schedule.placement.ranks()).map(move |rank| {
            let chunks: Vec<usize> = schedule.placement.chunks_of(rank).collect();
            let work: f64 = chunks.iter().map(|&chunk| partition.work(cost, chunk)).sum();
            PlannedStage {
                layers: chunks.iter().map(|&chunk| partition.range(chunk).len()).collect(),
                work: work / cost.work(),
                in_flight: in_flight.get(rank).copied().unwrap_or(0),
                bytes: memory.get(rank).map_or(0, |stage| stage.parts.total()),
                bubble: timeline.bubble.get(rank).copied().unwrap_or(0.0),
            }
        })
    }

    /// Mean over stages of the simulated bubble, 0 to 1.
    pub fn bubble(&self) -> f64 {
        self.timeline.mean_bubble()
    }
}

#[cfg(test)]
mod tests;
