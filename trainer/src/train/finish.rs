//! The end of training: hashes, and the model as a Hugging Face directory, written aside and renamed.

use serde::{Deserialize, Serialize};
use stagecoach_checkpoint::{ModelFolder, Shard, write_atomically};

use super::Run;
use super::steps::Trained;
use crate::fatal::Fatal;
use crate::model::Architecture;
use crate::observe::{Event, Summary};
use crate::state::{self, TensorHash};

/// What each stage tells stage 0 about its part of the model.
#[derive(Serialize, Deserialize)]
struct Part {
    tensors: Vec<TensorHash>,
    shard: Option<Shard>,
}

pub(super) fn finish(run: &mut Run, architecture: &dyn Architecture, trained: &Trained) -> Result<(), Fatal> {
    run.watch.doing("saving the model");
    let folder = run.settings.folder();
    let coordinator = run.env.rank == 0;
    let model = ModelFolder::new(&folder, "model");
    if coordinator {
        model.begin()?;
    }
    run.member.gather(Vec::new())?; // the folder is there
    let tensors = state::tensors(&run.stage);
    let hashes: Vec<TensorHash> = tensors.iter().map(TensorHash::of).collect();
    let shard = match tensors.is_empty() {
        true => None,
        false => Some(model.write_shard(run.stage.rank, &state::views(&tensors))?),
    };
    let part = serde_json::to_vec(&Part { tensors: hashes, shard }).map_err(|e| Fatal::invalid(e.to_string()))?;
    let parts = run.member.gather(part)?;
    if coordinator {
        let parts: Vec<Part> = parts
            .iter()
            .map(|bytes| serde_json::from_slice(bytes))
            .collect::<Result<_, _>>()
            .map_err(|e| Fatal::invalid(format!("a stage's last report can't be read: {e}")))?;
        let mut hashes = Vec::new();
        let mut shards = Vec::new();
        for part in parts {
            hashes.extend(part.tensors);
            shards.extend(part.shard);
        }
        let summary = Summary {
            steps: run.plan.steps,
            loss: trained.losses.last().copied().filter(|l| l.is_finite()),
            evaluation_loss: trained.evaluation_loss,
            unigram_entropy: run.plan.unigram_entropy,
            losses_hash: losses_hash(&trained.losses),
            weights_hash: TensorHash::combine(hashes),
            skipped: trained.skipped,
            model: format!("{}/model", run.settings.job.folder()),
        };
        if let Some(batches) = &run.batches {
            let (tokenizer, tokenizer_config) = batches.tokenizer_files();
            model.copy_file("tokenizer.json", &tokenizer)?;
            model.copy_file("tokenizer_config.json", &tokenizer_config)?;
        }
        model.write_json("config.json", &architecture.config())?;
        model.commit(&shards)?;
        let result = run.settings.folder().join("result.json");
        let text = serde_json::to_vec_pretty(&summary).map_err(|e| Fatal::invalid(e.to_string()))?;
        write_atomically(&result, &text)?;
        run.tell(&Event::Finished(summary));
    }
    run.member.gather(Vec::new())?; // committed: nobody leaves before
    Ok(())
}

/// BLAKE3 of the losses' f32 bits by step.
fn losses_hash(losses: &[f32]) -> String {
    let mut hasher = blake3::Hasher::new();
    for loss in losses {
        hasher.update(&loss.to_le_bytes());
    }
    hasher.finalize().to_hex().to_string()
}
