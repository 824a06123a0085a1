//! The weights of step 0 from files: another job's checkpoint, verified by its hashes, or a Hugging Face model
//! directory.

use std::path::{Path, PathBuf};

use stagecoach_checkpoint::{
    CheckpointError, CheckpointLocation, CheckpointReader, FileSystemVolume, ModelFiles, NewestCheckpoint, VerifyLevel,
    open, open_newest, paths, refuse_adapter,
};
use stagecoach_model::{Architecture, FrozenWeight, ParameterSpec};
use tch::{Device, Kind, Tensor};

use super::TensorHash;
use super::frozen_weights::FrozenWeights;
use super::load::{copy_from_bytes, find_tensor, read_into};
use super::pretrained::{check_model, check_tied_head};
use super::tensors::NamedTensor;
use crate::execute::Stage;

/// The model directory at `path`, relative to `root`: `path`, or its newest checkpoint if it is a job's folder. The
/// result is also relative to `root`, because other processes may mount `root` at another path.
///
/// # Errors
/// If there is no model.
pub fn find_model(root: &Path, path: &Path) -> Result<PathBuf, CheckpointError> {
    let folder = root.join(path);
    let location = CheckpointLocation::resolve(&folder)?;
    if location.step.is_none() {
        refuse_adapter(&folder)?;
    }
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
        let progress = checkpoint.as_ref().map(|checkpoint| &checkpoint.manifest().metadata.progress);
        if progress.and_then(FrozenWeights::of_progress).is_some() {
            let problem = "has only the trained weights of its job, without the frozen ones: make a whole model of it with \
                           `stagecoach checkpoint merge`";
            return Err(CheckpointError::Content { path: folder.to_owned(), problem: problem.into() });
        }
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

    /// Loads the parameters of `stage` that are weights of the model, converted to fp32. Adapters stay as they are.
    /// `on_read` receives the number of bytes in memory of each loaded weight.
    ///
    /// # Errors
    /// The first weight that differs, with both shapes; if a tensor is damaged or cannot be read, or is not finite.
    pub fn load(
        &self,
        architecture: &dyn Architecture,
        stage: &Stage,
        on_read: &mut dyn FnMut(u64),
    ) -> Result<(), CheckpointError> {
        check_model(&self.files, architecture)?;
        for parameter in stage.parameters.iter().filter(|parameter| parameter.spec.is_of_model()) {
            on_read(self.read(&parameter.spec, &parameter.value)?);
        }
        stage.parameters.update_compute();
        Ok(())
    }

    /// Loads the frozen weights of `stage`, converted to the type in which layers read them. Returns the hashes of
    /// their values in fp32. `on_read` receives the number of bytes of each weight in fp32.
    ///
    /// # Errors
    /// Like [`InitialWeights::load`].
    pub fn load_frozen(
        &self,
        architecture: &dyn Architecture,
        stage: &Stage,
        on_read: &mut dyn FnMut(u64),
    ) -> Result<Vec<TensorHash>, CheckpointError> {
        check_model(&self.files, architecture)?;
        let load = |FrozenWeight { spec, value }: &FrozenWeight| {
            let read = Tensor::empty(&spec.shape, (Kind::Float, Device::Cpu));
            on_read(self.read(spec, &read)?);
            value.shallow_clone().copy_(&read);
            Ok(NamedTensor::of(&(spec.name.clone(), &read)).hash())
        };
        stage.parameters.frozen().iter().map(load).collect()
    }

    /// Reads a weight into `tensor`, fp32. Returns the number of bytes.
    pub(super) fn read(&self, spec: &ParameterSpec, tensor: &Tensor) -> Result<u64, CheckpointError> {
        match &self.checkpoint {
            Some(checkpoint) => read_into(checkpoint, find_tensor(checkpoint, &spec.name, spec)?, tensor)?,
            None => copy_from_bytes(tensor, &self.files.read_f32(&spec.name)?),
        }
        // with a weight that is not finite no loss would be finite
        if tensor.isfinite().all().int64_value(&[]) == 0 {
            let file = self.files.file_of(&spec.name).unwrap_or(self.files.folder());
            return Err(CheckpointError::NonFinite { path: file.to_owned(), tensor: spec.name.clone() });
        }
        Ok(4 * spec.numel())
    }
}
