//! Updates the status of a stage when an event occurs.

use stagecoach_api::contract::{AuditStatus, LostStage, StagePhase, StageStatus};
use stagecoach_api::job::{CheckpointStatus, FloatString, ProgressStatus};

use super::super::{BestEvaluation, StartRecord, StepRecord, TrainingEvent};
use crate::event_formatter::preparation_amount;
use crate::keep_audit_difference;
use crate::save_failures::format_save_failure;

/// Updates the status to the state after an event.
pub(crate) fn record(status: &mut StageStatus, event: &TrainingEvent) {
    match event {
        TrainingEvent::Preparing { what, done, total } => {
            let amount = preparation_amount(*done, *total);
            status.message = amount.map_or_else(|| what.clone(), |amount| format!("{what}, {amount}"));
        }
        TrainingEvent::Started(started) => record_start(status, started),
        TrainingEvent::Step(record) => {
            record_step(&mut status.progress, record);
            if record.audit.is_some() {
                status.audit.get_or_insert_default();
            }
        }
        TrainingEvent::AuditDiffers(difference) => {
            let found = status.audit.get_or_insert_default();
            // the list has a limit, because the operator limits the size of a response of `/status`
            keep_audit_difference(&mut found.differences, &difference.message);
            found.suspects.clone_from(&difference.suspects);
        }
        TrainingEvent::Saved(save) => {
            let attempt = Some(status.attempt);
            status.checkpoint = Some(CheckpointStatus { step: save.step, attempt, ..CheckpointStatus::default() });
            status.save_failure = None;
        }
        TrainingEvent::SaveFailed(save) => status.save_failure = Some(format_save_failure(save)),
        TrainingEvent::Note { message } => status.message.clone_from(message),
        TrainingEvent::StageLost { stage, incarnation, has_ended, message } => {
            status.lost = Some(LostStage { stage: *stage, incarnation: *incarnation, has_ended: *has_ended });
            status.message.clone_from(message);
        }
        TrainingEvent::StandingBy { .. } => status.phase = StagePhase::StandingBy,
        TrainingEvent::Promoted { stage, incarnation, .. } => {
            (status.stage, status.incarnation, status.spare) = (*stage, *incarnation, None);
            status.phase = StagePhase::Preparing;
        }
        TrainingEvent::Finished(summary) => {
            status.phase = StagePhase::Done;
            record_best(&mut status.progress, summary.best_evaluation);
            status.progress.ended_early.clone_from(&summary.ended_early);
        }
    }
}

fn record_start(status: &mut StageStatus, started: &StartRecord) {
    status.message.clear();
    status.progress.steps = Some(started.steps);
    status.progress.step = started.first_step.saturating_sub(1);
    status.environment_differences = Some(started.environment_differences.clone());
    if !started.audit_differences.is_empty() {
        let differences = started.audit_differences.clone();
        status.audit = Some(AuditStatus { differences, suspects: Vec::new() });
    }
}

fn record_step(progress: &mut ProgressStatus, record: &StepRecord) {
    progress.step = record.step;
    progress.loss = Some(rounded(record.loss.map_or(f64::NAN, f64::from), 4));
    progress.evaluation_loss = record.evaluation_loss.map(|loss| rounded(loss, 4)).or(progress.evaluation_loss);
    record_best(progress, record.best_evaluation);
    progress.tokens_per_second = Some(rounded(record.tokens_per_second, 1));
    progress.mfu = record.mfu.map(|mfu| rounded(mfu, 3));
    progress.seconds_per_step = Some(rounded(record.seconds, 4));
    progress.bubble = Some(rounded(record.mean_bubble().unwrap_or(0.0), 3));
    progress.exposed_communication = record.mean_exposed_communication().map(|share| rounded(share, 3));
    progress.imbalance = record.largest_imbalance().map(|ratio| rounded(ratio, 3));
    let left = progress.steps.unwrap_or(record.step).saturating_sub(record.step);
    progress.eta = Some(rounded(record.seconds * left as f64, 1));
}

/// Records the best evaluation. Without `best`, the progress keeps the earlier best evaluation.
fn record_best(progress: &mut ProgressStatus, best: Option<BestEvaluation>) {
    let Some(best) = best else { return };
    progress.best_evaluation_loss = Some(rounded(best.loss, 4));
    progress.best_evaluation_step = Some(best.step);
}

fn rounded(value: f64, digits: usize) -> FloatString {
    FloatString(value).rounded(digits)
}
