//! Handles the messages that stages and signals send to the supervisor.

use stagecoach_lifecycle::{InstanceId, LostInstance, UnixMillis};
use stagecoach_telemetry::TrainingEvent;

use super::Supervisor;
use super::recovery::LastStart;
use crate::supervisor_message::SupervisorMessage;

impl Supervisor<'_> {
    pub(super) fn handle_message(&mut self, message: SupervisorMessage) {
        let now = self.clock.now();
        match message {
            SupervisorMessage::StopRequested => {
                self.stop_requested = true;
                self.display
                    .print_line("stopping: the stages finish their step, save and exit; a second signal kills them");
            }
            SupervisorMessage::Exited { pid } => self.processes.reap(pid, now),
            SupervisorMessage::Event { attempt, event } if attempt == self.stored.state.attempt.number => {
                self.handle_event(*event, now)
            }
            // the launcher ignores an event of an earlier attempt
            SupervisorMessage::Event { .. } => {}
        }
    }

    fn handle_event(&mut self, event: TrainingEvent, now: UnixMillis) {
        let is_known_loss = self.observed_progress.lost.is_some_and(
            |lost| matches!(event, TrainingEvent::StageLost { stage, incarnation, .. } if (stage, incarnation) == (lost.rank, lost.incarnation)),
        );
        if !is_known_loss {
            self.display.update(&event);
        }
        let attempt = self.stored.state.attempt.number;
        match event {
            TrainingEvent::Preparing { .. } => self.observed_progress.last_preparation_at = Some(now),
            TrainingEvent::Started(start) => {
                self.observed_progress.lost = None;
                let finished_step = self.observed_progress.finished_steps;
                self.last_start = Some(LastStart { at: now, finished_step, first_step: start.first_step });
                self.note_recovery(|recovery| {
                    recovery.first_step.get_or_insert(start.first_step);
                    recovery.loaded_at.get_or_insert(now);
                });
                self.processes.set_ready(attempt, &start.incarnations, now);
            }
            TrainingEvent::StageLost { stage, incarnation, .. } => {
                // `has_ended` can stay false, because the launcher itself observes the exit of its processes
                let lost = LostInstance { rank: stage, incarnation, since: now, has_ended: false };
                self.observed_progress.lost.get_or_insert(lost);
            }
            // `ObservedProgress::last_step_at` stays `None`, because the stages themselves detect a stall and identify
            // the stage that hangs
            TrainingEvent::Step(record) => {
                self.observed_progress.finished_steps = Some(record.step);
                self.note_recovery(|recovery| recovery.first_step_at = recovery.loaded_at.map(|_| now));
            }
            TrainingEvent::Saved(save) => self.observed_progress.checkpoint_step = Some(save.step),
            TrainingEvent::StandingBy { spare } => self.processes.set_standing_by(attempt, spare, now),
            TrainingEvent::Promoted { spare, stage, incarnation } => {
                self.processes.promote(attempt, spare, InstanceId { rank: stage, incarnation }, now);
                self.note_recovery(|recovery| recovery.note_started(now));
            }
            TrainingEvent::SaveFailed(_) | TrainingEvent::AuditDiffers(_) | TrainingEvent::Note { .. } => {}
            TrainingEvent::Finished(summary) => self.summary = Some(summary),
        }
    }
}
