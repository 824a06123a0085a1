//! `stagecoach plan --optimal`: compares a layout's schedule with the shortest possible schedule.

use stagecoach_engine::StageError;
use stagecoach_model::Architecture;
use stagecoach_pipeline::{OptimalSchedule, lower, optimal_schedule, simulate};

use super::memory::stage_bytes;
use super::{JobConfig, PipelineLayout, StageBytes};

/// The largest number of work items (stages times microbatches) for which a complete search is feasible.
const MAX_WORK_ITEMS: usize = 64;
/// The largest number of states of a search. A search of this size takes about a minute.
const MAX_STATES: u64 = 20_000_000;

impl PipelineLayout {
    /// Returns this layout with the shortest schedule that fits into the job's memory limit. Without a limit, the
    /// shortest schedule may use as much memory as the layout's schedule does. A note compares the two schedules.
    ///
    /// # Errors
    /// Returns an error if stages have several chunks, if there are too many stages and microbatches, or if the search
    /// finds no schedule within the memory limit.
    pub fn into_optimal(
        mut self,
        config: &JobConfig,
        architecture: &dyn Architecture,
    ) -> Result<PipelineLayout, StageError> {
        let (ranks, microbatches) = (self.schedule.placement.ranks(), self.programs.microbatches);
        if self.schedule.placement.chunks() != ranks {
            return Err(StageError::invalid(format!(
                "--optimal searches among schedules with one chunk a stage, and {} has {} chunks on {ranks} stages: \
                 set spec.pipeline.schedule to 1F1B and virtualStages to 1",
                self.schedule.name,
                self.schedule.placement.chunks()
            )));
        }
        if ranks * microbatches > MAX_WORK_ITEMS {
            return Err(StageError::invalid(format!(
                "--optimal allows stages x microbatches up to {MAX_WORK_ITEMS}, and this job has {ranks} x \
                 {microbatches} = {}: plan with fewer microbatches, as in --set training.microbatches={}",
                ranks * microbatches,
                (MAX_WORK_ITEMS / ranks).max(1)
            )));
        }
        let limit = config.job.spec.pipeline.memory_limit.as_ref().and_then(|limit| limit.bytes());
        let varying = |stage: &StageBytes| {
            let held = stage.parts.activations + stage.parts.weight_gradient_inputs;
            limit.map_or(held, |limit| limit.saturating_sub(stage.parts.total() - held))
        };
        let limits: Vec<u64> = self.memory.iter().map(varying).collect();
        let found = optimal_schedule(&self.costs.merge(&self.parts), microbatches, &limits, MAX_STATES)
            .ok_or_else(|| StageError::invalid("--optimal found no schedule within spec.pipeline.memoryLimit"))?;
        let programs = lower(&found.schedule, self.programs.tied()).map_err(|e| StageError::invalid(e.to_string()))?;
        let programs = self.in_parts(&programs);
        let timeline = simulate(&programs, &self.costs);
        self.notes.push(note(&self, timeline.makespan, &found));
        let memory = stage_bytes(config, architecture, &found.schedule, &self.partition, &self.cost);
        Ok(PipelineLayout { programs, timeline, memory, schedule: found.schedule, ..self })
    }
}

fn note(own: &PipelineLayout, seconds: f64, found: &OptimalSchedule) -> String {
    let longer = |seconds: f64, than: f64| 100.0 * (seconds / than - 1.0);
    let proof = if found.is_proven() {
        format!("no schedule of this partition is shorter in this memory (proven after {} states)", found.states)
    } else {
        let gap = longer(found.seconds, found.lower_bound);
        format!("after {} states it is proven that none is shorter by more than {gap:.1} %", found.states)
    };
    format!(
        "{} takes {:.1} % longer than the schedule below; {proof}",
        own.schedule.name,
        longer(own.timeline.makespan, seconds)
    )
}
