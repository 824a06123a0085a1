//! The whole model of a checkpoint that has only the trained weights. The model consists of the job's frozen weights,
//! with the trained LoRA adapters merged into them, and of the other trained weights.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stagecoach_api::job::LoraSpec;
use stagecoach_checkpoint::{CheckpointError, CheckpointLocation, CheckpointReader, ExportedWeights, open};
use stagecoach_kernels::bytes_of;
use stagecoach_model::{ParameterSpec, SourceConfig, WeightRole, adapter_names, check_fine_tuning, fine_tuned};
use tch::{Device, Kind, Tensor};

use super::initial_weights::{FrozenWeights, InitialWeights};
use super::load::copy_from_bytes;
use super::{NamedTensor, TensorHash};
use crate::execute::Stage;

/// The weights of the whole model, made of a checkpoint's trained weights and the frozen weights of its job.
///
/// A weight with an adapter is `weight + scale x sum over k of B[row, k] A[k, column]`. The sum is computed in fp64 in
/// the order of k, and the result is rounded once to fp32.
#[derive(Debug)]
pub struct MergedWeights {
    checkpoint: CheckpointReader,
    base: InitialWeights,
    base_folder: PathBuf,
    frozen: FrozenWeights,
    /// All weights of the model and of the adapters, by name.
    specs: BTreeMap<String, ParameterSpec>,
    /// The hashes of the frozen weights that were read.
    hashes: RefCell<BTreeMap<String, TensorHash>>,
}

/// The fields of a job's `training` that decide which weights are frozen, trained, or adapted by LoRA.
#[derive(Default, Deserialize)]
#[serde(default)]
struct FineTuning {
    lora: Option<LoraSpec>,
    freeze: Vec<String>,
}

impl MergedWeights {
    /// Opens the checkpoint in `folder` and the model directory with its frozen weights: `base` or, if `base` is
    /// `None`, the directory that the job recorded. The recorded path must exist relative to a folder above the
    /// checkpoint. Returns `None` if `folder` is not a checkpoint, or if the checkpoint has all weights.
    ///
    /// # Errors
    /// If the directory is missing or has another model, or if the checkpoint can't be read.
    pub fn of_checkpoint(folder: &Path, base: Option<&Path>) -> Result<Option<MergedWeights>, CheckpointError> {
        let location = CheckpointLocation::resolve(folder)?;
        let Some(step) = location.step else { return Ok(None) };
        MergedWeights::open(open(&location.volume(), step)?, folder, base)
    }

    /// Like [`MergedWeights::of_checkpoint`], with the open `checkpoint` in `folder`.
    ///
    /// # Errors
    /// Like [`MergedWeights::of_checkpoint`].
    pub fn open(
        checkpoint: CheckpointReader,
        folder: &Path,
        base: Option<&Path>,
    ) -> Result<Option<MergedWeights>, CheckpointError> {
        let metadata = &checkpoint.manifest().metadata;
        let Some(frozen) = FrozenWeights::of_progress(&metadata.progress) else { return Ok(None) };
        let content = |problem: String| CheckpointError::Content { path: folder.to_owned(), problem };
        let FineTuning { lora, freeze } = FineTuning::deserialize(&metadata.job["training"])
            .map_err(|e| content(format!("records a job that this version can't read ({e})")))?;
        let base_folder = match base {
            Some(base) => base.to_owned(),
            None => find_above(folder, &frozen.path).ok_or_else(|| {
                content(format!(
                    "has only the trained weights of its job, and no folder above it contains the job's frozen \
                     weights at {}: give the model directory with the frozen weights with --base",
                    frozen.path.display()
                ))
            })?,
        };
        let fields = checkpoint.read_small_file("config.json")?.unwrap_or_default();
        let fields =
            serde_json::from_slice(&fields).map_err(|e| content(format!("has no usable config.json ({e})")))?;
        let config = SourceConfig::parse(fields).map_err(|problem| content(format!("config.json: {problem}")))?.config;
        let model = config.architecture(Device::Cpu);
        check_fine_tuning(model.as_ref(), lora.as_ref(), &freeze).map_err(content)?;
        let architecture = fine_tuned(model, lora.as_ref(), &freeze);
        let base = InitialWeights::open(&base_folder)?;
        base.check(architecture.as_ref())?;
        let specs = architecture.all_weight_specs().into_iter().map(|spec| (spec.name.clone(), spec)).collect();
        let hashes = RefCell::default();
        Ok(Some(MergedWeights { checkpoint, base, base_folder, frozen, specs, hashes }))
    }

    /// Returns the checkpoint.
    pub fn checkpoint(&self) -> &CheckpointReader {
        &self.checkpoint
    }

