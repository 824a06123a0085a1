//! The weights of step 0 from files: another job's checkpoint, verified by its hashes, or a Hugging Face model
//! directory. A checkpoint does not contain the frozen weights of its job, but records their hash and their directory.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stagecoach_checkpoint::{
    CheckpointError, CheckpointLocation, CheckpointReader, FileSystemVolume, ModelFiles, NewestCheckpoint, VerifyLevel,
    open, open_newest, paths, refuse_adapter,
};
use stagecoach_model::{Architecture, FrozenWeight, ParameterSpec};
use tch::{Device, Kind, Tensor};

use super::TensorHash;
use super::load::{copy_from_bytes, find_tensor, read_into};
use super::pretrained::{check_model, check_tied_head};
use super::tensors::NamedTensor;
use crate::execute::Stage;

/// Returns the model directory at `path`, relative to `root`: `path` itself, or its newest checkpoint if `path` is a
/// job's folder. The result is also relative to `root`, because other processes may mount `root` at another path.
///
/// # Errors
/// If there is no model at `path`.
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
        problem: "holds no model: expected a Hugging Face model directory, a checkpoint's folder, or a job's folder \
                  with a checkpoint"
            .into(),
    })?;
    Ok(path.join(paths::checkpoint_path(checkpoint.manifest().step)))
}

/// An open model directory.
#[derive(Debug)]
pub struct InitialWeights {
    files: ModelFiles,
    /// The open checkpoint, if the directory is a checkpoint.
    checkpoint: Option<CheckpointReader>,
}

impl InitialWeights {
    /// Opens a directory returned by [`find_model`].
    ///
    /// # Errors
    /// If the directory is damaged, or is not a model directory.
    pub fn open(folder: &Path) -> Result<InitialWeights, CheckpointError> {
        let location = CheckpointLocation::resolve(folder)?;
        let checkpoint = location.step.map(|step| open(&location.volume(), step)).transpose()?;
        let progress = checkpoint.as_ref().map(|checkpoint| &checkpoint.manifest().metadata.progress);
        if progress.and_then(FrozenWeights::of_progress).is_some() {
            let problem = "has only the trained weights of its job, without the frozen ones: make a whole model of \
                           it with `stagecoach checkpoint merge`";
            return Err(CheckpointError::Content { path: folder.to_owned(), problem: problem.into() });
        }
        Ok(InitialWeights { files: ModelFiles::open(folder)?, checkpoint })
    }

    /// Checks that the directory contains exactly the weights of `architecture`. The check reads only the headers of
    /// the files, with one exception: if embeddings are tied and the files contain both the embedding and the head, the
    /// check reads and compares these two tensors.
    ///
    /// # Errors
    /// If a weight is missing, superfluous, or of another shape. The error names the first such weight. If a head
    /// differs from its tied embedding.
    pub fn check(&self, architecture: &dyn Architecture) -> Result<(), CheckpointError> {
        check_model(&self.files, architecture)?;
        check_tied_head(&self.files, architecture)
    }

    /// Returns a sentence about files of the directory that are ignored, if there are any.
    pub fn note(&self) -> Option<String> {
        self.files.note()
    }

    /// Loads the parameters of `stage` that are weights of the model, converted to fp32. LoRA adapters stay unchanged.
    /// `on_read` receives the number of bytes in memory of each loaded weight.
    ///
    /// # Errors
    /// If a weight is missing, superfluous, or of another shape. The error names the first such weight. If a tensor is
    /// damaged, can't be read, or is not finite.
    pub fn load(
        &self,
        architecture: &dyn Architecture,
        stage: &Stage,
        on_read: &mut dyn FnMut(u64),
    ) -> Result<(), CheckpointError> {
        check_model(&self.files, architecture)?;
        for parameter in stage.parameters.iter().filter(|parameter| parameter.spec.is_model_weight()) {
            on_read(self.read(&parameter.spec, &parameter.value)?);
        }
        stage.parameters.update_compute();
        Ok(())
    }

    /// Loads the frozen weights of `stage`, converted to the dtype in which layers read them. Returns the hashes of the
    /// weights' values in fp32. `on_read` receives the number of bytes of each weight in fp32.
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

    /// Reads a weight into the fp32 tensor `tensor`. Returns the number of bytes.
    pub(super) fn read(&self, spec: &ParameterSpec, tensor: &Tensor) -> Result<u64, CheckpointError> {
        match &self.checkpoint {
            Some(checkpoint) => read_into(checkpoint, find_tensor(checkpoint, &spec.name, spec)?, tensor)?,
            None => copy_from_bytes(tensor, &self.files.read_f32(&spec.name)?),
        }
        // a weight that is not finite would make every loss not finite
        if tensor.isfinite().all().int64_value(&[]) == 0 {
            let file = self.files.file_of(&spec.name).unwrap_or(self.files.folder());
            return Err(CheckpointError::NonFinite { path: file.to_owned(), tensor: spec.name.clone() });
        }
        Ok(4 * spec.numel())
    }
}

/// The frozen weights of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenWeights {
    /// The hash of the weights' values in fp32, in hex.
    pub hash: String,
    /// The model directory with the weights, relative to the volume's root.
    pub path: PathBuf,
}

impl FrozenWeights {
    /// Returns the frozen weights that the progress in a checkpoint's manifest records; `None` if the checkpoint has
    /// all weights.
    pub fn of_progress(progress: &Value) -> Option<FrozenWeights> {
        FrozenWeights::deserialize(&progress["frozenWeights"]).ok()
    }

    /// Checks that the weights in `folder`, whose tensors have `hashes`, are the frozen weights of the job.
    ///
    /// # Errors
    /// If the hashes differ. The error names both hashes and the `remedy`.
    pub fn check(&self, hashes: Vec<TensorHash>, folder: &Path, remedy: &str) -> Result<(), CheckpointError> {
        let hash = TensorHash::combine(hashes);
        if hash == self.hash {
            return Ok(());
        }
        let problem = format!(
            "contains weights that differ from the frozen weights with which the job began: found the hash {hash}, \
             expected {}; {remedy}",
            self.hash
        );
        Err(CheckpointError::Content { path: folder.to_owned(), problem })
    }
}
