//! The trainer's form of a job. The code destructures structs by field, so the compiler reports a new field that this
//! module does not handle.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};
use stagecoach_api::PipelineJob;
use stagecoach_api::contract::Mesh;
use stagecoach_api::job::{
    AdamWSpec, BuiltIn, DataSpec, Device, Kernels, ModelSpec, OptimizerSpec, TokenizerSpec, TrainingLength,
    TrainingSpec,
};
use stagecoach_data::{OnWait, Tokenizer};
use stagecoach_engine::StageError;
use stagecoach_engine::optimize::LearningRate;
use stagecoach_engine::state_dict::find_model;
use stagecoach_files::read_if_exists;
use stagecoach_launcher::REMOTE_FILES;
use stagecoach_model::{Architecture, ModelConfig, SourceConfig, SpecifiedModel, check_fine_tuning, fine_tuned};
use stagecoach_pipeline::GradientBlocks;

use super::profile::Profile;
use super::remote_models::{FetchExtent, FetchReports, RemoteModels};
use super::trainer_state::TrainerState;

/// The file of a Hugging Face model directory with the settings of text generation.
pub const GENERATION_CONFIG_FILE: &str = "generation_config.json";

/// Configuration of a job that this trainer can run.
#[derive(Clone, Debug)]
pub struct JobConfig {
    /// The job as it was parsed.
    pub job: PipelineJob,
    /// Root of the volume.
    pub workspace: PathBuf,
    /// The model, without a `vocab_size` if the tokenizer determines it.
    pub model: Arc<dyn ModelConfig>,
    /// The `config.json` of the pretrained model, if the job has one.
    pub source_config: Option<Map<String, Value>>,
    /// The model directory with the weights of step 0, relative to the volume's root; randomly initialised if `None`.
    pub initial_weights: Option<PathBuf>,
    /// Corpus and tokenizer.
    pub data: DataSpec,
    /// Batch, optimizer and learning rate.
    pub training: TrainingSpec,
    /// The number of blocks in which a step's gradients are added. After a resume, stage 0 sets the number with which
    /// the job began.
    pub gradient_blocks: usize,
    /// Whether the job holds out the last sequences of each source, because a version without drawn documents began it.
    pub holds_out_last_sequences: bool,
    /// Whether the records of earlier runs in the job's folder do not count.
    pub starts_over: bool,
    /// Whether training reads the corpus while it trains. After a resume, stage 0 sets the mode with which the job
    /// began.
    pub streams: bool,
    /// The record of the job's remote files, in the job's folder.
    pub remote_files: PathBuf,
    /// The commits of the models and tokenizers of the hub that the job's paths name.
    pub remote_models: RemoteModels,
    /// The times of modules that a plan assumes; `None` for measured times, if they exist.
    pub assumed_profile: Option<Profile>,
}

impl JobConfig {
    /// The configuration of a valid job whose model and tokenizer are on the volume.
    ///
    /// # Errors
    /// All validation errors; otherwise the mismatches with the model that the job reads.
    pub fn new(job: PipelineJob, workspace: &Path) -> Result<JobConfig, StageError> {
        JobConfig::with_models(job, workspace, RemoteModels::default())
    }

