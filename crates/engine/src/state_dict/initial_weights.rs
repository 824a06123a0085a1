//! The weights of step 0 from files: another job's checkpoint, verified by its hashes, or a Hugging Face model
//! directory.

use std::path::{Path, PathBuf};

use stagecoach_checkpoint::{
    CheckpointError, CheckpointLocation, CheckpointReader, FileSystemVolume, ModelFiles, NewestCheckpoint, VerifyLevel,
    open, open_newest, paths, refuse_adapter,
};
use stagecoach_model::Architecture;

use super::load::{find_tensor, read_into};
use super::pretrained::{check_model, check_tied_head, load_model};
use crate::execute::Stage;

/// The model directory at `path`, relative to `root`: `path`, or its newest checkpoint if it is a job's folder. The
/// result is also relative to `root`, because other processes may mount `root` at another path.
///
/// # Errors
/// If there is no model.
pub fn find_model(root: &Path, path: &Path) -> Result<PathBuf, CheckpointError> {
    let folder = root.join(path);
    refuse_adapter(&folder)?;
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

/// An open model directory.
#[derive(Debug)]
pub struct InitialWeights {
    files: ModelFiles,
    /// `Some` if the directory is a checkpoint.
    checkpoint: Option<CheckpointReader>,
}

impl InitialWeights {
    /// Opens a directory returned by [`find_model`].
    ///
    /// # Errors
    /// If it is not a model directory, or damaged.
    pub fn open(folder: &Path) -> Result<InitialWeights, CheckpointError> {
        let location = CheckpointLocation::resolve(folder)?;
        let checkpoint = location.step.map(|step| open(&location.volume(), step)).transpose()?;
        Ok(InitialWeights { files: ModelFiles::open(folder)?, checkpoint })
    }

    /// Checks that the directory contains exactly the weights of `architecture`. The check reads headers, and the
    /// embedding and head of a tied model that has both.
    ///
    /// # Errors
    /// The first parameter that differs, with both shapes; or a head that differs from its tied embedding.
    pub fn check(&self, architecture: &dyn Architecture) -> Result<(), CheckpointError> {
        check_model(&self.files, architecture)?;
        check_tied_head(&self.files, architecture)
    }

    /// A sentence about files of the directory that are ignored.
    pub fn note(&self) -> Option<String> {
        self.files.note()
    }

    /// Loads the weights of `stage`. `on_read` receives the number of bytes in memory of each loaded weight.
    ///
    /// # Errors
    /// The first parameter that differs, with both shapes; if a tensor is damaged or cannot be read.
    pub fn load(
        &self,
        architecture: &dyn Architecture,
        stage: &Stage,
        on_read: &mut dyn FnMut(u64),
    ) -> Result<(), CheckpointError> {
        let Some(checkpoint) = &self.checkpoint else {
            load_model(&self.files, architecture, stage, on_read)?;
            return self.check_finite(stage);
        };
        check_model(&self.files, architecture)?;
        for parameter in stage.parameters.iter() {
            let entry = find_tensor(checkpoint, &parameter.spec.name, &parameter.spec)?;
            read_into(checkpoint, entry, &parameter.value)?;
            on_read(entry.bytes);
        }
        stage.parameters.update_compute();
        self.check_finite(stage)
    }

    /// Refuses weights that are not finite: with such a weight no loss would be finite.
    fn check_finite(&self, stage: &Stage) -> Result<(), CheckpointError> {
        let is_finite = |value: &tch::Tensor| value.isfinite().all().int64_value(&[]) != 0;
        let wrong = stage.parameters.iter().find(|parameter| !is_finite(&parameter.value));
        let Some(name) = wrong.map(|parameter| &parameter.spec.name) else { return Ok(()) };
        let file = self.files.file_of(name).unwrap_or(self.files.folder());
        Err(CheckpointError::NonFinite { path: file.to_owned(), tensor: name.clone() })
    }
}
