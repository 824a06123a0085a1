//! Planning the pipeline: choosing schedule, recomputation and partition by simulation.

use stagecoach_api::job::{Recompute, ScheduleSpec};
use stagecoach_pipeline::{
    Costs, ModelCost, Partition, PartitionError, Programs, RankSpeeds, Schedule, Timeline, balanced_partition,
    explicit_partition, forward_only_programs, simulate,
};

use super::candidates::{Candidate, candidates, recomputations};
use super::job_config::JobConfig;
use super::machines::Machines;
use super::memory::{StageBytes, rank_costs, stage_bytes};
use super::meshes::exchanged_bytes;
use super::profile::Profile;
use crate::fatal::Fatal;
use crate::model::Architecture;

/// Throughput that is assumed of hardware of which nothing was measured: fp32 FLOP/s of a CPU core, and bytes/s of a local
/// link.
const FLOPS_PER_SECOND: f64 = 5e10;
const LINK_BYTES_PER_SECOND: f64 = 2e9;

/// Chunks that replicas divide a stage into, all of its own together.
pub(super) const PARTS_PER_STAGE: usize = 8;

/// Microbatches of an evaluation's window, by the number of stages. A stage with several chunks takes one chunk after the
/// other, and holds what the next one needs of a whole window; with fewer microbatches than stages it would wait.
const EVALUATION_WINDOW_PER_STAGE: usize = 4;

/// A planned pipeline.
#[derive(Clone, Debug)]
pub(crate) struct PipelineLayout {
    /// The order of computations on each rank, without communication.
    pub(crate) schedule: Schedule,
    /// Layers of each chunk.
    pub(crate) partition: Partition,
    /// Into how many parts the programs divide each chunk.
    pub(crate) parts: Vec<usize>,
    /// The programs of a training step: the schedule with its communication.
    pub(crate) programs: Programs,
    /// Which activations are computed again.
    pub(crate) recompute: Recompute,
    /// The model's costs per microbatch.
    pub(crate) cost: ModelCost,
    /// What the simulation is told.
    pub(crate) costs: Costs,
    /// The simulated step.
    pub(crate) timeline: Timeline,
    /// What each stage holds at its peak.
    pub(crate) memory: Vec<StageBytes>,
    /// All that `Auto` chose from, this layout too; otherwise empty.
    pub(crate) alternatives: Vec<Alternative>,
    /// Messages for the user.
    pub(crate) notes: Vec<String>,
}

