//! Weights to start from: another job's checkpoint, verified by its hashes, or a Hugging Face model directory.

use std::path::{Path, PathBuf};

use stagecoach_checkpoint::{
    CheckpointError, CheckpointLocation, CheckpointReader, FileSystemVolume, ModelFiles, NewestCheckpoint, VerifyLevel,
    open, open_newest, paths,
};

use super::load::{find, read};
use super::pretrained::{check_model, load_model};
use crate::execute::Stage;
use crate::model::Architecture;

/// The model directory that `path`, below `root`, means: itself, or if it is a job's folder its newest checkpoint. Comes
/// back below `root` too, for processes that know it by another name.
///
/// # Errors
/// If there is no model.
pub fn find_model(root: &Path, path: &Path) -> Result<PathBuf, CheckpointError> {
    let folder = root.join(path);
    let location = CheckpointLocation::resolve(&folder)?;
    if location.step.is_some() || folder.join("config.json").exists() {
        return Ok(path.to_owned());
    }
    let NewestCheckpoint { checkpoint, .. } =
        open_newest(&FileSystemVolume::new(&location.job_folder), VerifyLevel::Sizes, &[])?;
    let checkpoint = checkpoint.ok_or_else(|| CheckpointError::Content {
        path: folder.clone(),
        problem: "holds no model: expected a Hugging Face model directory, a checkpoint's folder, or a job's with a \
                  checkpoint"
            .into(),
    })?;
    Ok(path.join(paths::checkpoint_path(checkpoint.manifest().step)))
}

/// A model directory, open.
#[derive(Debug)]
pub struct Source {
    files: ModelFiles,
    /// If it is a checkpoint.
    checkpoint: Option<CheckpointReader>,
}

impl Source {
    /// Opens what [`find_model`] has found.
    ///
    /// # Errors
    /// If it is no model directory, or damaged.
    pub fn open(folder: &Path) -> Result<Source, CheckpointError> {
        let CheckpointLocation { job_folder, step } = CheckpointLocation::resolve(folder)?;
        let checkpoint = step.map(|step| open(&FileSystemVolume::new(&job_folder), step)).transpose()?;
        Ok(Source { files: ModelFiles::open(folder)?, checkpoint })
    }

    /// Whether it holds the weights of `architecture`, and no others.
    ///
    /// # Errors
    /// The first parameter that differs, with both shapes.
    pub fn check(&self, architecture: &dyn Architecture) -> Result<(), CheckpointError> {
        check_model(&self.files, architecture)
    }

    /// Fills `stage`'s weights.
    ///
    /// # Errors
    /// As [`Source::check`]; if what is read is not what was written; or if it can't be read.
    pub fn load(&self, architecture: &dyn Architecture, stage: &Stage) -> Result<(), CheckpointError> {
        let Some(checkpoint) = &self.checkpoint else { return load_model(&self.files, architecture, stage) };
        self.check(architecture)?;
        for parameter in stage.parameters.iter() {
            read(checkpoint, find(checkpoint, &parameter.spec.name, &parameter.spec)?, &parameter.value)?;
        }
        Ok(())
    }
}
