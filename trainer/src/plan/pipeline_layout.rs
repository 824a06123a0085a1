//! Planning the pipeline: choosing schedule and partition by simulation.

use stagecoach_api::job::ScheduleSpec;
use stagecoach_pipeline::{
    Costs, ModelCost, Partition, Programs, Schedule, Timeline, balanced_partition, explicit_partition,
    forward_only_programs, from_csv, gpipe, interleaved_one_f_one_b, interleaved_zero_bubble, lower, one_f_one_b,
    simulate, zbv_zero_bubble,
};

use super::job_config::JobConfig;
use crate::fatal::Fatal;
use crate::model::{Architecture, MicrobatchCost};

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
/// If the schedule's CSV is invalid or another job's, or the partition does not match the model or its memory limit.
pub(crate) fn plan_pipeline(
    config: &JobConfig,
    architecture: &dyn Architecture,
    stages: usize,
) -> Result<PipelineLayout, Fatal> {
    let pipeline = &config.job.spec.pipeline;
    let microbatches = config.training.microbatches as usize;
    let virtual_stages = pipeline.virtual_stages as usize;
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
        ScheduleSpec::InterleavedOneFOneB => vec![interleaved_one_f_one_b(stages, virtual_stages, microbatches)],
        ScheduleSpec::InterleavedZeroBubble => vec![interleaved_zero_bubble(stages, virtual_stages, microbatches)],
        ScheduleSpec::ZbvZeroBubble => vec![zbv_zero_bubble(stages, microbatches)],
        ScheduleSpec::Csv(file) => vec![read_csv(config, &file.path, stages)?],
    };
    let mut best: Option<PipelineLayout> = None;
    let mut refused = None;
    for schedule in candidates {
        match plan_schedule(config, &cost, architecture.tie_word_embeddings(), schedule) {
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
    schedule: Schedule,
) -> Result<PipelineLayout, Fatal> {
    let pipeline = &config.job.spec.pipeline;
    let mut notes = Vec::new();
    let given = pipeline.partition.layers.as_ref();
    let chunks = schedule.placement.chunks();
    let partition = match (pipeline.explicit_layers(chunks), given) {
        (Some(layers), _) => explicit_partition(cost, &layers.iter().map(|&n| n as usize).collect::<Vec<_>>(), chunks),
        (None, given) => {
            if let Some(given) = given {
                notes.push(format!(
                    "spec.pipeline.partition.layers has {} entries and the pipeline {chunks} chunks: the partition is computed",
                    given.len()
                ));
            }
            let cap = pipeline.memory_limit.as_ref().and_then(|limit| limit.bytes());
            balanced_partition(cost, &schedule, cap)
        }
    }
    .map_err(|e| Fatal::invalid(format!("spec.pipeline.partition: {e}")))?;
    let programs = lower(&schedule, tied).map_err(|e| Fatal::invalid(e.to_string()))?;
    let timeline = simulate(&programs, &Costs::estimate(cost, &partition, FLOPS_PER_SECOND, LINK_BYTES_PER_SECOND));
    Ok(PipelineLayout { schedule, partition, programs, cost: cost.clone(), timeline, notes })
}

/// Reads the schedule of a job with `stages` stages.
fn read_csv(config: &JobConfig, path: &str, stages: usize) -> Result<Schedule, Fatal> {
    let file = config.workspace.join(path);
    let invalid = |what: String| Fatal::invalid(format!("spec.pipeline.schedule.csv.path: {}: {what}", file.display()));
    let text = std::fs::read_to_string(&file).map_err(|e| invalid(format!("could not be read: {e}")))?;
    let schedule = from_csv(&text, stages).map_err(|e| invalid(e.to_string()))?;
    let (microbatches, chunks) = (config.training.microbatches as usize, schedule.placement.chunks());
    let virtual_stages = config.job.spec.pipeline.virtual_stages as usize;
    if schedule.microbatches != microbatches {
        return Err(invalid(format!(
            "it is for {} microbatches, and spec.training.microbatches is {microbatches}: set that to {0}",
            schedule.microbatches
        )));
    }
    if chunks != stages * virtual_stages {
        let remedy = match chunks % stages {
            0 => format!("set that to {}", chunks / stages),
            _ => "write it with the same number of chunks for every stage".to_owned(),
        };
        return Err(invalid(format!(
            "it has {chunks} chunks, and {stages} stages with spec.pipeline.virtualStages {virtual_stages} have {}: {remedy}",
            stages * virtual_stages
        )));
    }
    Ok(schedule)
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