/// Something that `Auto` chose from.
#[derive(Clone, Debug)]
pub(crate) struct Alternative {
    /// The schedule's name.
    pub(crate) schedule: String,
    /// Chunks a stage.
    pub(crate) chunks_per_stage: usize,
    /// Which activations are computed again.
    pub(crate) recompute: Recompute,
    /// Seconds of a simulated step, and the most bytes that a stage holds; or why it is impossible.
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
    /// What it holds at its peak.
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

/// Plans the pipeline of a job over `stages` stages of these speeds: of the candidates, the one with the shortest simulated
/// step.
///
/// # Errors
/// If the schedule's CSV is invalid or another job's, or the partition does not match the model or its memory limit.
pub(crate) fn plan_pipeline(
    config: &JobConfig,
    architecture: &dyn Architecture,
    stages: usize,
    speeds: &RankSpeeds,
) -> Result<PipelineLayout, Fatal> {
    plan_pipeline_on(config, architecture, stages, &Machines { speeds: speeds.clone(), ..Machines::default() })
}

/// The same on these machines.
///
/// # Errors
/// As [`plan_pipeline`].
pub(crate) fn plan_pipeline_on(
    config: &JobConfig,
    architecture: &dyn Architecture,
    stages: usize,
    machines: &Machines,
) -> Result<PipelineLayout, Fatal> {
    let mut alternatives = Vec::new();
    let mut best: Option<PipelineLayout> = None;
    let mut refused: Option<PartitionError> = None;
    let microbatches = config.microbatches_of_replicas()?;
    let candidates = candidates(config, architecture, stages, microbatches.first().copied().unwrap_or(0))?;
    let recomputations = recomputations(config);
    let profile = Profile::find(config, architecture);
    let all =
        recomputations.iter().flat_map(|&recompute| candidates.iter().map(move |candidate| (candidate, recompute)));
    for (candidate, recompute) in all {
        let step = match lay_out(config, architecture, candidate, recompute, profile.as_ref(), machines) {
            Ok(layout) => {
                let step = (layout.timeline.makespan, layout.largest_stage());
                if best.as_ref().is_none_or(|best| step.0 < best.timeline.makespan) {
                    best = Some(layout);
                }
                Ok(step)
            }
            Err(error) => {
                if refused.as_ref().is_none_or(|other| needed_bytes(&error) < needed_bytes(other)) {
                    refused = Some(error.clone());
                }
                Err(error)
            }
        };
        let Schedule { name, placement, .. } = &candidate.schedule;
        let (schedule, chunks_per_stage) = (name.clone(), placement.chunks() / placement.ranks());
        alternatives.push(Alternative { schedule, chunks_per_stage, recompute, step });
    }
    let is_auto = matches!(config.job.spec.pipeline.schedule, ScheduleSpec::Auto);
    match (best, refused) {
        (Some(layout), _) if is_auto => Ok(PipelineLayout { alternatives, ..layout }.with_choice_noted()),
        (Some(layout), _) => Ok(layout),
        (None, Some(error)) => Err(Fatal::invalid(format!("spec.pipeline.partition: {error}"))),
        (None, None) => Err(Fatal::invalid("spec.pipeline.schedule: no schedule to choose from")),
    }
}

/// The memory without which a candidate is impossible: of several such, the message is about the one that needs least.
fn needed_bytes(error: &PartitionError) -> u64 {
    match error {
        PartitionError::Memory { needed_bytes, .. } => *needed_bytes,
        _ => u64::MAX,
    }
}

/// Partitions the model for a candidate and simulates a step.
fn lay_out(
    config: &JobConfig,
    architecture: &dyn Architecture,
    candidate: &Candidate,
    recompute: Recompute,
    profile: Option<&Profile>,
    machines: &Machines,
) -> Result<PipelineLayout, PartitionError> {
    let speeds = &machines.speeds;
    let pipeline = &config.job.spec.pipeline;
    let Candidate { schedule, programs } = candidate;
    let is_replicated = config.job.spec.data_parallel > 1;
    let mut cost = architecture.cost(config.microbatch_cost(recompute));
    cost.ranks = rank_costs(config, architecture, &schedule.placement, cost.boundary_bytes);
    let mut notes = Vec::new();
    let (work_per_second, link_bytes_per_second) = match profile {
        Some(profile) => {
            profile.apply(&mut cost, recompute);
            notes.push(
                "the plan uses the times that `stagecoach plan --profile` measured on this kind of machine".into(),
            );
            (1.0, cost.boundary_bytes as f64 / profile.link_seconds.max(f64::MIN_POSITIVE))
        }
        None => (FLOPS_PER_SECOND, LINK_BYTES_PER_SECOND),
    };
    let chunks = schedule.placement.chunks();
    let limit = pipeline.memory_limit.as_ref().and_then(|limit| limit.bytes());
    let partition = match pipeline.explicit_layers(chunks) {
        Some(layers) => {
            let layers: Vec<usize> = layers.iter().map(|&count| count as usize).collect();
            explicit_partition(&cost, &layers, schedule, limit)?
        }
        None => {
            notes.extend(pipeline.unfitting_partition(chunks));
            balanced_partition(&cost, schedule, limit, speeds)?
        }
    };
    if !speeds.is_equal() {
        let layers: Vec<String> = partition.layers.iter().map(usize::to_string).collect();
        notes.push(format!(
            "the stages are {speeds} times as fast as the fastest: their layers are {}",
            layers.join("/")
        ));
    }
    let work_per_second = work_per_second * machines.fastest;
    let link_bytes_per_second = machines.link_bytes_per_second.unwrap_or(link_bytes_per_second);
    let parts = if is_replicated { parts(schedule, &partition) } else { vec![1; chunks] };
    let programs = programs_in_parts(programs, &parts, is_replicated);
    let in_parts = partition.split(&parts);
    let costs = Costs::estimate(&cost, &in_parts, work_per_second, link_bytes_per_second);
    let mut costs = costs.at_speeds(&programs.placement, speeds);
    if is_replicated {
        let exchanged = exchanged_bytes(config, architecture, &programs.placement, &in_parts);
        let seconds = |of: usize| exchanged.iter().map(|bytes| bytes[of] / link_bytes_per_second).collect();
        (costs.reduce_seconds, costs.gather_seconds) = (seconds(0), seconds(1));
    }
    let timeline = simulate(&programs, &costs);
    let memory = stage_bytes(config, architecture, schedule, &partition, &cost);
    let (schedule, alternatives) = (schedule.clone(), Vec::new());
    Ok(PipelineLayout {
        schedule,
        partition,
        parts,
        programs,
        recompute,
        cost,
        costs,
        timeline,
        memory,
        alternatives,
        notes,
    })
}

/// Into how many parts replicas divide each chunk: of what they exchange, only the last part of gradients and the first one of weights
/// have no computation of the stage beside them.
fn parts(schedule: &Schedule, partition: &Partition) -> Vec<usize> {
    let placement = &schedule.placement;
    let most = |chunk: usize| PARTS_PER_STAGE / placement.chunks_of(placement.rank_of(chunk)).count();
    partition.layers.iter().enumerate().map(|(chunk, &layers)| layers.clamp(1, most(chunk).max(1))).collect()
}

fn programs_in_parts(programs: &Programs, parts: &[usize], is_replicated: bool) -> Programs {
    let programs = programs.split(parts);
    if is_replicated { programs.replicate() } else { programs }
}

/// The programs of the replicas that have fewer microbatches than the first one, for which `layout` was planned; none if all have as
/// many.
///
/// # Errors
/// If the schedule's CSV is for another number of microbatches.
pub(crate) fn smaller_programs(
    config: &JobConfig,
    architecture: &dyn Architecture,
    layout: &PipelineLayout,
) -> Result<Option<Programs>, Fatal> {
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
        Fatal::invalid(format!(
            "spec.pipeline.schedule: {name} is not possible with a replica's {fewer} microbatches: name one"
        ))
    })
}

