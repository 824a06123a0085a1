//! `stagecoach checkpoint prune`

use anyhow::{Context, ensure};
use clap::Args;
use indicatif::HumanBytes;
use serde::Serialize;
use stagecoach_checkpoint::{
    Fence, Manifest, RetentionPolicy, VerifyLevel, open_newest, prune, remove_stale_fences, to_prune,
};
use stagecoach_launcher::{JobFolder, JobLock};

use super::super::output::{print_error, print_json, print_line};
use super::target::{JobCheckpoints, JobFolderArg};

/// Remove old checkpoints, never the newest intact one.
///
/// The command takes the fence of the job, as a new group of the job does. It refuses to run while the job runs on this
/// machine. A group that runs elsewhere, such as in a cluster, loses the fence: it can't commit checkpoints, and exits.
/// The next group resumes from the newest checkpoint and trains the later steps again. Nothing else is lost.
#[derive(Debug, Args)]
pub(super) struct PruneCommand {
    #[command(flatten)]
    job: JobFolderArg,
    /// Keep this many of the newest checkpoints.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep_last: u32,
    /// Also keep the first checkpoint at or after every multiple of this many steps; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 0)]
    keep_every: u64,
    /// Only report what would be removed.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Serialize)]
struct PrunedCheckpoint {
    step: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PruneReport {
    dry_run: bool,
    /// The step of the newest checkpoint whose hashes match.
    intact: u64,
    removed: Vec<PrunedCheckpoint>,
    /// The steps of the kept checkpoints, the newest first.
    kept: Vec<u64>,
}

impl PruneCommand {
    pub(super) fn main(self, json: bool) -> anyhow::Result<()> {
        let job = self.job.open()?;
        ensure!(
            !job.listing.steps.is_empty(),
            "{} has no checkpoints: there is nothing to prune",
            job.folder.display()
        );
        let policy = RetentionPolicy { keep_last: self.keep_last as usize, keep_every: self.keep_every, best: None };
        let report = if self.dry_run { select(&job, policy)?.0 } else { remove(&job, policy)? };
        if json {
            return print_json(&report);
        }
        let verb = if self.dry_run { "would remove" } else { "removed" };
        for PrunedCheckpoint { step, bytes } in &report.removed {
            print_line(format!("{verb} step {step}, {}", HumanBytes(*bytes)));
        }
        let total = report.removed.iter().map(|removed| removed.bytes).sum();
        print_line(format!(
            "{verb} {} of {} checkpoints, {} in all; the newest intact one is step {}",
            report.removed.len(),
            report.removed.len() + report.kept.len(),
            HumanBytes(total),
            report.intact
        ));
        Ok(())
    }
}

fn remove(job: &JobCheckpoints, policy: RetentionPolicy) -> anyhow::Result<PruneReport> {
    let _lock = JobLock::acquire(&JobFolder::open(&job.folder, None)?)?;
    let fence = Fence::acquire(&job.volume)?;
    // remove the unfinished checkpoints of older groups; if the removal fails, the next group tries again
    let _ = remove_stale_fences(&job.volume);
    let (selection, policy) = select(job, policy)?;
    let removed = prune(&job.volume, &fence, policy, selection.intact)?;
    let kept = job.listing.steps.iter().copied().filter(|step| !removed.contains(step)).collect();
    let removed = selection.removed.into_iter().filter(|one| removed.contains(&one.step)).collect();
    Ok(PruneReport { dry_run: false, removed, kept, ..selection })
}

/// Selects the checkpoints to remove. Also returns `policy` with the step of the best checkpoint, if the job keeps its
/// best checkpoint.
fn select(job: &JobCheckpoints, policy: RetentionPolicy) -> anyhow::Result<(PruneReport, RetentionPolicy)> {
    let found = open_newest(&job.volume, VerifyLevel::Contents, &[])?;
    for damage in &found.damage {
        print_error(format!("{damage}: this checkpoint is kept, and does not count towards --keep-last"));
    }
    let newest = found.checkpoint.context("the checkpoints were removed concurrently")?;
    let intact = newest.manifest().step;
    let policy = RetentionPolicy { best: best_step(newest.manifest()), ..policy };
    let candidates: Vec<u64> = job.listing.steps.iter().copied().filter(|&step| step <= intact).collect();
    let removed = to_prune(&candidates, policy);
    let report = PruneReport {
        dry_run: true,
        intact,
        kept: job.listing.steps.iter().copied().filter(|step| !removed.contains(step)).collect(),
        removed: removed.iter().map(|&step| PrunedCheckpoint { step, bytes: job.size(step) }).collect(),
    };
    Ok((report, policy))
}

/// Returns the step of the checkpoint with the lowest held-out loss, if the job keeps this checkpoint.
fn best_step(manifest: &Manifest) -> Option<u64> {
    let metadata = &manifest.metadata;
    metadata.job.pointer("/data/evaluation/keepBest")?.as_bool()?.then_some(())?;
    metadata.progress.pointer("/bestEvaluation/step")?.as_u64()
}
