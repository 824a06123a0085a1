//! The end of training: the hash of the weights over all stages, and the result. The model is the last step's
//! checkpoint.

use stagecoach_checkpoint::paths;

use super::collective::{all_gather, topic};
use super::context::RunningStage;
use crate::fatal::Fatal;
use crate::folder::RESULT;
use crate::observe::{RunSummary, TrainingEvent};
use crate::plan::Progress;
use crate::state::{self, TensorHash};

pub(super) fn finish(running: &mut RunningStage, progress: &Progress) -> Result<(), Fatal> {
    running.context.monitor.set_activity("hashing the weights");
    let hashes: Vec<TensorHash> = state::weights(&running.stage).iter().map(TensorHash::of).collect();
    let parts: Vec<Vec<TensorHash>> = all_gather(running.member, topic::FINISH, &hashes)?;
    if running.context.env.rank == 0 {
        let summary = RunSummary {
            steps: progress.step,
            loss: progress.loss,
            evaluation_loss: progress.evaluation_loss,
            unigram_entropy: running.plan.unigram_entropy,
            losses_hash: progress.losses.clone(),
            weights_hash: TensorHash::combine(parts.concat()),
            skipped: progress.skipped,
            model: format!("{}/{}", running.context.settings.job.folder(), paths::checkpoint_path(progress.step)),
        };
        let text = serde_json::to_vec_pretty(&summary).map_err(|e| Fatal::invalid(e.to_string()))?;
        running.plan.fence.write_job_file(running.context.volume, RESULT, &text)?;
        running.emit(&TrainingEvent::Finished(summary));
    }
    all_gather(running.member, topic::FINISH, &())?; // no stage leaves before the result has been written
    Ok(())
}
