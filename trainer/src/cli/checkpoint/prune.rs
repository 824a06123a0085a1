//! `stagecoach checkpoint prune`

use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;
use stagecoach_checkpoint::{Fence, RetentionPolicy, VerifyLevel, open_newest, prune, remove_stale_fences, to_prune};

use super::target::{Checkpoints, Job};
use super::{complain, say, say_json};
use crate::folder::JobFolder;
use crate::launch::Lock;
use crate::observe::bytes;

/// Remove old checkpoints, never the newest intact one.
#[derive(Debug, Args)]
pub(super) struct Prune {
    #[command(flatten)]
    job: Job,
    /// Keep so many of the newest.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep_last: u32,
    /// Keep the first checkpoint at or after every multiple of so many steps too; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 0)]
    keep_every: u64,
    /// Only tell what would be removed.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Serialize)]
struct Removed {
    step: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Pruned {
    dry_run: bool,
    /// The newest checkpoint of which every byte is as it was written.
    intact: u64,
    removed: Vec<Removed>,
    /// Newest first.
    kept: Vec<u64>,
}

impl Prune {
    pub(super) fn main(self, json: bool) -> anyhow::Result<()> {
        let job = self.job.find()?;
        ensure!(!job.listing.steps.is_empty(), "{} has no checkpoints: there is nothing to prune", job.root.display());
        let policy = RetentionPolicy { keep_last: self.keep_last as usize, keep_every: self.keep_every };
        let pruned = if self.dry_run { plan(&job, policy)? } else { prune_now(&job, policy)? };
        if json {
            return say_json(&pruned);
        }
        let word = if self.dry_run { "would remove" } else { "removed" };
        for Removed { step, bytes: size } in &pruned.removed {
            say(format!("{word} step {step}, {}", bytes(*size)));
        }
        let total = pruned.removed.iter().map(|removed| removed.bytes).sum();
        say(format!(
            "{word} {} of {} checkpoints, {} in all; the newest intact one is step {}",
            pruned.removed.len(),
            pruned.removed.len() + pruned.kept.len(),
            bytes(total),
            pruned.intact
        ));
        Ok(())
    }
}

fn prune_now(job: &Checkpoints, policy: RetentionPolicy) -> anyhow::Result<Pruned> {
    let _lock = Lock::take(&JobFolder::open(&job.root, None)?)?;
    let fence = Fence::acquire(&job.volume)?;
    // what that group left may be many gigabytes; a failure leaves them to the next start
    let _ = remove_stale_fences(&job.volume);
    let planned = plan(job, policy)?;
    let removed = prune(&job.volume, &fence, policy, planned.intact)?;
    let kept = job.listing.steps.iter().copied().filter(|step| !removed.contains(step)).collect();
    let removed = planned.removed.into_iter().filter(|one| removed.contains(&one.step)).collect();
    Ok(Pruned { dry_run: false, removed, kept, ..planned })
}

fn plan(job: &Checkpoints, policy: RetentionPolicy) -> anyhow::Result<Pruned> {
    let found = open_newest(&job.volume, VerifyLevel::Contents, &[])?;
    for damage in &found.damage {
        complain(format!("{damage}: left alone, and not counted"));
    }
    let intact = found.checkpoint.context("the checkpoints have gone meanwhile")?.manifest().step;
    let countable: Vec<u64> = job.listing.steps.iter().copied().filter(|&step| step <= intact).collect();
    let removed = to_prune(&countable, policy);
    Ok(Pruned {
        dry_run: true,
        intact,
        kept: job.listing.steps.iter().copied().filter(|step| !removed.contains(step)).collect(),
        removed: removed.iter().map(|&step| Removed { step, bytes: job.bytes(step) }).collect(),
    })
}