    /// Like [`JobConfig::new`], with the job's models and tokenizers of the hub, which the volume must have.
    ///
    /// # Errors
    /// Like [`JobConfig::new`].
    pub fn with_models(
        job: PipelineJob,
        workspace: &Path,
        remote_models: RemoteModels,
    ) -> Result<JobConfig, StageError> {
        check_job(&job)?;
        remote_models.check(&job)?;
        let Some(built_in) = job.spec.built_in() else {
            return Err(StageError::invalid(
                "spec.trainer.type is Custom: this is the built-in trainer, run your own command",
            ));
        };
        let streams = built_in.streams();
        let BuiltIn { model, data, training } = built_in;
        let from = job.spec.checkpoint.init_from.as_ref().map(|from| remote_models.local_path(&from.path));
        let (model, source_config, initial_weights) = match SpecifiedModel::of(model) {
            SpecifiedModel::Config(config) => (config, None, from),
            SpecifiedModel::Pretrained(pretrained) => {
                let path = remote_models.local_path(&pretrained.path);
                let SourceConfig { config, fields } = pretrained_config(workspace, &path)?;
                (config, Some(fields), Some(path))
            }
        };
        if data.sequence_length as usize > model.max_position_embeddings() {
            return Err(StageError::invalid(format!(
                "spec.data.sequenceLength is {}, and the model is made for {} at most",
                data.sequence_length,
                model.max_position_embeddings()
            )));
        }
        let architecture = model.with_vocab_size(model.vocab_size().unwrap_or(1)).architecture(tch::Device::Cpu);
        check_fine_tuning(architecture.as_ref(), training.lora.as_ref(), &training.freeze)
            .map_err(StageError::invalid)?;
        let (data, training) = (data.clone(), training.clone());
        let workspace = workspace.to_owned();
        let gradient_blocks = training.gradient_blocks(job.spec.data_parallel) as usize;
        let remote_files = workspace.join(job.folder()).join(REMOTE_FILES);
        Ok(JobConfig {
            job,
            workspace,
            model,
            source_config,
            initial_weights,
            data,
            training,
            gradient_blocks,
            holds_out_last_sequences: false,
            starts_over: false,
            streams,
            remote_files,
            remote_models,
            assumed_profile: None,
        })
    }

    /// Like [`JobConfig::with_models`], but fetches the settings of the models first, without their weights. `known`
    /// has the commits with which the job began.
    ///
    /// # Errors
    /// Like [`JobConfig::new`], or if the settings can't be fetched.
    pub fn with_settings(
        job: PipelineJob,
        workspace: &Path,
        known: RemoteModels,
        on_progress: &mut dyn FnMut(&str, u64, u64),
        on_wait: OnWait,
    ) -> Result<JobConfig, StageError> {
        check_job(&job)?;
        // stage 0 records the commits with which a job begins
        let reports = FetchReports { on_resolved: &mut |_| Ok(()), on_progress, on_wait };
        let models = known.fetch(&job, workspace, FetchExtent::Settings, reports)?;
        JobConfig::with_models(job, workspace, models)
    }

    /// The job's folder.
    pub fn folder(&self) -> PathBuf {
        self.workspace.join(self.job.folder())
    }

    /// The path, relative to the volume's root, for a path of the spec: the path itself, or the local copy for a URI.
    pub fn local_path(&self, path: &str) -> PathBuf {
        self.remote_models.local_path(path)
    }

    /// Whether the job begins with weights of the hub that the volume does not have.
    pub fn lacks_initial_weights(&self) -> bool {
        self.initial_weights_source().is_some_and(|path| self.remote_models.lacks_weights(path, &self.workspace))
    }

    /// The path of the initial weights, as written in the job.
    pub fn initial_weights_source(&self) -> Option<&str> {
        match (&self.job.spec.checkpoint.init_from, &self.job.spec.model) {
            (Some(from), _) => Some(&from.path),
            (None, Some(ModelSpec::Pretrained(from))) => Some(&from.path),
            (None, _) => None,
        }
    }

    /// The file of the job's tokenizer; `None` if the job trains one.
    pub fn tokenizer_file(&self) -> Option<PathBuf> {
        match &self.data.tokenizer {
            TokenizerSpec::File(file) => Some(self.workspace.join(self.local_path(&file.path))),
            TokenizerSpec::Train(_) => None,
        }
    }