impl PipelineLayout {
    /// The programs of a pipeline that is alone, for this layout's chunks, as they are executed: in its parts, and with its replicas.
    pub(super) fn in_parts(&self, programs: &Programs) -> Programs {
        programs_in_parts(programs, &self.parts, self.programs.replicated())
    }

    /// The layers of each chunk of the programs.
    pub(crate) fn program_partition(&self) -> Partition {
        self.partition.split(&self.parts)
    }

    /// The forward-only programs of an evaluation on `microbatches` microbatches, by the size of its windows: of a whole
    /// window and, if there is a remainder, of the last one.
    pub(crate) fn evaluation_programs(&self, microbatches: usize) -> Vec<Programs> {
        let placement = &self.programs.placement;
        let window = (EVALUATION_WINDOW_PER_STAGE * placement.ranks()).min(microbatches);
        let sizes = [window, microbatches.checked_rem(window).unwrap_or(0)].into_iter().filter(|&size| size > 0);
        sizes.map(|size| forward_only_programs(placement, size)).collect()
    }

    /// Says what `Auto` took, and of every other schedule how much longer its best form would take.
    fn with_choice_noted(mut self) -> PipelineLayout {
        let mut best: Vec<(&str, f64)> = Vec::new();
        for Alternative { schedule, step, .. } in &self.alternatives {
            let Ok((seconds, _)) = *step else { continue };
            match best.iter_mut().find(|(name, _)| name == schedule) {
                Some((_, shortest)) => *shortest = shortest.min(seconds),
                None => best.push((schedule, seconds)),
            }
        }
        let taken = self.schedule.name.as_str();
        best.retain(|(name, _)| *name != taken);
        best.sort_by(|a, b| a.1.total_cmp(&b.1));
        let longer =
            |(name, seconds): &(&str, f64)| format!("{name} +{:.1}%", 100.0 * (seconds / self.timeline.makespan - 1.0));
        let others = match best.iter().map(longer).collect::<Vec<String>>().join(", ") {
            others if others.is_empty() => "no other fits".to_owned(),
            others => format!("others, by simulation: {others}"),
        };
        let chunks = self.schedule.placement.chunks() / self.schedule.placement.ranks();
        let note = format!(
            "schedule Auto took {taken} with {chunks} chunk{} a stage, recompute {}; {others}",
            if chunks == 1 { "" } else { "s" },
            self.recompute
        );
        self.notes.push(note);
        self
    }

    /// The most bytes that a stage holds at its peak.
    pub(crate) fn largest_stage(&self) -> u64 {
        self.memory.iter().map(|stage| stage.parts.total()).max().unwrap_or(0)
    }

    /// All that `Auto` chose from, the fastest first, and what is impossible last.
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
