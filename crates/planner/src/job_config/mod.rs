//! The trainer's form of a job. The code destructures structs by field, so the compiler reports a new field that this
//! module does not handle.

mod mesh;
mod model;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};
use stagecoach_api::PipelineJob;
use stagecoach_api::job::{BuiltIn, DataSpec, ModelSpec, TokenizerSpec, TrainingLength, TrainingSpec};
use stagecoach_data::OnWait;
use stagecoach_engine::StageError;
use stagecoach_engine::state_dict::find_model;
use stagecoach_files::read_if_exists;
use stagecoach_launcher::REMOTE_FILES;
use stagecoach_model::{ModelConfig, SourceConfig, SpecifiedModel, check_fine_tuning};

use super::profile::Profile;
use super::remote_models::{FetchExtent, FetchReports, RemoteModels};
use super::trainer_state::TrainerState;

/// The file with the settings of text generation in a Hugging Face model directory.
pub const GENERATION_CONFIG_FILE: &str = "generation_config.json";

/// The configuration of a job that this trainer can run.
#[derive(Clone, Debug)]
pub struct JobConfig {
    /// The job as it was parsed.
    pub job: PipelineJob,
    /// The root of the volume.
    pub workspace: PathBuf,
    /// The model, without a `vocab_size` if the tokenizer determines it.
    pub model: Arc<dyn ModelConfig>,
    /// The `config.json` of the pretrained model, if the job has one.
    pub source_config: Option<Map<String, Value>>,
    /// The model directory with the weights of step 0, relative to the volume's root. `None` if the weights are
    /// initialised randomly.
    pub initial_weights: Option<PathBuf>,
    /// The corpus and the tokenizer.
    pub data: DataSpec,
    /// The batch, the optimizer and the learning rate.
    pub training: TrainingSpec,
    /// The number of gradient blocks of a step: fixed groups of microbatches whose gradients are added in a fixed
    /// order. After a resume, the leader sets the number with which the job began.
    pub gradient_blocks: usize,
    /// Whether the job holds out the last sequences of each source instead of randomly drawn documents. This is true
    /// only for a job that began under an older version.
    pub holds_out_last_sequences: bool,
    /// Whether the job ignores the records of earlier runs in its folder.
    pub starts_over: bool,
    /// Whether the job streams its corpus, that is, reads the corpus while it trains. After a resume, the leader sets
    /// the mode with which the job began.
    pub streams: bool,
    /// The record of the job's remote files, in the job's folder.
    pub remote_files: PathBuf,
    /// The commits of the models and tokenizers on the Hugging Face hub that the job's paths name.
    pub remote_models: RemoteModels,
    /// The times of modules that a plan assumes. If `None`, the plan uses measured times if they exist.
    pub assumed_profile: Option<Profile>,
}

impl JobConfig {
    /// Returns the configuration of a valid job whose model and tokenizer are on the volume.
    ///
    /// # Errors
    /// Returns an error if the job is invalid, or if it does not match the model that it reads. The error about an
    /// invalid job lists all problems.
    pub fn new(job: PipelineJob, workspace: &Path) -> Result<JobConfig, StageError> {
        JobConfig::with_models(job, workspace, RemoteModels::default())
    }

