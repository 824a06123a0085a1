//! The job as the trainer's rooms want it. Fields are taken apart by name, so that a new one has to be placed here.

use std::path::{Path, PathBuf};

use stagecoach_api::PipelineJob;
use stagecoach_api::job::{
    AdamWSpec, BuiltIn, DataSpec, Device, EvaluationSpec, LearningRateSchedule, LlamaSpec, ModelSpec, OptimizerSpec,
    Precision, PretrainedSpec, TOKEN_CACHE, TokenizerSpec, TrainingLength, TrainingSpec, Transport,
};
use stagecoach_data::{DataConfig, TokenizerSource};

use super::Progress;
use crate::fatal::Fatal;
use crate::links;
use crate::model::{Architecture, LlamaConfig};
use crate::optimize::{Decay, Hyper, LearningRate};

/// A job that this trainer can run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// As it was read.
    pub job: PipelineJob,
    /// The volume.
    pub workspace: PathBuf,
    /// The model; its words are the tokenizer's where `vocab_size` is none.
    pub model: LlamaConfig,
    /// Words of the model, if the job or the directory says how many.
    pub vocab_size: Option<usize>,
    /// Where its weights come from before the first step, below the volume's root; fresh ones if none.
    pub initial: Option<PathBuf>,
    /// The corpus.
    pub data: DataSpec,
    /// Batch, optimizer and learning rate.
    pub training: TrainingSpec,
}

impl Settings {
    /// Checks that this trainer has what the job asks for.
    ///
    /// # Errors
    /// The first thing that the job gets wrong, or that this version can't do.
    pub fn new(job: PipelineJob, workspace: &Path) -> Result<Settings, Fatal> {
        let problems: Vec<String> = job.validate().iter().map(ToString::to_string).collect();
        if !problems.is_empty() {
            return Err(Fatal::invalid(problems.join("; ")));
        }
        let Some(BuiltIn { model, data, training }) = job.spec.built_in() else {
            return Err(Fatal::invalid(
                "spec.trainer.type is Custom: this is the built-in trainer, run your own command",
            ));
        };
        let from = job.spec.checkpoint.init_from.as_ref().map(|from| PathBuf::from(&from.path));
        let (config, vocab_size, initial) = match model {
            ModelSpec::Llama(llama) => (llama_config(llama), llama.vocab_size.map(|size| size as usize), from),
            ModelSpec::Pretrained(_) if from.is_some() => {
                return Err(Fatal::invalid(
                    "spec.checkpoint.initFrom: a model of type Pretrained brings its weights along, set one of both",
                ));
            }
            ModelSpec::Pretrained(pretrained) => pretrained_config(workspace, pretrained)?,
        };
        if data.sequence_length as usize > config.max_position_embeddings {
            return Err(Fatal::invalid(format!(
                "spec.data.sequenceLength is {}, and the model is made for {} at most",
                data.sequence_length, config.max_position_embeddings
            )));
        }
        if training.precision != Precision::Float32 {
            return Err(Fatal::invalid("spec.training.precision: this version computes in Float32 only"));
        }
        if job.spec.pipeline.transport == Transport::Nccl {
            return Err(Fatal::invalid("spec.pipeline.transport: this version has Tcp, Shm and Auto, not Nccl"));
        }
        let (data, training) = (data.clone(), training.clone());
        Ok(Settings { workspace: workspace.to_owned(), model: config, vocab_size, initial, data, training, job })
    }

    /// The job's own folder.
    pub fn folder(&self) -> PathBuf {
        self.workspace.join(self.job.folder())
    }

    /// Configuration of the data pipeline.
    pub fn data_config(&self) -> DataConfig {
        let DataSpec { paths, text_field, sequence_length, packing, evaluation, tokenizer } = self.data.clone();
        DataConfig {
            volume_root: self.workspace.clone(),
            cache_root: self.workspace.join(TOKEN_CACHE),
            paths,
            text_field,
            sequence_length: sequence_length as usize,
            packing,
            evaluation_fraction: evaluation.map_or(0.0, |EvaluationSpec { fraction, .. }| fraction),
            tokenizer: match tokenizer {
                TokenizerSpec::Train(train) => TokenizerSource::Train { vocab_size: train.vocab_size as usize },
                TokenizerSpec::File(file) => TokenizerSource::File { path: file.path.into() },
            },
        }
    }

    /// Steps between two evaluations; 0 if nothing is held out.
    pub fn evaluate_every(&self) -> u64 {
        self.data.evaluation.as_ref().map_or(0, |e| u64::from(e.every_steps))
    }

    /// Steps in all, for so many training sequences an epoch.
    pub fn steps(&self, training_sequences: u64) -> u64 {
        match self.training.length() {
            Some(TrainingLength::Steps(steps)) => steps,
            Some(TrainingLength::Epochs(epochs)) => {
                (u64::from(epochs) * training_sequences).div_ceil(u64::from(self.training.global_batch_size))
            }
            None => 0, // refused by validation
        }
    }

    /// Rows of a microbatch.
    pub fn rows(&self) -> usize {
        self.training.microbatch_size() as usize
    }

    /// The model over `vocabulary` words.
    pub fn architecture(&self, vocabulary: usize, device: tch::Device) -> Box<dyn Architecture> {
        Box::new(crate::model::Llama::new(LlamaConfig { vocab_size: vocabulary, ..self.model.clone() }, device))
    }

