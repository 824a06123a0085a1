//! Selects one of a plan's candidates.

use stagecoach_api::job::ScheduleSpec;
use stagecoach_engine::StageError;
use stagecoach_model::Architecture;
use stagecoach_pipeline::{PartitionError, RankSpeeds, Schedule};

use super::super::candidates::{candidates, recomputations};
use super::super::job_config::JobConfig;
use super::super::profile::Profile;
use super::super::speeds::Machines;
use super::evaluate::LayoutContext;
use super::{Alternative, PipelineLayout};

/// Plans the pipeline of a job over `stages` stages with the relative speeds `speeds`. The plan is the candidate with
/// the shortest simulated step.
///
/// # Errors
/// Returns an error if the schedule's CSV is invalid or belongs to another job, or if the partition does not match the
/// model or the memory limit.
pub fn plan_pipeline(
    config: &JobConfig,
    architecture: &dyn Architecture,
    stages: usize,
    speeds: &RankSpeeds,
) -> Result<PipelineLayout, StageError> {
    plan_pipeline_on(config, architecture, stages, &Machines { speeds: speeds.clone(), ..Machines::default() })
}

/// Like [`plan_pipeline`], with the assumptions about speeds and links in `machines`.
///
/// # Errors
/// Returns the errors of [`plan_pipeline`].
pub fn plan_pipeline_on(
    config: &JobConfig,
    architecture: &dyn Architecture,
    stages: usize,
    machines: &Machines,
) -> Result<PipelineLayout, StageError> {
    let mut alternatives = Vec::new();
    let mut best: Option<PipelineLayout> = None;
    let mut refused: Option<PartitionError> = None;
    let microbatches = config.microbatches_of_replicas()?;
    let candidates = candidates(config, architecture, stages, microbatches.first().copied().unwrap_or(0))?;
    let recomputations = recomputations(config);
    let profile = config.assumed_profile.clone().or_else(|| Profile::find(config, architecture));
    let context = LayoutContext { config, architecture, profile: profile.as_ref(), machines };
    let all =
        recomputations.iter().flat_map(|&recompute| candidates.iter().map(move |candidate| (candidate, recompute)));
    for (candidate, recompute) in all {
        let step = match context.evaluate(candidate, recompute) {
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
        (None, Some(error)) => Err(StageError::invalid(format!("spec.pipeline.partition: {error}"))),
        (None, None) => Err(StageError::invalid("spec.pipeline.schedule: no schedule fits this job")),
    }
}

/// Returns the memory that an impossible candidate needs. If all candidates are impossible, the planner reports the
/// error of the candidate that needs the least memory.
fn needed_bytes(error: &PartitionError) -> u64 {
    match error {
        PartitionError::Memory { needed_bytes, .. } => *needed_bytes,
        _ => u64::MAX,
    }
}

impl PipelineLayout {
    /// Adds a note with the choice of `Auto`. The note has, for every other schedule, the additional time of its
    /// fastest alternative.
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
}
