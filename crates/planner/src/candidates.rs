//! The candidate schedules of a plan. A job that specifies a schedule has one candidate. For the schedule type `Auto`,
//! the planner combines every schedule with several numbers of chunks (groups of consecutive layers) per stage and
//! several kinds of recomputation.

use stagecoach_api::job::{Recompute, ScheduleSpec};
use stagecoach_engine::StageError;
use stagecoach_model::Architecture;
use stagecoach_pipeline::{
    ChunkRule, INTERLEAVED_ONE_F_ONE_B, Programs, SCHEDULES, Schedule, ScheduleType, from_csv, lower,
};

use super::job_config::JobConfig;

/// The largest number of chunks per stage that `Auto` tries. Each additional chunk per stage sends every microbatch
/// once more over every link.
const MAX_CHUNKS_PER_STAGE: usize = 4;

/// The largest number of work items of a step (the pipeline's chunks times microbatches) for which `Auto` tries several
/// chunks per stage. In a longer step, the bubble is small even with one chunk per stage, and the plan for several
/// chunks takes long to compute and to send.
const MAX_WORK_ITEMS: usize = 1 << 16;

/// A schedule that the planner can choose.
#[derive(Clone, Debug)]
pub(super) struct PlannedSchedule {
    pub(super) schedule: Schedule,
    /// The programs of the schedule, with communication, for a pipeline without replicas.
    pub(super) programs: Programs,
}

/// Returns the candidate schedules of a job over `stages` stages, at least one. A replica has `microbatches`
/// microbatches. If two candidates have the same time, the plan uses the first of them.
///
/// # Errors
/// Returns an error if the schedule's CSV is invalid, or does not match the job's microbatches, stages or chunks.
pub(super) fn candidates(
    config: &JobConfig,
    architecture: &dyn Architecture,
    stages: usize,
    microbatches: usize,
) -> Result<Vec<PlannedSchedule>, StageError> {
    let lowered = |schedule: Schedule| {
        let programs = lower(&schedule, architecture.adds_tied_gradients());
        let programs = programs.map_err(|e| StageError::invalid(e.to_string()))?;
        Ok(PlannedSchedule { programs, schedule })
    };
    schedules(config, architecture, stages, microbatches)?.into_iter().map(lowered).collect()
}

/// Returns the kinds of recomputation to try: the kind that the job specifies and, for `Auto` with a memory limit, the
/// kinds that need less memory.
pub(super) fn recomputations(config: &JobConfig) -> Vec<Recompute> {
    let pipeline = &config.job.spec.pipeline;
    let given = pipeline.recompute;
    match (&pipeline.schedule, &pipeline.memory_limit) {
        (ScheduleSpec::Auto, Some(_)) => {
            let by_memory = [Recompute::None, Recompute::Selective, Recompute::Full];
            by_memory.into_iter().skip_while(|mode| *mode != given).collect()
        }
        _ => vec![given],
    }
}

fn schedules(
    config: &JobConfig,
    architecture: &dyn Architecture,
    stages: usize,
    microbatches: usize,
) -> Result<Vec<Schedule>, StageError> {
    let pipeline = &config.job.spec.pipeline;
    let chunks = pipeline.virtual_stages() as usize;
    Ok(match &pipeline.schedule {
        ScheduleSpec::Named(named) => vec![named.schedule(stages, chunks, microbatches)],
        ScheduleSpec::Csv(file) => vec![read_csv(config, &file.path, stages, microbatches)?],
        ScheduleSpec::Auto => {
            let is_replicated = config.job.spec.data_parallel > 1;
            let mut all = every_schedule(stages, architecture.num_layers(), microbatches, is_replicated);
            let fits = |schedule: &Schedule| pipeline.explicit_layers(schedule.placement.chunks()).is_some();
            if all.iter().any(fits) {
                all.retain(fits);
            }
            all
        }
    })
}

/// Returns the schedules that `Auto` tries, the simplest first. Stages have several chunks only if each chunk can have
/// a layer.
fn every_schedule(stages: usize, layers: usize, microbatches: usize, is_replicated: bool) -> Vec<Schedule> {
    let mut types: Vec<ScheduleType> = SCHEDULES.iter().rev().copied().collect();
    types.sort_by_key(|schedule| schedule.chunks);
    if stages == 1 && !is_replicated {
        // a single stage without replicas never waits for communication
        types.retain(|schedule| schedule.chunks == ChunkRule::One);
    }
    let most = (MAX_WORK_ITEMS / (stages * microbatches).max(1)).min(layers / stages);
    let mut all = Vec::new();
    for chunks in 1..=most.clamp(1, MAX_CHUNKS_PER_STAGE) {
        let tried = types.iter().filter(|schedule| is_tried(schedule, chunks));
        all.extend(tried.map(|schedule| schedule.schedule(stages, chunks, microbatches)));
    }
    all
}

/// Whether `Auto` tries a schedule. Interleaved 1F1B with one chunk takes as long as 1F1B, but needs more memory.
fn is_tried(schedule: &ScheduleType, chunks: usize) -> bool {
    schedule.chunks.allows(chunks) && (chunks > 1 || *schedule != INTERLEAVED_ONE_F_ONE_B)
}

/// Reads the schedule of a job with `stages` stages from the CSV file at `path`.
fn read_csv(config: &JobConfig, path: &str, stages: usize, microbatches: usize) -> Result<Schedule, StageError> {
    let file = config.workspace.join(path);
    let invalid =
        |what: String| StageError::invalid(format!("spec.pipeline.schedule.csv.path: {}: {what}", file.display()));
    let text = std::fs::read_to_string(&file).map_err(|e| invalid(format!("could not be read: {e}")))?;
    let schedule = from_csv(&text, stages).map_err(|e| invalid(e.to_string()))?;
    let chunks = schedule.placement.chunks();
    let virtual_stages = config.job.spec.pipeline.virtual_stages() as usize;
    if schedule.microbatches != microbatches {
        return Err(invalid(format!(
            "it is for {} microbatches, and {}",
            schedule.microbatches,
            match config.job.spec.data_parallel {
                1 => format!("spec.training.microbatches is {microbatches}: set that to {}", schedule.microbatches),
                replicas => format!(
                    "each of the {replicas} replicas has {microbatches}: give every replica as many microbatches as \
                     the schedule has"
                ),
            }
        )));
    }
    if chunks != stages * virtual_stages {
        let remedy = match chunks % stages {
            0 => format!("set that to {}", chunks / stages),
            _ => "write it with the same number of chunks for every stage".to_owned(),
        };
        return Err(invalid(format!(
            "it has {chunks} chunks, and {stages} stages with spec.pipeline.virtualStages {virtual_stages} have {}: \
             {remedy}",
            stages * virtual_stages
        )));
    }
    Ok(schedule)
}
