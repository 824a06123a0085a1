//! The end of training: the hash of the weights over all stages, and the result. The model is the last step's
//! checkpoint.

use stagecoach_checkpoint::paths;
use stagecoach_engine::StageError;
use stagecoach_engine::state_dict::{self, TensorHash};
use stagecoach_launcher::{RESULT, WINDOWS};
use stagecoach_planner::TrainerState;
use stagecoach_telemetry::{RunSummary, TrainingEvent};

use crate::train::collective::{all_gather, topic};
use crate::train::context::RunningStage;
use crate::train::leave::LeaveReason;

pub(in crate::train) fn finish(running: &mut RunningStage, state: &TrainerState) -> Result<(), LeaveReason> {
    running.context.monitor.set_activity("hashing the weights");
    let hashes = state_dict::weight_hashes(&running.stage);
    let by_rank = all_gather(running.member, topic::FINISH, &hashes)?;
    if running.context.is_leader() {
        let summary = RunSummary {
            steps: state.step,
            loss: state.loss,
            evaluation_loss: state.evaluation_loss,
            unigram_entropy: running.plan.unigram_entropy,
            losses_hash: state.losses.clone(),
            evaluation_losses_hash: state.evaluation_losses.clone(),
            evaluation_set_losses: state.evaluation_set_losses.clone(),
            best_evaluation: state.best_evaluation,
            ended_early: ended_early(running, state),
            weights_hash: TensorHash::combine(by_rank.concat()),
            skipped: state.skipped,
            receipt: state.receipt.clone(),
            model: format!("{}/{}", running.context.config.job.folder(), paths::checkpoint_path(state.step)),
        };
        let text = serde_json::to_vec_pretty(&summary).map_err(|e| StageError::invalid(e.to_string()))?;
        running.plan.fence.write_job_file(running.context.volume, RESULT, &text)?;
        if !state.streams.is_empty() {
            let notes = running.data_loader.as_ref().map(|data_loader| data_loader.stream_notes(state.step));
            running.context.monitor.notes(notes.unwrap_or_default());
            // No step reads the windows, the files of a streamed corpus, after training. A window that can't be removed
            // only uses space.
            running.data_loader = None;
            let windows = running.context.config.folder().join(WINDOWS);
            let _ = std::fs::remove_dir_all(windows.join(&running.plan.prepared.folder));
            let _ = std::fs::remove_dir(windows);
        }
        running.emit(&TrainingEvent::Finished(summary));
    }
    all_gather(running.member, topic::FINISH, &())?; // no stage leaves before the result has been written
    Ok(())
}

/// Returns the reason why training ended before its last step, if it did.
fn ended_early(running: &RunningStage, state: &TrainerState) -> Option<String> {
    let best = state.best_evaluation.filter(|_| state.step < running.plan.steps)?;
    let plural = if best.evaluations_since == 1 { "" } else { "s" };
    Some(format!(
        "the held-out loss has not improved in {} evaluation{plural} since step {}, where it was {:.4}",
        best.evaluations_since, best.step, best.loss
    ))
}
