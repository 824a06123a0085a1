//! The pipeline's layout: schedule and partition, and what the simulator makes of them.

use stagecoach_api::job::ScheduleSpec;
use stagecoach_pipeline::{
    Costs, MemoryBudget, ModelCost, Partition, Placement, Programs, Schedule, Timeline, balanced_partition,
    explicit_partition, forward_only_programs, from_csv, gpipe, lower, one_f_one_b, simulate,
};

use super::Settings;
use crate::fatal::Fatal;
use crate::model::Architecture;

/// Sends of one edge that may wait for their receiver: the limit that the verifier assumes.
pub const SENDS_IN_FLIGHT: usize = 2;

/// For estimates before anything was measured: what a CPU core does with fp32, and a local link.
const WORK_PER_SECOND: f64 = 5e10;
const LINK_BYTES_PER_SECOND: f64 = 2e9;

/// A planned pipeline.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Compute alone, as it was planned.
    pub schedule: Schedule,
    /// Layers of each chunk.
    pub partition: Partition,
    /// A training step: the schedule with its communication.
    pub programs: Programs,
    /// The model's costs per microbatch.
    pub cost: ModelCost,
    /// The simulated step.
    pub timeline: Timeline,
    /// What a person should know, in sentences.
    pub notes: Vec<String>,
}

/// Plans `settings`' pipeline over `stages` stages.
///
/// # Errors
/// A schedule that does not exist here, a bad CSV, a partition that doesn't add up or doesn't fit.
pub fn layout(settings: &Settings, architecture: &dyn Architecture, stages: usize) -> Result<Layout, Fatal> {
    let pipeline = &settings.job.spec.pipeline;
    let microbatches = settings.training.microbatches as usize;
    let tokens = settings.rows() * settings.data.sequence_length as usize;
    let cost = architecture.cost(tokens, settings.data.sequence_length as usize);
    let candidates = match &pipeline.schedule {
        ScheduleSpec::GPipe => vec![gpipe(stages, microbatches)],
        ScheduleSpec::OneFOneB => vec![one_f_one_b(stages, microbatches)],
        ScheduleSpec::Auto => vec![one_f_one_b(stages, microbatches), gpipe(stages, microbatches)],
        ScheduleSpec::Csv(file) => vec![read_csv(settings, &file.path, stages, microbatches)?],
        other => {
            return Err(Fatal::invalid(format!(
                "spec.pipeline.schedule.type: this version has GPipe, 1F1B, Csv and Auto, not {}",
                other.tag()
            )));
        }
    };
    let mut best: Option<Layout> = None;
    let mut refused = None;
    for schedule in candidates {
        match plan(settings, &cost, architecture.tied(), stages, schedule) {
            Ok(plan) if best.as_ref().is_none_or(|b| plan.timeline.makespan < b.timeline.makespan) => best = Some(plan),
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

fn plan(settings: &Settings, cost: &ModelCost, tied: bool, stages: usize, schedule: Schedule) -> Result<Layout, Fatal> {
    let pipeline = &settings.job.spec.pipeline;
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
    let timeline = simulate(&programs, &Costs::estimate(cost, &partition, WORK_PER_SECOND, LINK_BYTES_PER_SECOND));
    Ok(Layout { schedule, partition, programs, cost: cost.clone(), timeline, notes })
}

fn read_csv(settings: &Settings, path: &str, stages: usize, microbatches: usize) -> Result<Schedule, Fatal> {
    let file = settings.workspace.join(path);
    let text = std::fs::read_to_string(&file).map_err(|e| {
        Fatal::invalid(format!("spec.pipeline.schedule.csv.path: could not read {}: {e}", file.display()))
    })?;
    from_csv(&text, &Placement::linear(stages), Some(microbatches))
        .map_err(|e| Fatal::invalid(format!("{}: {e}", file.display())))
}

impl Layout {
    /// The forward-only program over `microbatches` held-out microbatches.
    pub fn evaluation(&self, microbatches: usize) -> Programs {
        forward_only_programs(&self.programs.placement, microbatches)
    }

    /// Mean over stages of the simulated bubble, 0 to 1.
    pub fn bubble(&self) -> f64 {
        let bubbles = &self.timeline.bubble;
        bubbles.iter().sum::<f64>() / bubbles.len().max(1) as f64
    }
}
