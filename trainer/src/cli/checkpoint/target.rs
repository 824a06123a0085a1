//! The folder argument of the subcommands: a job's folder, or one checkpoint in it.

use std::path::PathBuf;

use anyhow::{bail, ensure};
use clap::Args;
use stagecoach_checkpoint::{CheckpointLocation, FileSystemVolume, Listing, Volume, list, paths};

/// Selects a job.
#[derive(Debug, Args)]
pub(super) struct JobFolderArg {
    /// A job's folder, such as `workspace/NAME`.
    folder: PathBuf,
}

/// Selects a checkpoint.
#[derive(Debug, Args)]
pub(super) struct CheckpointArgs {
    /// A job's folder, such as `workspace/NAME`, or the folder of a checkpoint, such as
    /// `workspace/NAME/checkpoints/step-00000100`, or a copy of it.
    folder: PathBuf,
    /// The checkpoint's step; the newest by default.
    #[arg(long, value_name = "N")]
    step: Option<u64>,
}

/// The error that a folder has no checkpoint.
#[derive(Debug, thiserror::Error)]
#[error("{} has no checkpoints: expected a job's folder, such as workspace/NAME, or a checkpoint's", folder.display())]
pub(super) struct NoCheckpoints {
    folder: PathBuf,
}

/// The checkpoints of a job.
pub(super) struct JobCheckpoints {
    pub(super) folder: PathBuf,
    pub(super) volume: FileSystemVolume,
    pub(super) listing: Listing,
}

impl JobFolderArg {
    pub(super) fn open(&self) -> anyhow::Result<JobCheckpoints> {
        let location = CheckpointLocation::resolve(&self.folder)?;
        match location.step {
            Some(step) if location.is_copy => {
                bail!(
                    "{} is a copy of the checkpoint of step {step}: this command takes a job's folder",
                    self.folder.display()
                )
            }
            Some(step) => bail!(
                "{} is the checkpoint of step {step}: this command takes the job's folder, {}",
                self.folder.display(),
                location.job_folder.display()
            ),
            None => JobCheckpoints::list(location),
        }
    }
}

impl CheckpointArgs {
    /// Returns the job's checkpoints, and the step of the selected checkpoint. The selected checkpoint exists, but may
    /// be damaged.
    pub(super) fn open(&self) -> anyhow::Result<(JobCheckpoints, u64)> {
        let location = CheckpointLocation::resolve(&self.folder)?;
        if let (Some(named), Some(step)) = (location.step, self.step) {
            ensure!(named == step, "{} is step {named}, and --step is {step}: give one of them", self.folder.display());
        }
        let named = location.step;
        let checkpoints = JobCheckpoints::list(location)?;
        let steps = &checkpoints.listing.steps;
        match named.or(self.step).or(steps.first().copied()) {
            None => bail!(NoCheckpoints { folder: checkpoints.folder }),
            Some(step) if steps.contains(&step) => Ok((checkpoints, step)),
            Some(step) => {
                let found: Vec<String> = steps.iter().rev().map(u64::to_string).collect();
                bail!("{} has no checkpoint of step {step}; it has {}", checkpoints.folder.display(), found.join(", "))
            }
        }
    }
}

impl JobCheckpoints {
    fn list(location: CheckpointLocation) -> anyhow::Result<JobCheckpoints> {
        let volume = location.volume();
        let listing = list(&volume)?;
        Ok(JobCheckpoints { folder: location.job_folder, volume, listing })
    }

    /// Returns the path of a checkpoint's folder.
    pub(super) fn path(&self, step: u64) -> PathBuf {
        self.volume.display(&paths::checkpoint_path(step))
    }

    /// Returns the total size of a checkpoint's files in bytes, even if the checkpoint is damaged.
    pub(super) fn size(&self, step: u64) -> u64 {
        let folder = paths::checkpoint_path(step);
        let entries = self.volume.list(&folder).unwrap_or_default();
        let size = |name: &str| self.volume.open(&format!("{folder}/{name}")).and_then(|file| file.size());
        entries.iter().filter(|entry| !entry.is_dir).filter_map(|entry| size(&entry.name).ok()).sum()
    }

    /// Returns the time at which a checkpoint was committed (its manifest's modification time) in the format of RFC
    /// 3339, in UTC and rounded to seconds. Returns `None` if the manifest does not exist.
    pub(super) fn committed_at(&self, step: u64) -> Option<String> {
        let manifest = self.path(step).join(paths::MANIFEST_FILE);
        let modified = jiff::Timestamp::try_from(manifest.metadata().ok()?.modified().ok()?).ok()?;
        Some(format!("{modified:.0}"))
    }
}