    /// The model's words: `llama.vocabSize`, or the tokenizer's.
    ///
    /// # Errors
    /// If the model has fewer words than the tokenizer.
    pub fn vocabulary(&self, tokenizer: usize) -> Result<usize, Fatal> {
        match (self.vocab_size, &self.job.spec.model) {
            (Some(size), Some(ModelSpec::Pretrained(from))) if size < tokenizer => Err(Fatal::invalid(format!(
                "the model in {} has {size} words and the tokenizer {tokenizer}: set spec.data.tokenizer to the model's own",
                from.path
            ))),
            (Some(size), _) if size < tokenizer => Err(Fatal::invalid(format!(
                "spec.model.llama.vocabSize is {size}, the tokenizer has {tokenizer} words: raise it or leave it out"
            ))),
            (size, _) => Ok(size.unwrap_or(tokenizer)),
        }
    }

    /// AdamW's numbers.
    pub fn hyper(&self) -> Hyper {
        let OptimizerSpec::AdamW(AdamWSpec { beta1, beta2, epsilon, weight_decay, decay_norms_and_embeddings }) =
            self.training.optimizer.clone();
        Hyper { beta1, beta2, epsilon, weight_decay, decay_all: decay_norms_and_embeddings }
    }

    /// The rate of every step, given where its decay ends.
    pub fn learning_rate(&self, decay_steps: u64) -> LearningRate {
        let rate = &self.training.learning_rate;
        LearningRate {
            peak: rate.peak,
            floor: rate.floor,
            warmup_steps: rate.warmup_steps,
            warmup_start: rate.warmup_start,
            decay_steps,
            decay: match rate.schedule {
                LearningRateSchedule::Cosine => Decay::Cosine,
                LearningRateSchedule::Linear => Decay::Linear,
                LearningRateSchedule::Constant => Decay::Constant,
                LearningRateSchedule::Wsd => Decay::Wsd { fraction: rate.decay_fraction },
            },
        }
    }

    /// [`Progress::fix_decay`], as this job says.
    ///
    /// # Errors
    /// If the learning rate can't go on as it says.
    pub fn fix_decay(&self, progress: &mut Progress, steps: u64) -> Result<Option<String>, Fatal> {
        let asked = self.training.learning_rate.decay_steps;
        progress.fix_decay(steps, asked, self.learning_rate(steps)).map_err(Fatal::invalid)
    }

    /// How boundary tensors travel.
    pub fn transport(&self) -> links::Transport {
        match self.job.spec.pipeline.transport {
            Transport::Tcp => links::Transport::Tcp,
            Transport::Shm => links::Transport::Shm,
            Transport::Auto | Transport::Nccl => links::Transport::Auto,
        }
    }

    /// Where this rank computes.
    ///
    /// # Errors
    /// If a GPU is asked for and none is usable.
    pub fn device(&self, rank: usize) -> Result<tch::Device, Fatal> {
        let gpus = match self.training.device {
            Device::Cpu => 0,
            Device::Auto | Device::Cuda => crate::sys::cuda_devices(),
        };
        match (self.training.device, gpus) {
            (Device::Cuda, 0) => Err(Fatal::new(
                stagecoach_api::contract::FailureKind::Error,
                format!(
                    "spec.training.device is Cuda and stage {rank} finds no usable GPU: give it one, or set device to Auto"
                ),
            )),
            (_, 0) => Ok(tch::Device::Cpu),
            (_, gpus) => Ok(tch::Device::Cuda(rank % gpus)),
        }
    }
}

fn llama_config(l: &LlamaSpec) -> LlamaConfig {
    LlamaConfig {
        hidden_size: l.hidden_size as usize,
        num_hidden_layers: l.num_hidden_layers as usize,
        num_attention_heads: l.num_attention_heads as usize,
        num_key_value_heads: l.key_value_heads() as usize,
        head_dim: l.head_dim() as usize,
        intermediate_size: l.intermediate_size as usize,
        vocab_size: l.vocab_size.unwrap_or_default() as usize,
        max_position_embeddings: l.max_position_embeddings as usize,
        rope_theta: l.rope_theta,
        rms_norm_eps: l.rms_norm_eps,
        tie_word_embeddings: l.tie_word_embeddings,
        initializer_range: l.initializer_range,
    }
}

/// What the directory says.
fn pretrained_config(
    workspace: &Path,
    from: &PretrainedSpec,
) -> Result<(LlamaConfig, Option<usize>, Option<PathBuf>), Fatal> {
    let wrong = |e: &dyn std::fmt::Display| Fatal::invalid(format!("spec.model.pretrained.path: {e}"));
    let path = crate::state::find_model(workspace, Path::new(&from.path)).map_err(|e| wrong(&e))?;
    let config = LlamaConfig::from_hugging_face(&workspace.join(&path)).map_err(|e| wrong(&e))?;
    Ok((config.clone(), Some(config.vocab_size), Some(from.path.clone().into())))
}

/// The vocabulary a job will have, before its data has been read: for planning without a corpus.
pub fn tokenizer_vocabulary(data: &DataSpec) -> Option<usize> {
    match &data.tokenizer {
        TokenizerSpec::Train(train) => Some(train.vocab_size as usize),
        TokenizerSpec::File(_) => None,
    }
}
