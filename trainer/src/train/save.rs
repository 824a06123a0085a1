//! Saving a checkpoint at a step's boundary: every stage writes its shards, stage 0 commits by one rename. What comes of
//! it is known to all before the next step.

use serde::Serialize;
use serde::de::DeserializeOwned;
use stagecoach_checkpoint::{About, CheckpointError, Keep, StageFiles, prune};

use super::Run;
use crate::fatal::Fatal;
use crate::model::Architecture;
use crate::observe::Event;
use crate::plan::Progress;
use crate::state;

/// How one stage's part went; an error is its sentence.
type Part<T> = Result<T, String>;

/// Saves `progress` and the weights at hand. `Ok(Err(why))` is a save that failed: what was committed before stays.
///
/// # Errors
/// If the group is gone, or a newer group has taken the job over.
pub(super) fn save(run: &mut Run, architecture: &dyn Architecture, progress: &Progress) -> Result<Part<()>, Fatal> {
    run.watch.doing("saving a checkpoint");
    let coordinator = run.env.rank == 0;
    let volume = run.volume;
    let save = run.plan.fence.save(progress.step);
    let begun = if coordinator { save.begin(volume, &run.plan.identity) } else { Ok(true) };
    match first(agree(run, begun)?) {
        Ok(true) => {}
        Ok(false) => return Ok(Ok(())),
        Err(why) => return Ok(Err(why)),
    }
    let (weights, moments) = (state::weights(&run.stage), state::moments(&run.stage));
    let written = save.write_stage(volume, run.stage.rank, &state::views(&weights), &state::views(&moments));
    let parts: Vec<Part<StageFiles>> = agree(run, written)?;
    let files: Part<Vec<StageFiles>> = parts.into_iter().collect();
    let committed = match (&files, coordinator) {
        (Ok(files), true) => small_files(run, architecture)
            .and_then(|small| save.commit(volume, about(run, progress), files, &small))
            .map(|_| ()),
        _ => Ok(()),
    };
    let saved = files.and(first(agree(run, committed)?));
    if coordinator {
        tidy(run, progress.step, saved.is_ok());
    }
    Ok(saved)
}

/// Removes what need not be kept: after a commit older checkpoints, after a failed save its leftovers, whose room may be
/// just what the next one lacks. A failure here is told, and costs nothing but room.
fn tidy(run: &Run, step: u64, saved: bool) {
    let fence = &run.plan.fence;
    let keep = &run.settings.job.spec.checkpoint;
    let keep = Keep { last: keep.keep_last as usize, every: keep.keep_every };
    let tidied = if saved { prune(run.volume, fence, keep, step).map(|_| ()) } else { fence.clear(run.volume) };
    if let Err(error) = tidied {
        run.tell(&Event::Note { message: format!("could not tidy up after the save of step {step}: {error}") });
    }
}

/// Every stage's result, by rank, the same on all. A lost fence ends the stage: a newer group works on this job.
fn agree<T: Serialize + DeserializeOwned>(run: &Run, mine: Result<T, CheckpointError>) -> Result<Vec<Part<T>>, Fatal> {
    let mine: Part<T> = match mine {
        Err(fenced @ CheckpointError::FencedOff { .. }) => return Err(fenced.into()),
        other => other.map_err(|e| e.to_string()),
    };
    let bytes = serde_json::to_vec(&mine).map_err(|e| Fatal::invalid(e.to_string()))?;
    let all = run.member.gather(bytes)?;
    all.iter()
        .map(|bytes| serde_json::from_slice(bytes))
        .collect::<Result<_, _>>()
        .map_err(|e| Fatal::invalid(format!("a stage's report can't be read ({e}): all stages must run one version")))
}

/// Stage 0's own part.
fn first<T>(parts: Vec<Part<T>>) -> Part<T> {
    parts.into_iter().next().unwrap_or_else(|| Err("stage 0 said nothing".into()))
}

fn small_files(run: &Run, architecture: &dyn Architecture) -> Result<Vec<(String, Vec<u8>)>, CheckpointError> {
    let mut files = vec![("config.json".to_owned(), format!("{:#}\n", architecture.config()).into_bytes())];
    if let Some(batches) = &run.batches {
        let (tokenizer, tokenizer_config) = batches.tokenizer_files();
        for (name, path) in [("tokenizer.json", tokenizer), ("tokenizer_config.json", tokenizer_config)] {
            let bytes = std::fs::read(&path);
            files.push((name.into(), bytes.map_err(|source| CheckpointError::Io { doing: "read", path, source })?));
        }
    }
    Ok(files)
}

fn about(run: &Run, progress: &Progress) -> About {
    let batch = u64::from(run.settings.training.global_batch_size);
    let mut seen = serde_json::json!(progress);
    seen["sequences"] = (progress.step * batch).into();
    About {
        attempt: run.env.attempt,
        identity: run.plan.identity.clone(),
        plan: serde_json::json!({ "schedule": run.plan.schedule, "partition": run.plan.partition }),
        environment: serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "isa": crate::autograd::cpu_capability(),
            "device": format!("{:?}", run.stage.device),
            "threads": run.settings.training.threads,
        }),
        progress: seen,
        job: serde_json::json!(run.settings.job.spec),
    }
}