    /// Loads the weights into `stage`, which must hold the whole model, with all weights as trained parameters.
    ///
    /// # Errors
    /// If a weight can't be read, or if the frozen weights are not the weights of the job.
    pub fn load(&self, stage: &Stage) -> Result<(), CheckpointError> {
        for parameter in stage.parameters.iter() {
            copy_from_bytes(&parameter.value, &self.read_f32(&parameter.spec.name)?);
        }
        stage.parameters.update_compute();
        self.check()
    }

    fn of_model(&self) -> impl Iterator<Item = &ParameterSpec> {
        self.specs.values().filter(|spec| spec.is_model_weight())
    }

    /// Reads the frozen weight `spec` as fp32, and records its hash.
    fn read_frozen(&self, spec: &ParameterSpec) -> Result<Tensor, CheckpointError> {
        let tensor = Tensor::empty(&spec.shape, (Kind::Float, Device::Cpu));
        self.base.read(spec, &tensor)?;
        let hash = NamedTensor::of(&(spec.name.clone(), &tensor)).hash();
        self.hashes.borrow_mut().insert(spec.name.clone(), hash);
        Ok(tensor)
    }

    /// Adds the adapter of the weight `name`, if the weight has one, to the tensor `weight` in place.
    fn add_adapter(&self, name: &str, weight: &Tensor) -> Result<(), CheckpointError> {
        let [a, b] = adapter_names(name);
        let Some(WeightRole::Adapter { scale }) = self.specs.get(&b).map(|spec| spec.role) else { return Ok(()) };
        let [a, b] = [self.checkpoint.read_f32(&a)?, self.checkpoint.read_f32(&b)?].map(|bytes| floats(&bytes));
        // SAFETY: the tensor is contiguous and on the CPU, and no other code uses it.
        let bytes = unsafe { &mut *bytes_of(weight) };
        let outputs = weight.size()[0] as usize;
        let rank = b.len() / outputs.max(1);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let rows = outputs.div_ceil(threads);
        let row_bytes = bytes.len() / outputs.max(1);
        std::thread::scope(|scope| {
            for (bytes, b) in bytes.chunks_mut(rows * row_bytes).zip(b.chunks(rows * rank)) {
                let a = &a;
                scope.spawn(move || {
                    for (weight, b) in bytes.chunks_mut(row_bytes).zip(b.chunks(rank)) {
                        merge_row(weight, a, b, scale);
                    }
                });
            }
        });
        Ok(())
    }
}

/// Adds `scale x b a` to a row of weights: `b[rank]` is a row of B, and `a[rank, columns]` is the whole of A.
fn merge_row(weights: &mut [u8], a: &[f32], b: &[f32], scale: f64) {
    let columns = weights.len() / 4;
    let mut sums = vec![0f64; columns];
    for (&b, a) in b.iter().zip(a.chunks(columns)) {
        for (sum, &a) in sums.iter_mut().zip(a) {
            *sum += f64::from(b) * f64::from(a);
        }
    }
    for (bytes, sum) in weights.as_chunks_mut().0.iter_mut().zip(sums) {
        *bytes = ((f64::from(f32::from_le_bytes(*bytes)) + scale * sum) as f32).to_le_bytes();
    }
}

/// Converts little-endian bytes to fp32 values.
fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect()
}

/// Finds the model directory `path` in one of the folders above `folder`.
fn find_above(folder: &Path, path: &Path) -> Option<PathBuf> {
    let folder = std::path::absolute(folder).ok()?;
    let candidates = folder.ancestors().map(|above| above.join(path)).collect::<Vec<_>>();
    candidates.into_iter().find(|candidate| candidate.join("config.json").exists())
}

impl ExportedWeights for MergedWeights {
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let shape = |spec: &ParameterSpec| spec.shape.iter().map(|&size| size as usize).collect();
        self.of_model().map(|spec| (spec.name.clone(), shape(spec))).collect()
    }

    fn read_f32(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let Some(spec) = self.specs.get(name).filter(|spec| !spec.is_trained()) else {
            return self.checkpoint.read_f32(name);
        };
        let weight = self.read_frozen(spec)?;
        self.add_adapter(name, &weight)?;
        // SAFETY: the tensor is contiguous and on the CPU, and no code writes to it after this point.
        Ok(unsafe { &*bytes_of(&weight) }.to_vec())
    }

    /// Checks that the frozen weights are the weights with which the job began.
    fn check(&self) -> Result<(), CheckpointError> {
        let hashes = self.hashes.borrow().values().cloned().collect();
        self.frozen.check(hashes, &self.base_folder, "give the job's model directory")
    }
}
