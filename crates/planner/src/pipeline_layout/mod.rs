//! Plans the pipeline. `select` chooses the candidate with the shortest simulated step, and `evaluate` partitions the
//! model and simulates a step for a candidate.

mod evaluate;
mod select;

use std::collections::BTreeSet;

use stagecoach_api::job::Recompute;
use stagecoach_pipeline::{
    Costs, ModelCost, Partition, PartitionError, Programs, Schedule, Timeline, forward_only_programs,
};

use super::candidates::{PlannedSchedule, candidates};
use super::job_config::JobConfig;
use super::memory::StageBytes;
use evaluate::programs_in_parts;
pub use select::{plan_pipeline, plan_pipeline_on};
use stagecoach_engine::StageError;
use stagecoach_model::Architecture;

/// The number of microbatches per stage in a window, the group of microbatches that an evaluation runs with one
/// program. A larger window needs more memory: a stage with several chunks runs the chunks one after another, and holds
/// the inputs of the next chunk for a whole window. In a window with fewer microbatches than the pipeline has stages,
/// the stages would wait.
const EVALUATION_WINDOW_PER_STAGE: usize = 4;

/// A planned pipeline.
#[derive(Clone, Debug)]
pub struct PipelineLayout {
    /// The order of computations on each rank, without communication.
    pub schedule: Schedule,
    /// The number of layers of each chunk, a group of consecutive layers on one stage.
    pub partition: Partition,
    /// The number of parts into which the programs divide each chunk.
    pub parts: Vec<usize>,
    /// The programs of a training step: the schedule with its communication.
    pub programs: Programs,
    /// The activations that the backward pass recomputes.
    pub recompute: Recompute,
    /// The model's costs per microbatch.
    pub cost: ModelCost,
    /// The costs that the simulation uses.
    pub costs: Costs,
    /// The simulated step.
    pub timeline: Timeline,
    /// The peak memory of each stage.
    pub memory: Vec<StageBytes>,
    /// The alternatives that `Auto` compared, including this layout; empty for a specified schedule.
    pub alternatives: Vec<Alternative>,
    /// Messages for the user.
    pub notes: Vec<String>,
}

/// A combination of schedule, chunks and recomputation that `Auto` compared.
#[derive(Clone, Debug)]
pub struct Alternative {
    /// The schedule's name.
    pub schedule: String,
    /// The number of chunks per stage.
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
    /// The stage's share of the model's work, 0 to 1.
    pub work: f64,
    /// The peak number of work items in flight: microbatches of a chunk whose forward has run and whose backward is not
    /// complete.
    pub in_flight: usize,
    /// The planned peak bytes of the stage.
    pub bytes: u64,
    /// The share of the simulated step in which the stage does not compute, 0 to 1.
    pub bubble: f64,
}

impl PlannedStage {
    /// Returns the numbers of layers as text, such as `3+2`.
    pub fn layers_text(&self) -> String {
        self.layers.iter().map(usize::to_string).collect::<Vec<String>>().join("+")
    }
}

/// Returns the programs for the replicas that have fewer microbatches than the first replica. `layout` was planned for
/// the first replica. Returns `None` if all replicas have the same number of microbatches.
///
/// # Errors
/// Returns an error if the layout's schedule is not possible with fewer microbatches, for example because the schedule
/// is a CSV file for another number.
pub fn smaller_programs(
    config: &JobConfig,
    architecture: &dyn Architecture,
    layout: &PipelineLayout,
) -> Result<Option<Programs>, StageError> {
    let all = config.microbatches_of_replicas()?;
    let Some(&fewer) = all.iter().find(|&&microbatches| Some(&microbatches) != all.first()) else { return Ok(None) };
    let placement = &layout.schedule.placement;
    let candidates = candidates(config, architecture, placement.ranks(), fewer)?;
    let same = |candidate: &PlannedSchedule| {
        candidate.schedule.name == layout.schedule.name && candidate.programs.placement == *placement
    };
    let found = candidates.into_iter().find(same).map(|candidate| layout.in_parts(&candidate.programs));
    let name = &layout.schedule.name;
    found.map(Some).ok_or_else(|| {
        StageError::invalid(format!(
            "spec.pipeline.schedule: {name} is not possible for the replicas with {fewer} microbatches: name a \
             schedule that is"
        ))
    })
}

impl PipelineLayout {
    /// Divides the chunks of `programs` into this layout's parts, and adds the exchange between replicas if the layout
    /// has replicas. `programs` are for a pipeline without replicas.
    pub(super) fn in_parts(&self, programs: &Programs) -> Programs {
        programs_in_parts(programs, &self.parts, self.programs.replicated())
    }

    /// Returns the layers of each chunk of the programs.
    pub fn program_partition(&self) -> Partition {
        self.partition.split(&self.parts)
    }

    /// Returns the forward-only programs of an evaluation: one for each window size, the largest first. `sets` has the
    /// number of microbatches of each held-out set. The last window of a set may be smaller than the set's other
    /// windows.
    pub fn evaluation_programs(&self, sets: impl IntoIterator<Item = usize>) -> Vec<Programs> {
        let placement = &self.programs.placement;
        let window = EVALUATION_WINDOW_PER_STAGE * placement.ranks();
        let sizes_of = |microbatches: usize| [window.min(microbatches), microbatches % window];
        let sizes: BTreeSet<usize> = sets.into_iter().flat_map(sizes_of).filter(|&size| size > 0).collect();
        sizes.into_iter().rev().map(|size| forward_only_programs(placement, size)).collect()
    }

    /// Returns the peak bytes of the largest stage.
    pub fn largest_stage(&self) -> u64 {
        self.memory.iter().map(|stage| stage.parts.total()).max().unwrap_or(0)
    }

    /// Returns all alternatives of `Auto`, the fastest first and impossible alternatives last.
    pub fn ranked_alternatives(&self) -> Vec<&Alternative> {
        let mut alternatives: Vec<&Alternative> = self.alternatives.iter().collect();
        let seconds = |alternative: &Alternative| alternative.step.as_ref().map_or(f64::INFINITY, |step| step.0);
        alternatives.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        alternatives
    }

    /// Returns the planned stages by rank.
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

    /// Returns the simulated bubble, 0 to 1, averaged over stages.
    pub fn bubble(&self) -> f64 {
        self.timeline.mean_bubble()
    }
}

#[cfg(test)]
mod tests;
