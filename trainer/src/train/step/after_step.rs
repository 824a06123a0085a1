//! The work after the program of a step: its audit, its record, the held-out loss, and copies of the state.

use std::mem::take;
use std::time::Instant;

use stagecoach_group::{StepOutcome, Verdict};
use stagecoach_telemetry::{AuditRecord, EvaluationRecord, StepRecord, TrainingEvent, keep_audit_difference};
use stagecoach_transport::LinkError;

use crate::train::collective::{all_gather, topic};
use crate::train::leave::LeaveReason;
use crate::train::recover::link_failure;
use crate::train::step::announcement::StepAnnouncement;
use crate::train::step::evaluate::evaluate_held_out;
use crate::train::step::{StepStart, TrainingLoop};

impl TrainingLoop<'_, '_, '_> {
    /// Ends the audit of the previous step and returns its record, if there was an audit. Returns an error if the audit
    /// found a difference after which the job must restart.
    pub(in crate::train) fn end_audit(&mut self) -> Result<Option<AuditRecord>, LeaveReason> {
        let Some(audits) = &mut self.audits else { return Ok(None) };
        let running = &mut *self.running;
        let record = audits.compare(running.member)?;
        if let Some(difference) = record.as_ref().and_then(|record| record.difference.as_ref()) {
            keep_audit_difference(&mut self.state.audit_differences, &difference.message);
            if running.context.is_leader() {
                running.emit(&TrainingEvent::AuditDiffers(difference.clone()));
            }
            if let Some(error) = audits.exit_error(difference) {
                self.wrong_step = record.map(|record| record.step);
                return Err(error.into());
            }
        }
        Ok(record)
    }

    /// Begins the audit of a finished step. The auditor recomputes the audited microbatch during the next step.
    pub(in crate::train) fn begin_audit(&mut self, begun: &StepStart) -> Result<(), LeaveReason> {
        let Some(audits) = &mut self.audits else { return Ok(()) };
        let StepAnnouncement { layouts, tokens, .. } = &begun.announced;
        let sent = audits.end_step(begun.step, layouts, *tokens);
        sent.map_err(|error| link_failure(self.running.member, error))
    }

    /// Returns the record of a finished step, with the measurements since the last record. The time of the next step is
    /// measured from `decided_at`, the time of the group's verdict on the step.
    pub(in crate::train) fn record(&mut self, begun: &StepStart, verdict: &Verdict, decided_at: Instant) -> StepRecord {
        let memory_checkpoint = self.memory.as_mut().map(|memory| {
            memory.add_step(decided_at.saturating_duration_since(self.origin), self.is_copying);
            memory.take_record()
        });
        self.origin = decided_at;
        let (tokens, seconds) = (begun.announced.tokens, begun.at.elapsed().as_secs_f64());
        let (is_streamed, data_wait) = (!begun.announced.streams.is_empty(), take(&mut self.data_wait));
        StepRecord {
            step: begun.step,
            loss: self.state.loss,
            gradient_norm: verdict.norm.is_finite().then_some(verdict.norm),
            learning_rate: begun.learning_rate,
            tokens,
            tokens_per_second: tokens as f64 / seconds,
            seconds,
            data_wait_seconds: is_streamed.then_some(data_wait.as_secs_f64()),
            skipped: matches!(verdict.outcome, StepOutcome::Skip),
            environment_differences: take(&mut self.environment_differences),
            checkpoint: self.save_schedule.take_record(),
            memory_checkpoint,
            ..StepRecord::default()
        }
    }

    /// Evaluates the held-out sequences, if the evaluation is due and no stop is requested. If the evaluation is due
    /// but was not computed, `evaluation_due` stays set in the trainer state.
    pub(in crate::train) fn evaluate(&mut self, verdict: &Verdict) -> Result<Option<EvaluationRecord>, LeaveReason> {
        let (step, every) = (self.state.step, self.running.context.config.evaluation_interval());
        let has_held_out = !self.running.verified.evaluation.is_empty();
        let is_due = has_held_out && (step == self.running.plan.steps || (every > 0 && step.is_multiple_of(every)));
        self.state.evaluation_due = is_due;
        if !is_due {
            return Ok(None);
        }
        let losses = if verdict.stop { None } else { evaluate_held_out(self.running)? };
        self.origin = Instant::now();
        Ok(losses.map(|losses| self.state.record_evaluation(losses)))
    }

    /// Takes a memory checkpoint after this step if `has_checkpoint`. The step's record is then written only when all
    /// stages hold the copies: after the last step, this call waits for the copies and writes the record; after any
    /// other step, the next step writes it. Without a memory checkpoint, this call writes the record at once.
    pub(in crate::train) fn copy_state(&mut self, has_checkpoint: bool, is_last: bool) -> Result<(), LeaveReason> {
        self.is_copying = has_checkpoint;
        let running = &*self.running;
        if let (Some(memory), true) = (&mut self.memory, has_checkpoint) {
            running.context.monitor.set_activity("SNAPSHOT");
            let copied = memory.checkpoint(&running.stage, &self.state);
            let copied = copied.and_then(|()| if is_last { memory.wait() } else { Ok(()) });
            copied.map_err(|error| link_failure(running.member, error))?;
            if !is_last {
                return Ok(());
            }
            all_gather(running.member, topic::MEMORY, &())?;
        }
        self.write_record();
        Ok(())
    }

    /// Writes the pending record, if there is one.
    pub(in crate::train) fn write_record(&mut self) {
        let record = self.state.unwritten_record.take();
        if let (Some(recorder), Some(record)) = (&mut self.recorder, record) {
            recorder.write(self.running, *record);
        }
    }

    /// Abandons the current step. If the group stops, saves the state of the last step boundary, unless a checkpoint
    /// already contains that state.
    ///
    /// # Errors
    /// If the group does not stop. In this case a link is broken.
    pub(in crate::train) fn drop_step(
        &mut self,
        begun: &StepStart,
        verdict: &Verdict,
        broken_link: Option<String>,
    ) -> Result<(), LeaveReason> {
        let (running, state) = (&*self.running, &self.state);
        running.context.monitor.set_step(state.step);
        if !verdict.stop {
            let why = broken_link.unwrap_or_else(|| "another stage lost a link".into());
            return Err(LinkError::Broken(format!("step {} is abandoned: {why}", begun.step)).into());
        }
        if running.context.is_leader() {
            let message = format!(
                "step {} is abandoned, because the grace period is too short to finish and save it; step {} is saved \
                 instead",
                begun.step, state.step
            );
            running.note(message);
        }
        if state.step == running.saved_step {
            return Ok(());
        }
        self.save_schedule.save_final(&running.stage, state, true)
    }
}
