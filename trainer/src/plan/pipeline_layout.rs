//! Planning the pipeline: choosing schedule and partition by simulation.

use stagecoach_api::job::ScheduleSpec;
use stagecoach_pipeline::{
    Costs, MemoryBudget, ModelCost, Partition, Placement, Programs, Schedule, Timeline, balanced_partition,
    explicit_partition, forward_only_programs, from_csv, gpipe, lower, one_f_one_b, simulate,
};

use super::job_config::JobConfig;
use crate::fatal::Fatal;
use crate::model::{Architecture, MicrobatchCost};

/// Sends of one edge that may be pending at once: the limit that the verifier assumes.
pub(crate) const MAX_SENDS_IN_FLIGHT: usize = 2;

/// Assumed throughput of the simulated hardware: fp32 FLOP/s of a CPU core, and bytes/s of a local link.
const FLOPS_PER_SECOND: f64 = 5e10;
const LINK_BYTES_PER_SECOND: f64 = 2e9;

/// A planned pipeline.
#[derive(Clone, Debug)]
pub(crate) struct PipelineLayout {
    /// The order of computations on each rank, without communication.
    pub(crate) schedule: Schedule,
    /// Layers of each chunk.
    pub(crate) partition: Partition,
    /// The programs of a training step: the schedule with its communication.
    pub(crate) programs: Programs,
    /// The model's costs per microbatch.
    pub(crate) cost: ModelCost,
    /// The simulated step.
    pub(crate) timeline: Timeline,
    /// Messages for the user.
    pub(crate) notes: Vec<String>,
}

/// Plans the pipeline of a job over `stages` stages: of the candidate schedules, the one with the shortest simulated step.
///
/// # Errors
/// If the schedule is not implemented, its CSV is invalid, or the partition does not match the model or its memory limit.
pub(crate) fn plan_pipeline(
    config: &JobConfig,
    architecture: &dyn Architecture,
    stages: usize,
) -> Result<PipelineLayout, Fatal> {
    let pipeline = &config.job.spec.pipeline;
    let microbatches = config.training.microbatches as usize;
    let length = config.data.sequence_length as usize;
    let cost = architecture.cost(MicrobatchCost {
        tokens: config.microbatch_size() * length,
        length,
        precision: config.training.precision,
        recompute: pipeline.recompute,
    });
    let candidates = match &pipeline.schedule {
        ScheduleSpec::GPipe => vec![gpipe(stages, microbatches)],
        ScheduleSpec::OneFOneB => vec![one_f_one_b(stages, microbatches)],
        ScheduleSpec::Auto => vec![one_f_one_b(stages, microbatches), gpipe(stages, microbatches)],
        ScheduleSpec::Csv(file) => vec![read_csv(config, &file.path, stages, microbatches)?],
        other => {
            return Err(Fatal::invalid(format!(
                "spec.pipeline.schedule.type: this version has GPipe, 1F1B, Csv and Auto, not {}",
                other.tag()
            )));
        }
    };
    let mut best: Option<PipelineLayout> = None;
    let mut refused = None;
    for schedule in candidates {
        match plan_schedule(config, &cost, architecture.tie_word_embeddings(), stages, schedule) {
            Ok(layout) if best.as_ref().is_none_or(|b| layout.timeline.makespan < b.timeline.makespan) => {
                best = Some(layout);
            }
            Ok(_) => {}
            Err(error) => refused = Some(error),
        }
    }
    match (best, refused) {
        (Some(layout), _) => Ok(layout),
        (None, Some(error)) => Err(error),
        (None, None) => Err(Fatal::invalid("spec.pipeline.schedule: no schedule to choose from")),
    }
}

/// Partitions the model for `schedule` and simulates a step.
fn plan_schedule(
    config: &JobConfig,
    cost: &ModelCost,
    tied: bool,
    stages: usize,
    schedule: Schedule,
) -> Result<PipelineLayout, Fatal> {
    let pipeline = &config.job.spec.pipeline;
    let mut notes = Vec::new();
    let given = pipeline.partition.layers.as_ref();
    let partition = match (pipeline.explicit_layers(stages as u32), given) {
        (Some(layers), _) => explicit_partition(cost, &layers.iter().map(|&n| n as usize).collect::<Vec<_>>(), stages),
        (None, given) => {
            if let Some(given) = given {
                notes.push(format!(
                    "spec.pipeline.partition.layers has {} entries and the pipeline {stages} stages: the partition is computed",
                    given.len()
                ));
            }
            let cap = pipeline.memory_limit.as_ref().and_then(|limit| limit.bytes());
            balanced_partition(cost, stages, &MemoryBudget { bytes_per_stage: cap, in_flight: schedule.in_flight() })
        }
    }
    .map_err(|e| Fatal::invalid(format!("spec.pipeline.partition: {e}")))?;
    let programs = lower(&schedule, tied).map_err(|e| Fatal::invalid(e.to_string()))?;
    let timeline = simulate(&programs, &Costs::estimate(cost, &partition, FLOPS_PER_SECOND, LINK_BYTES_PER_SECOND));
    Ok(PipelineLayout { schedule, partition, programs, cost: cost.clone(), timeline, notes })
}

fn read_csv(config: &JobConfig, path: &str, stages: usize, microbatches: usize) -> Result<Schedule, Fatal> {
    let file = config.workspace.join(path);
    let text = std::fs::read_to_string(&file).map_err(|e| {
        Fatal::invalid(format!("spec.pipeline.schedule.csv.path: could not read {}: {e}", file.display()))
    })?;
    from_csv(&text, &Placement::linear(stages), Some(microbatches))
        .map_err(|e| Fatal::invalid(format!("{}: {e}", file.display())))
}

impl PipelineLayout {
    /// The forward-only programs of an evaluation on `microbatches` microbatches.
    pub(crate) fn evaluation_programs(&self, microbatches: usize) -> Programs {
        forward_only_programs(&self.programs.placement, microbatches)
    }

    /// Mean over stages of the simulated bubble, 0 to 1.
    pub(crate) fn bubble(&self) -> f64 {
        let bubbles = &self.timeline.bubble;
        bubbles.iter().sum::<f64>() / bubbles.len().max(1) as f64
    }
}