    /// Like [`JobConfig::new`], for a job that names models and tokenizers on the hub. Their copies must be on the
    /// volume.
    ///
    /// # Errors
    /// Returns the errors of [`JobConfig::new`].
    pub fn with_models(
        job: PipelineJob,
        workspace: &Path,
        remote_models: RemoteModels,
    ) -> Result<JobConfig, StageError> {
        check_job(&job)?;
        remote_models.check(&job)?;
        let Some(built_in) = job.spec.built_in() else {
            return Err(StageError::invalid(
                "spec.trainer.type is Custom: the built-in trainer can't run this job: run the command of spec.trainer instead",
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
    /// Returns the errors of [`JobConfig::new`], or an error if the settings can't be fetched.
    pub fn with_settings(
        job: PipelineJob,
        workspace: &Path,
        known: RemoteModels,
        on_progress: &mut dyn FnMut(&str, u64, u64),
        on_wait: OnWait,
    ) -> Result<JobConfig, StageError> {
        check_job(&job)?;
        // rank 0 records the commits with which a job begins, so this function does not
        let reports = FetchReports { on_resolved: &mut |_| Ok(()), on_progress, on_wait };
        let models = known.fetch(&job, workspace, FetchExtent::Settings, reports)?;
        JobConfig::with_models(job, workspace, models)
    }

    /// Returns the job's folder.
    pub fn folder(&self) -> PathBuf {
        self.workspace.join(self.job.folder())
    }

    /// Converts a path of the spec to a path relative to the volume's root. A URI becomes the path of its local copy.
    pub fn local_path(&self, path: &str) -> PathBuf {
        self.remote_models.local_path(path)
    }

    /// Whether the job begins with weights on the hub that the volume does not have.
    pub fn lacks_initial_weights(&self) -> bool {
        self.initial_weights_source().is_some_and(|path| self.remote_models.lacks_weights(path, &self.workspace))
    }

    /// Returns the path of the initial weights, as written in the job.
    pub fn initial_weights_source(&self) -> Option<&str> {
        match (&self.job.spec.checkpoint.init_from, &self.job.spec.model) {
            (Some(from), _) => Some(&from.path),
            (None, Some(ModelSpec::Pretrained(from))) => Some(&from.path),
            (None, _) => None,
        }
    }

    /// Returns the file of the job's tokenizer; `None` if the job trains a tokenizer.
    pub fn tokenizer_file(&self) -> Option<PathBuf> {
        match &self.data.tokenizer {
            TokenizerSpec::File(file) => Some(self.workspace.join(self.local_path(&file.path))),
            TokenizerSpec::Train(_) => None,
        }
    }

    /// Returns the contents of `generation_config.json` in the model directory from which the job started. Returns
    /// `None` if the file does not exist, or if the model was deleted.
    ///
    /// # Errors
    /// Returns an error if the file, or the record of the model directory, can't be read.
    pub fn generation_config(&self) -> Result<Option<Vec<u8>>, StageError> {
        let Some(folder) = self.remaining_initial_model()? else { return Ok(None) };
        let path = self.workspace.join(folder).join(GENERATION_CONFIG_FILE);
        read_if_exists(&path).map_err(|error| StageError::storage("read", &path, error))
    }

    /// Whether training ends early because the held-out loss has stopped improving.
    pub fn has_stopped_improving(&self, state: &TrainerState) -> bool {
        let patience = self.data.evaluation.as_ref().and_then(|evaluation| evaluation.patience);
        let since = state.best_evaluation.map_or(0, |best| best.evaluations_since);
        patience.is_some_and(|patience| since >= patience)
    }

    /// Whether the job keeps the checkpoint with the lowest held-out loss.
    pub fn keeps_best(&self) -> bool {
        self.data.evaluation.as_ref().is_some_and(|evaluation| evaluation.keep_best)
    }

    /// Returns the number of steps between two evaluations; 0 if the job holds out no sequences.
    pub fn evaluation_interval(&self) -> u64 {
        self.data.evaluation.as_ref().map_or(0, |e| u64::from(e.every_steps))
    }

    /// Returns the job's number of steps. An epoch has `training_sequences` sequences. A streamed job specifies its
    /// length in steps, and its `training_sequences` is `None`.
    pub fn steps(&self, training_sequences: Option<u64>) -> u64 {
        match self.training.length() {
            Some(TrainingLength::Steps(steps)) => steps,
            Some(TrainingLength::Epochs(epochs)) => (u64::from(epochs) * training_sequences.unwrap_or(0))
                .div_ceil(u64::from(self.training.global_batch_size)),
            None => 0, // validation refuses such a job
        }
    }

    /// Returns the number of rows of a microbatch.
    pub fn microbatch_size(&self) -> usize {
        self.training.microbatch_size() as usize
    }
}

/// Checks a job.
///
/// # Errors
/// Returns an error of the kind `InvalidConfig` that lists all problems of the job.
pub fn check_job(job: &PipelineJob) -> Result<(), StageError> {
    let problems: Vec<String> = job.validate().iter().map(ToString::to_string).collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(StageError::invalid(problems.join("; "))),
    }
}

/// Reads the configuration of a pretrained model.
fn pretrained_config(workspace: &Path, path: &Path) -> Result<SourceConfig, StageError> {
    let invalid = |e: &dyn std::fmt::Display| StageError::invalid(format!("spec.model.pretrained.path: {e}"));
    let path = find_model(workspace, path).map_err(|e| invalid(&e))?;
    SourceConfig::read(&workspace.join(&path)).map_err(|e| invalid(&e))
}
