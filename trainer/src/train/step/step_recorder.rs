//! The leader's writer of step records. A record becomes a line of `metrics.jsonl` and an event.

use stagecoach_api::job::Recompute;
use stagecoach_group::Verdict;
use stagecoach_launcher::METRICS;
use stagecoach_model::Architecture;
use stagecoach_pipeline::{ModelCost, Programs};
use stagecoach_telemetry::{
    EvaluationRecord, FlopsUtilization, MetricsError, MetricsFile, StepRecord, TimelineRecord, TrainingEvent,
    total_peak_flops,
};

use crate::train::context::RunningStage;
use crate::train::leave::LeaveReason;
use crate::train::step::measured_step::MeasuredStep;

/// The metrics file, and the state of earlier steps on which a record depends.
pub(in crate::train) struct StepRecorder {
    metrics: MetricsFile,
    model_cost: ModelCost,
    /// The peak FLOP/s of the GPUs and the FLOPs of a step; `None` if the record has no MFU.
    utilization: Option<FlopsUtilization>,
    timeline_interval: u64,
    /// The number of payload bytes that all stages had sent at the last record.
    bytes_sent: u64,
}

impl StepRecorder {
    /// Opens the recorder under the fence (the right to commit checkpoints), because a group that has lost its fence
    /// must not modify the files of a newer group. `evaluation` is the evaluation of the last trained step, if the
    /// previous group trained this step but did not evaluate it.
    ///
    /// # Errors
    /// If the metrics of earlier steps can't be read or kept. A full volume is not an error: the recorder keeps the
    /// lines until there is space.
    pub(in crate::train) fn open(
        running: &RunningStage,
        architecture: &dyn Architecture,
        evaluation: Option<EvaluationRecord>,
    ) -> Result<StepRecorder, LeaveReason> {
        let config = running.context.config;
        let (folder, fence) = (config.folder(), &running.plan.fence);
        let step = running.plan.trainer_state.step;
        let mut metrics = MetricsFile::new(&folder.join(METRICS), &folder.join(fence.work_dir()), step, evaluation)?;
        let unwritten = running.plan.trainer_state.unwritten_record.as_deref();
        let unwritten = unwritten.filter(|record| metrics.last_step() < Some(record.step));
        let kept = metrics.flush().and_then(|()| unwritten.map_or(Ok(()), |record| metrics.append(record)));
        if let Err(error) = kept {
            fence.check(running.context.volume)?;
            if !error.is_volume_full() {
                return Err(error.into());
            }
            report_metrics_error(running, &error);
        }
        if let Some(record) = unwritten {
            running.emit(&TrainingEvent::Step(record.clone()));
        }
        Ok(StepRecorder {
            metrics,
            model_cost: architecture.cost(config.microbatch_cost(running.plan.recompute)),
            utilization: utilization(running, architecture),
            timeline_interval: timeline_interval(&running.verified.training),
            bytes_sent: 0,
        })
    }

    /// Completes the record with the group's measurements.
    pub(in crate::train) fn complete(
        &mut self,
        running: &RunningStage,
        verdict: &Verdict,
        record: StepRecord,
    ) -> StepRecord {
        let measured = MeasuredStep::new(verdict, &running.verified.training);
        let is_sampled = record.step.is_multiple_of(self.timeline_interval) || record.step == running.plan.steps;
        let parts = &running.plan.parts;
        let timeline = || TimelineRecord {
            parts: if parts.iter().all(|&count| count == 1) { Vec::new() } else { parts.clone() },
            ..TimelineRecord::new(&measured.timeline, &running.verified.partition, &self.model_cost)
        };
        let sources = running.context.config.data.sources.iter().flatten();
        let names = sources.map(|source| source.name.clone());
        let bytes_sent = measured.bytes_sent - std::mem::replace(&mut self.bytes_sent, measured.bytes_sent);
        StepRecord {
            mfu: self.utilization.map(|utilization| utilization.of_step(record.seconds)),
            bubble: measured.shares(|stage| stage.bubble_seconds),
            exposed_communication: measured.shares(|stage| stage.exposed_communication_seconds),
            imbalance: measured.imbalance(),
            bytes_sent,
            timeline: is_sampled.then(|| Box::new(timeline())),
            peak_bytes: measured.peak_bytes,
            source_losses: names.zip(measured.source_losses).filter_map(|(name, loss)| Some((name, loss?))).collect(),
            ..record
        }
    }

    /// Writes a record, and emits it.
    pub(in crate::train) fn write(&mut self, running: &RunningStage, record: StepRecord) {
        let had_pending_lines = self.metrics.has_pending_lines();
        if let (Err(error), false) = (self.metrics.append(&record), had_pending_lines) {
            report_metrics_error(running, &error);
        }
        let (step, is_skipped) = (record.step, record.skipped);
        running.emit(&TrainingEvent::Step(record));
        if is_skipped {
            let message = format!("step {step} was skipped: its loss or gradient is not finite");
            running.note(message);
        }
    }
}

/// Returns the peak FLOP/s of the group's GPUs and the FLOPs of a step. Assumes that each rank has a separate GPU.
/// Returns `None` if a peak is unknown, as on CPUs. Also returns `None` if the rows of a batch differ in length,
/// because they are not packed or hold whole conversations.
fn utilization(running: &RunningStage, architecture: &dyn Architecture) -> Option<FlopsUtilization> {
    let config = running.context.config;
    if !config.data.packing || config.data.has_conversations() {
        return None;
    }
    let gpus = running.environments.iter().map(|environment| environment["gpu"].as_str().unwrap_or_default());
    let peak_flops = total_peak_flops(gpus, config.training.precision)?;
    let microbatch_flops = architecture.cost(config.microbatch_cost(Recompute::None)).work();
    Some(FlopsUtilization { step_flops: f64::from(config.training.microbatches) * microbatch_flops, peak_flops })
}

/// Returns the number of steps from one recorded timeline to the next. The number is ten, or more for large pipelines,
/// so that on average about a hundred actions at most are written per step.
fn timeline_interval(programs: &Programs) -> u64 {
    let actions: usize = programs.ranks.iter().map(Vec::len).sum();
    (actions as u64 / 100).max(10)
}

/// Reports that metrics could not be written. A full volume does not stop training: the recorder buffers the lines, and
/// prints one message.
fn report_metrics_error(running: &RunningStage, error: &MetricsError) {
    running.note(format!("{error}; training continues"));
}
