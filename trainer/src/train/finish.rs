//! The end of training: the weights' hash over all stages, and the result. The model is the last step's checkpoint.

use stagecoach_checkpoint::layout;

use super::{Run, gather, topic};
use crate::fatal::Fatal;
use crate::folder::RESULT;
use crate::observe::{Event, Summary};
use crate::plan::Progress;
use crate::state::{self, TensorHash};

pub(super) fn finish(run: &mut Run, progress: &Progress) -> Result<(), Fatal> {
    run.watch.doing("hashing the weights");
    let hashes: Vec<TensorHash> = state::weights(&run.stage).iter().map(TensorHash::of).collect();
    let parts: Vec<Vec<TensorHash>> = gather(run.member, topic::FINISH, &hashes)?;
    if run.env.rank == 0 {
        let summary = Summary {
            steps: progress.step,
            loss: progress.loss,
            evaluation_loss: progress.evaluation_loss,
            unigram_entropy: run.plan.unigram_entropy,
            losses_hash: progress.losses.clone(),
            weights_hash: TensorHash::combine(parts.concat()),
            skipped: progress.skipped,
            model: format!("{}/{}", run.settings.job.folder(), layout::checkpoint(progress.step)),
        };
        let text = serde_json::to_vec_pretty(&summary).map_err(|e| Fatal::invalid(e.to_string()))?;
        run.plan.fence.publish(run.volume, RESULT, &text)?;
        run.tell(&Event::Finished(summary));
    }
    gather(run.member, topic::FINISH, &())?; // the result is there: nobody leaves before
    Ok(())
}
