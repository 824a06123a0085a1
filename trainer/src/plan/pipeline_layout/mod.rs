//! Planning the pipeline: `choose` takes the candidate with the shortest simulated step, `lay_out` partitions the model
//! for a candidate.

mod choose;
mod lay_out;

use stagecoach_api::job::Recompute;
use stagecoach_pipeline::{
    Costs, ModelCost, Partition, PartitionError, Programs, Schedule, Timeline, forward_only_programs,
};

use super::candidates::{Candidate, candidates};
use super::job_config::JobConfig;
use super::memory::StageBytes;
use crate::stage_error::StageError;
pub(crate) use choose::{plan_pipeline, plan_pipeline_on};
pub(super) use lay_out::PARTS_PER_STAGE;
use lay_out::programs_in_parts;
use stagecoach_model::Architecture;

/// Microbatches of an evaluation's window, per stage. A stage with several chunks runs one chunk after the other, and
/// holds the inputs of the next one for a whole window. With fewer microbatches than stages it would wait.
const EVALUATION_WINDOW_PER_STAGE: usize = 4;

/// A planned pipeline.
#[derive(Clone, Debug)]
pub(crate) struct PipelineLayout {
    /// The order of computations on each rank, without communication.
    pub(crate) schedule: Schedule,
    /// Layers of each chunk.
    pub(crate) partition: Partition,
    /// The number of parts into which the programs divide each chunk.
    pub(crate) parts: Vec<usize>,
    /// The programs of a training step: the schedule with its communication.
    pub(crate) programs: Programs,
    /// The activations that are recomputed.
    pub(crate) recompute: Recompute,
    /// The model's costs per microbatch.
    pub(crate) cost: ModelCost,
    /// The costs for the simulation.
    pub(crate) costs: Costs,
    /// The simulated step.
    pub(crate) timeline: Timeline,
    /// The peak memory of each stage.
    pub(crate) memory: Vec<StageBytes>,
    /// The alternatives of `Auto`, including this layout; otherwise empty.
    pub(crate) alternatives: Vec<Alternative>,
    /// Messages for the user.
    pub(crate) notes: Vec<String>,
}

/// An alternative of `Auto`.
#[derive(Clone, Debug)]
pub(crate) struct Alternative {
    /// The schedule's name.
    pub(crate) schedule: String,
    /// Chunks per stage.
    pub(crate) chunks_per_stage: usize,
    /// The activations that are recomputed.
    pub(crate) recompute: Recompute,
    /// Seconds of a simulated step, and the peak bytes of the largest stage; or the reason that the alternative is
    /// impossible.
    pub(crate) step: Result<(f64, u64), PartitionError>,
}

/// A stage of a planned pipeline.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlannedStage {
    /// The number of layers of each of its chunks.
    pub(crate) layers: Vec<usize>,
    /// Its share of the model's work, 0 to 1.
    pub(crate) work: f64,
    /// The most work items between their F and their B or W.
    pub(crate) in_flight: usize,
    /// Its peak bytes.
    pub(crate) bytes: u64,
    /// The part of the simulated step in which it does not compute, 0 to 1.
    pub(crate) bubble: f64,
}

impl PlannedStage {
    /// The numbers of layers as `3+2`.
    pub(crate) fn layers_text(&self) -> String {
        self.layers.iter().map(usize::to_string).collect::<Vec<String>>().join("+")
    }
}

/// The programs of the replicas that have fewer microbatches than the first one, for which `layout` was planned; empty
/// if all have as many.
///
/// # Errors
/// If the schedule's CSV is for another number of microbatches.
pub(crate) fn smaller_programs(
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
    /// Converts the programs of a pipeline without replicas, for this layout's chunks, to the executed form: in its
    /// parts, and with its replicas.
    pub(super) fn in_parts(&self, programs: &Programs) -> Programs {
        programs_in_parts(programs, &self.parts, self.programs.replicated())
    }

    /// The layers of each chunk of the programs.
    pub(crate) fn program_partition(&self) -> Partition {
        self.partition.split(&self.parts)
    }

    /// The forward-only programs of an evaluation on `microbatches` microbatches, by the size of its windows: for a
    /// whole window and, if there is a remainder, for the last one.
    pub(crate) fn evaluation_programs(&self, microbatches: usize) -> Vec<Programs> {
        let placement = &self.programs.placement;
        let window = (EVALUATION_WINDOW_PER_STAGE * placement.ranks()).min(microbatches);
        let sizes = [window, microbatches.checked_rem(window).unwrap_or(0)].into_iter().filter(|&size| size > 0);
        sizes.map(|size| forward_only_programs(placement, size)).collect()
    }

    /// The peak bytes of the largest stage.
    pub(crate) fn largest_stage(&self) -> u64 {
        self.memory.iter().map(|stage| stage.parts.total()).max().unwrap_or(0)
    }

    /// All alternatives of `Auto`, the fastest first, and impossible ones last.
    pub(crate) fn ranked_alternatives(&self) -> Vec<&Alternative> {
        let mut alternatives: Vec<&Alternative> = self.alternatives.iter().collect();
        let seconds = |alternative: &Alternative| alternative.step.as_ref().map_or(f64::INFINITY, |step| step.0);
        alternatives.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        alternatives
    }

    /// The stages in their order.
    pub(crate) fn stages(&self) -> impl Iterator<Item = PlannedStage> {
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
    pub(crate) fn bubble(&self) -> f64 {
        self.timeline.mean_bubble()
    }
}

#[cfg(test)]
mod tests;
