//! `stagecoach checkpoint verify`

use anyhow::bail;
use clap::Args;
use indicatif::{HumanBytes, ProgressBar};
use serde::Serialize;
use stagecoach_api::contract::FailureKind;
use stagecoach_checkpoint::{CheckpointError, VerifyEvent, read_manifest, verify};
use stagecoach_engine::StageError;

use super::super::output::{byte_progress_bar, print_json, print_line};
use super::target::{CheckpointArgs, JobCheckpoints, NoCheckpoints};

/// Verify the hash of every file; exit with code 74 if a hash differs or there is no checkpoint.
#[derive(Debug, Args)]
pub(super) struct VerifyCommand {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Verify all of the job's checkpoints.
    #[arg(long, conflicts_with = "step")]
    all: bool,
}

/// The result for one file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FileVerification {
    step: u64,
    /// The path, relative to the job's folder.
    file: String,
    /// The size in the manifest; `None` if the manifest can't be read.
    bytes: Option<u64>,
    intact: bool,
    reason: Option<String>,
}

impl VerifyCommand {
    pub(super) fn main(self, json: bool) -> anyhow::Result<()> {
        // a folder without a checkpoint fails the verification, as a damaged checkpoint does
        let (job, step) = self.checkpoint.open().map_err(|error| match error.is::<NoCheckpoints>() {
            true => StageError::new(FailureKind::Storage, error.to_string()).into(),
            false => error,
        })?;
        let steps = if self.all { job.listing.steps.clone() } else { vec![step] };
        let manifests = steps.iter().filter_map(|&step| read_manifest(&job.volume, step).ok());
        let bar = byte_progress_bar(manifests.map(|manifest| manifest.bytes()).sum());
        let mut results = Vec::new();
        for &step in &steps {
            verify_checkpoint(&job, step, &bar, &mut |result| {
                if !json {
                    bar.suspend(|| print_line(&result));
                }
                results.push(result);
            })?;
        }
        bar.finish_and_clear();
        if json {
            print_json(&results)?;
        }
        let damaged: Vec<&FileVerification> = results.iter().filter(|result| !result.intact).collect();
        let Some(first) = damaged.first() else { return Ok(()) };
        bail!(StageError::new(
            FailureKind::Storage,
            format!(
                "{} of {} files differ from the manifest; the first: {} {}",
                damaged.len(),
                results.len(),
                first.file,
                first.reason.as_deref().unwrap_or_default()
            )
        ))
    }
}

/// Verifies one checkpoint and passes the result of each file to `report`. Reports a manifest that can't be read as a
/// damaged file.
fn verify_checkpoint(
    job: &JobCheckpoints,
    step: u64,
    bar: &ProgressBar,
    report: &mut dyn FnMut(FileVerification),
) -> Result<(), CheckpointError> {
    let folder = stagecoach_checkpoint::paths::checkpoint_path(step);
    let verified = verify(&job.volume, step, &mut |event| match event {
        VerifyEvent::BytesRead(bytes) => bar.inc(bytes),
        VerifyEvent::FileChecked(file, reason) => report(FileVerification {
            step,
            file: format!("{folder}/{}", file.name),
            bytes: Some(file.bytes),
            intact: reason.is_none(),
            reason,
        }),
        _ => {}
    });
    match verified {
        Ok(_) => Ok(()),
        Err(CheckpointError::Damaged(damage)) => {
            report(FileVerification {
                step,
                file: damage.file,
                bytes: None,
                intact: false,
                reason: Some(damage.reason),
            });
            Ok(())
        }
        Err(error) => Err(error),
    }
}

impl std::fmt::Display for FileVerification {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.reason {
            None => write!(f, "intact   {}, {}", self.file, HumanBytes(self.bytes.unwrap_or_default())),
            Some(reason) => write!(f, "DAMAGED  {} {reason}", self.file),
        }
    }
}
