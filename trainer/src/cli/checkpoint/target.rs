//! What a person points to: a job's folder, or one checkpoint in it.

use std::path::PathBuf;

use anyhow::{bail, ensure};
use clap::Args;
use stagecoach_checkpoint::{CheckpointLocation, FileSystemVolume, Listing, Volume, list, paths};

/// A job's folder.
#[derive(Debug, Args)]
pub(super) struct Job {
    /// A job's folder, such as `workspace/NAME`.
    folder: PathBuf,
}

/// One checkpoint.
#[derive(Debug, Args)]
pub(super) struct One {
    /// A job's folder, such as `workspace/NAME`, or a checkpoint's, such as `workspace/NAME/checkpoints/step-00000100`.
    folder: PathBuf,
    /// The checkpoint's step; the newest by default.
    #[arg(long, value_name = "N")]
    step: Option<u64>,
}

/// A job's checkpoints.
pub(super) struct Checkpoints {
    pub(super) root: PathBuf,
    pub(super) volume: FileSystemVolume,
    pub(super) listing: Listing,
}

impl Job {
    pub(super) fn find(&self) -> anyhow::Result<Checkpoints> {
        let location = CheckpointLocation::resolve(&self.folder)?;
        match location.step {
            Some(step) => bail!(
                "{} is the checkpoint of step {step}: this command takes the job's folder, {}",
                self.folder.display(),
                location.job_folder.display()
            ),
            None => Checkpoints::of(location.job_folder),
        }
    }
}

impl One {
    /// The checkpoint's job and step; the step is listed, and nothing else is known about it.
    pub(super) fn find(&self) -> anyhow::Result<(Checkpoints, u64)> {
        let location = CheckpointLocation::resolve(&self.folder)?;
        if let (Some(named), Some(step)) = (location.step, self.step) {
            ensure!(named == step, "{} is step {named}, and --step is {step}: give one of them", self.folder.display());
        }
        let job = Checkpoints::of(location.job_folder)?;
        let steps = &job.listing.steps;
        match location.step.or(self.step).or(steps.first().copied()) {
            None => bail!(
                "{} has no checkpoints: expected a job's folder, such as workspace/NAME, or a checkpoint's",
                job.root.display()
            ),
            Some(step) if steps.contains(&step) => Ok((job, step)),
            Some(step) => {
                let there: Vec<String> = steps.iter().rev().map(u64::to_string).collect();
                bail!("{} has no checkpoint of step {step}; it has {}", job.root.display(), there.join(", "))
            }
        }
    }
}

impl Checkpoints {
    fn of(root: PathBuf) -> anyhow::Result<Checkpoints> {
        let volume = FileSystemVolume::new(&root);
        let listing = list(&volume)?;
        Ok(Checkpoints { root, volume, listing })
    }

    /// A checkpoint's folder.
    pub(super) fn path(&self, step: u64) -> PathBuf {
        self.volume.display(&paths::checkpoint_path(step))
    }

    /// What its files take, bytes, whether they are those that were written or not.
    pub(super) fn bytes(&self, step: u64) -> u64 {
        let folder = paths::checkpoint_path(step);
        let entries = self.volume.list(&folder).unwrap_or_default();
        let size = |name: &str| self.volume.open(&format!("{folder}/{name}")).and_then(|file| file.size());
        entries.iter().filter(|entry| !entry.is_dir).filter_map(|entry| size(&entry.name).ok()).sum()
    }

    /// When it was committed, by the clock of the file system.
    pub(super) fn committed_at(&self, step: u64) -> Option<String> {
        let manifest = self.path(step).join(paths::MANIFEST_FILE);
        manifest.metadata().and_then(|found| found.modified()).ok().map(super::time::utc)
    }
}
