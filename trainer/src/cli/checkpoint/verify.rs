//! `stagecoach checkpoint verify`

use anyhow::bail;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use stagecoach_api::contract::FailureKind;
use stagecoach_checkpoint::{CheckpointError, VerifyEvent, read_manifest, verify};

use super::target::{Checkpoints, One};
use super::{say, say_json};
use crate::fatal::Fatal;
use crate::observe::bytes;

/// Read every byte and compare it with what was written.
#[derive(Debug, Args)]
pub(super) struct Verify {
    #[command(flatten)]
    one: One,
    /// All of the job's checkpoints.
    #[arg(long, conflicts_with = "step")]
    all: bool,
}

/// What came of one file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Verdict {
    step: u64,
    /// From the job's folder.
    file: String,
    /// As it was written; none if that is not known.
    bytes: Option<u64>,
    intact: bool,
    reason: Option<String>,
}

impl Verify {
    pub(super) fn main(self, json: bool) -> anyhow::Result<()> {
        let (job, step) = self.one.find()?;
        let steps = if self.all { job.listing.steps.clone() } else { vec![step] };
        let bar = progress(&job, &steps);
        let mut verdicts = Vec::new();
        for &step in &steps {
            one(&job, step, &bar, &mut |verdict| {
                if !json {
                    bar.suspend(|| say(&verdict));
                }
                verdicts.push(verdict);
            })?;
        }
        bar.finish_and_clear();
        if json {
            say_json(&verdicts)?;
        }
        let damaged: Vec<&Verdict> = verdicts.iter().filter(|verdict| !verdict.intact).collect();
        let Some(first) = damaged.first() else { return Ok(()) };
        bail!(Fatal::new(
            FailureKind::Storage,
            format!(
                "{} of {} files are not as they were written; the first: {} {}",
                damaged.len(),
                verdicts.len(),
                first.file,
                first.reason.as_deref().unwrap_or_default()
            )
        ))
    }
}

fn one(job: &Checkpoints, step: u64, bar: &ProgressBar, tell: &mut dyn FnMut(Verdict)) -> Result<(), CheckpointError> {
    let folder = stagecoach_checkpoint::paths::checkpoint_path(step);
    let verified = verify(&job.volume, step, &mut |event| match event {
        VerifyEvent::BytesRead(bytes) => bar.inc(bytes),
        VerifyEvent::FileChecked(file, reason) => tell(Verdict {
            step,
            file: format!("{folder}/{}", file.name),
            bytes: Some(file.bytes),
            intact: reason.is_none(),
            reason,
        }),
    });
    match verified {
        Ok(_) => Ok(()),
        Err(CheckpointError::Damaged(damage)) => {
            tell(Verdict { step, file: damage.file, bytes: None, intact: false, reason: Some(damage.reason) });
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// On stderr, and only if that is a terminal.
fn progress(job: &Checkpoints, steps: &[u64]) -> ProgressBar {
    let total =
        steps.iter().filter_map(|&step| read_manifest(&job.volume, step).ok()).map(|manifest| manifest.bytes()).sum();
    ProgressBar::new(total).with_style(
        ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {bytes_per_sec}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.reason {
            None => write!(f, "intact   {}, {}", self.file, bytes(self.bytes.unwrap_or_default())),
            Some(reason) => write!(f, "DAMAGED  {} {reason}", self.file),
        }
    }
}