    /// The contents of `generation_config.json` in the model directory from which the job starts, if it exists.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn generation_config(&self) -> Result<Option<Vec<u8>>, StageError> {
        let Ok(Some(folder)) = self.initial_model() else { return Ok(None) };
        let path = self.workspace.join(folder).join(GENERATION_CONFIG_FILE);
        read_if_exists(&path).map_err(|error| StageError::storage("read", &path, error))
    }

    /// Whether training ends early, because the held-out loss no longer improves.
    pub fn has_stopped_improving(&self, state: &TrainerState) -> bool {
        let patience = self.data.evaluation.as_ref().and_then(|evaluation| evaluation.patience);
        let since = state.best_evaluation.map_or(0, |best| best.evaluations_since);
        patience.is_some_and(|patience| since >= patience)
    }

    /// Whether the checkpoint with the lowest held-out loss is kept.
    pub fn keeps_best(&self) -> bool {
        self.data.evaluation.as_ref().is_some_and(|evaluation| evaluation.keep_best)
    }

    /// Steps between two evaluations; 0 if no sequences are held out.
    pub fn evaluation_interval(&self) -> u64 {
        self.data.evaluation.as_ref().map_or(0, |e| u64::from(e.every_steps))
    }

    /// The job's number of steps; an epoch has `training_sequences` sequences. The length of a streamed job is in
    /// steps.
    pub fn steps(&self, training_sequences: Option<u64>) -> u64 {
        match self.training.length() {
            Some(TrainingLength::Steps(steps)) => steps,
            Some(TrainingLength::Epochs(epochs)) => (u64::from(epochs) * training_sequences.unwrap_or(0))
                .div_ceil(u64::from(self.training.global_batch_size)),
            None => 0, // refused by validation
        }
    }

    /// Rows of a microbatch.
    pub fn microbatch_size(&self) -> usize {
        self.training.microbatch_size() as usize
    }

    /// This job with the replicas of a group of `group_size` stages, in the same gradient blocks.
    pub fn with_replicas_of(&self, group_size: usize) -> JobConfig {
        self.with_data_parallel(group_size as u32 / self.job.spec.stages.max(1))
    }

    fn with_data_parallel(&self, data_parallel: u32) -> JobConfig {
        let mut config = self.clone();
        config.job.spec.data_parallel = data_parallel;
        config
    }

    /// This job as if it began with `mesh`: with the gradient blocks that the mesh requires, unless the job specifies a
    /// number.
    pub fn with_mesh(&self, mesh: Mesh) -> JobConfig {
        let mut config = self.with_data_parallel(mesh.data_parallel);
        config.job.spec.stages = mesh.stages;
        config.gradient_blocks = config.training.gradient_blocks(mesh.data_parallel) as usize;
        config
    }

    /// The gradient blocks of a step's microbatches.
    ///
    /// # Errors
    /// If the microbatches can't be divided into the blocks.
    pub fn blocks(&self) -> Result<GradientBlocks, StageError> {
        let (blocks, microbatches) = (self.gradient_blocks, self.training.microbatches as usize);
        GradientBlocks::new(blocks, microbatches).ok_or_else(|| {
            StageError::invalid(format!(
                "spec.training.microbatches {microbatches} can't be divided into {blocks} gradient blocks"
            ))
        })
    }

    /// The microbatches of each replica.
    ///
    /// # Errors
    /// Like [`JobConfig::blocks`].
    pub fn microbatches_of_replicas(&self) -> Result<Vec<usize>, StageError> {
        let (blocks, replicas) = (self.blocks()?, self.job.spec.data_parallel as usize);
        Ok((0..replicas).map(|replica| blocks.of_replica(replica, replicas).microbatches().len()).collect())
    }

    /// The model with `vocab_size` rows in embedding and head.
    pub fn architecture(&self, vocab_size: usize, device: tch::Device) -> Box<dyn Architecture> {
        let model = self.model.with_vocab_size(vocab_size).architecture(device);
        fine_tuned(model, self.training.lora.as_ref(), &self.training.freeze)
    }

    /// Vocabulary size of the tokenizer, as known before the corpus is read. For a tokenizer that the job will train,
    /// the largest possible size. For a tokenizer in a file, the model's size if that is known.
    ///
    /// # Errors
    /// If the tokenizer is a file that can't be read.
    pub fn planned_vocab_size(&self) -> Result<usize, StageError> {
        match &self.data.tokenizer {
            TokenizerSpec::Train(train) => Ok(train.vocab_size as usize),
            TokenizerSpec::File(file) => match self.model.vocab_size() {
                Some(size) => Ok(size),
                None => Ok(Tokenizer::load(&self.workspace.join(self.local_path(&file.path)))?.vocab_size()),
            },
        }
    }

    /// The model's vocabulary size: the specified one, or the tokenizer's.
    ///
    /// # Errors
    /// If the specified vocabulary is smaller than the tokenizer's.
    pub fn vocab_size(&self, tokenizer: usize) -> Result<usize, StageError> {
        match (self.model.vocab_size(), &self.job.spec.model) {
            (Some(size), Some(ModelSpec::Pretrained(from))) if size < tokenizer => Err(StageError::invalid(format!(
                "the vocabulary of the model in {} has {size} tokens and the tokenizer's {tokenizer}: set \
                 spec.data.tokenizer to the model's own",
                from.path
            ))),
            (Some(size), _) if size < tokenizer => Err(StageError::invalid(format!(
                "spec.model.{}.vocabSize is {size}, and the tokenizer's vocabulary has {tokenizer} tokens: raise it or \
                 leave it out",
                self.model.spec_member()
            ))),
            (size, _) => Ok(size.unwrap_or(tokenizer)),
        }
    }

    /// AdamW's hyperparameters.
    pub fn adamw(&self) -> AdamWSpec {
        let OptimizerSpec::AdamW(adamw) = self.training.optimizer;
        adamw
    }

    /// The learning rate of every step, with a decay that ends at step `decay_steps`.
    pub fn learning_rate(&self, decay_steps: u64) -> LearningRate {
        LearningRate { spec: self.training.learning_rate, decay_steps }
    }

    /// [`TrainerState::fix_decay`] with this job's settings.
    ///
    /// # Errors
    /// If the learning rate can't continue as the job specifies.
    pub fn fix_decay(&self, progress: &mut TrainerState, steps: u64) -> Result<Option<String>, StageError> {
        let asked = self.training.learning_rate.decay_steps;
        progress.fix_decay(steps, asked, self.learning_rate(steps)).map_err(StageError::invalid)
    }

    /// The device of `rank`. Loads the kernels on a GPU, once per process.
    ///
    /// # Errors
    /// If the job requires a GPU and none is usable, or the kernels can't be loaded on a GPU.
    pub fn device(&self, rank: usize) -> Result<tch::Device, StageError> {
        let gpus = match self.training.device {
            Device::Cpu => return Ok(tch::Device::Cpu),
            Device::Auto if self.training.kernels == Kernels::Portable => return Ok(tch::Device::Cpu),
            Device::Auto | Device::Cuda => stagecoach_kernels::device::cuda_devices(),
        };
        match (self.training.device, gpus) {
            (Device::Cuda, Err(why)) => Err(StageError::invalid(format!(
                "spec.training.device is Cuda and stage {rank} finds no usable GPU ({why}): give it one, or set device to Auto"
            ))),
            (_, Err(why)) => {
                // a machine without a driver needs no warning
                if why != stagecoach_kernels::device::NoGpu::NoDriver {
                    tracing::warn!("stage {rank} computes on the CPU: {why}");
                }
                Ok(tch::Device::Cpu)
            }
            (_, Ok(gpus)) => {
                let gpu = rank % gpus;
                stagecoach_kernels::load_on_gpu(gpu).map_err(|error| {
                    StageError::invalid(format!("stage {rank} can't compute on GPU {gpu}: {error}"))
                })?;
                Ok(tch::Device::Cuda(gpu))
            }
        }
    }
}

/// Refuses an invalid job with all its problems.
///
/// # Errors
/// `InvalidConfig` with the problems.
pub fn check_job(job: &PipelineJob) -> Result<(), StageError> {
    let problems: Vec<String> = job.validate().iter().map(ToString::to_string).collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(StageError::invalid(problems.join("; "))),
    }
}

/// The configuration of a pretrained model.
fn pretrained_config(workspace: &Path, path: &Path) -> Result<SourceConfig, StageError> {
    let invalid = |e: &dyn std::fmt::Display| StageError::invalid(format!("spec.model.pretrained.path: {e}"));
    let path = find_model(workspace, path).map_err(|e| invalid(&e))?;
    SourceConfig::read(&workspace.join(&path)).map_err(|e| invalid(&e))
}
