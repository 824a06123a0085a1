//! The model of a job: its vocabulary, architecture, optimizer and device.

use stagecoach_api::job::{AdamWSpec, Device, Kernels, ModelSpec, OptimizerSpec, TokenizerSpec};
use stagecoach_data::Tokenizer;
use stagecoach_engine::StageError;
use stagecoach_engine::optimize::LearningRate;
use stagecoach_kernels::device::{NoGpu, cuda_devices, gpu_model, gpu_multiprocessors};
use stagecoach_model::{Architecture, fine_tuned};

use super::JobConfig;
use crate::trainer_state::TrainerState;

impl JobConfig {
    /// Returns the model with `vocab_size` rows in embedding and head.
    pub fn architecture(&self, vocab_size: usize, device: tch::Device) -> Box<dyn Architecture> {
        let model = self.model.with_vocab_size(vocab_size).architecture(device);
        fine_tuned(model, self.training.lora.as_ref(), &self.training.freeze)
    }

    /// Returns the vocabulary size that is known before the corpus is read. For a tokenizer that the job trains, this
    /// is the largest possible size. For a tokenizer in a file, this is the model's size if the model specifies one;
    /// otherwise it is the tokenizer's size.
    ///
    /// # Errors
    /// Returns an error if the tokenizer is a file that can't be read.
    pub fn planned_vocab_size(&self) -> Result<usize, StageError> {
        match &self.data.tokenizer {
            TokenizerSpec::Train(train) => Ok(train.vocab_size as usize),
            TokenizerSpec::File(file) => match self.model.vocab_size() {
                Some(size) => Ok(size),
                None => Ok(Tokenizer::load(&self.workspace.join(self.local_path(&file.path)))?.vocab_size()),
            },
        }
    }

    /// Returns the model's vocabulary size: the specified one, or the tokenizer's.
    ///
    /// # Errors
    /// Returns an error if the specified vocabulary is smaller than the tokenizer's.
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
                self.model.spec_field()
            ))),
            (size, _) => Ok(size.unwrap_or(tokenizer)),
        }
    }

    /// Returns the hyperparameters of AdamW.
    pub fn adamw(&self) -> AdamWSpec {
        let OptimizerSpec::AdamW(adamw) = self.training.optimizer;
        adamw
    }

    /// Returns the learning rate of every step, with a decay that ends at step `decay_steps`.
    pub fn learning_rate(&self, decay_steps: u64) -> LearningRate {
        LearningRate { spec: self.training.learning_rate, decay_steps }
    }

    /// Calls [`TrainerState::fix_decay`] with this job's settings.
    ///
    /// # Errors
    /// Returns an error if the learning rate can't continue as the job specifies.
    pub fn fix_decay(&self, progress: &mut TrainerState, steps: u64) -> Result<Option<String>, StageError> {
        let asked = self.training.learning_rate.decay_steps;
        progress.fix_decay(steps, asked, self.learning_rate(steps)).map_err(StageError::invalid)
    }

    /// Returns the device of `rank`. If the device is a GPU, loads the kernels on it, once per process.
    ///
    /// # Errors
    /// Returns an error if the job requires a GPU and none is usable, or if the kernels can't be loaded on a GPU.
    pub fn device(&self, rank: usize) -> Result<tch::Device, StageError> {
        let Some(gpus) = self.usable_gpus() else { return Ok(tch::Device::Cpu) };
        match (self.training.device, gpus) {
            (Device::Cuda, Err(why)) => Err(StageError::invalid(format!(
                "spec.training.device is Cuda and stage {rank} finds no usable GPU ({why}): assign a GPU to the stage, or set spec.training.device to Auto"
            ))),
            (_, Err(why)) => {
                // a machine without a driver needs no warning
                if why != NoGpu::NoDriver {
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

    /// Returns the model and the number of multiprocessors of the GPU of stage 0; `None` if the stage computes on the
    /// CPU.
    pub(crate) fn gpu(&self) -> Option<(String, u32)> {
        self.usable_gpus()?.ok().map(|_| (gpu_model(0), gpu_multiprocessors(0)))
    }

    /// Returns the number of usable GPUs, or the reason that there are none; `None` if the job uses no GPU in any case.
    fn usable_gpus(&self) -> Option<Result<usize, NoGpu>> {
        match self.training.device {
            Device::Cpu => None,
            Device::Auto if self.training.kernels == Kernels::Portable => None,
            Device::Auto | Device::Cuda => Some(cuda_devices()),
        }
    }
}
