//! `spec.training`: the batch, the optimizer, the learning rate, the precision, the seed and the device.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::default_number;
use crate::string_enum::Payload;

/// The length of training, the batch, the optimizer and the learning rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrainingSpec {
    /// The number of optimizer steps. Mutually exclusive with `epochs`. If a job that has begun gets more steps,
    /// `learningRate.decaySteps` determines the learning rate of the added steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub steps: Option<u64>,
    /// The number of passes over the training part of the corpus. Mutually exclusive with `steps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub epochs: Option<u32>,
    /// The number of sequences in a step, over all microbatches.
    #[schemars(range(min = 1))]
    pub global_batch_size: u32,
    /// The number of microbatches into which the batch of a step is divided. The stages of the pipeline compute
    /// different microbatches at the same time. The number must divide `globalBatchSize`.
    #[schemars(range(min = 1))]
    pub microbatches: u32,
    /// The number of gradient blocks. A gradient block is a group of consecutive microbatches. The trainer adds
    /// gradients within a block in the order of the microbatches, and then over the blocks as a binary tree. The number
    /// must be a power of two that divides `microbatches`. Defaults to the smallest power of two that is at least the
    /// `dataParallel` of the first attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = 1024),
        extend("x-expected" = "the trainer adds blocks as a binary tree, so give a power of two, 1024 at most")
    )]
    pub gradient_blocks: Option<u32>,
    /// The seed of the initial weights, the order of the data, and the choice of held-out documents.
    #[serde(default = "seed")]
    pub seed: u64,
    /// The number format of weights and activations. Gradients accumulate in 32 bits in any case.
    #[serde(default)]
    pub precision: Precision,
    /// The maximum norm of the whole gradient. The trainer scales down a gradient with a larger norm. If unset, the
    /// trainer does not clip gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "minimum" = 0, "exclusiveMinimum" = true,
            "x-expected" = "give a norm above 0, or remove it to clip nothing"
        )
    )]
    pub gradient_clip_norm: Option<f64>,
    /// The device on which stages compute.
    #[serde(default)]
    pub device: Device,
    /// The number of threads that a stage on the CPU uses for an operation. The number affects the last bits of the
    /// results.
    #[serde(default = "default_number::<1>")]
    #[schemars(range(min = 1))]
    pub threads: u32,
    /// The CPU instructions that the kernels use.
    #[serde(default)]
    pub kernels: Kernels,
    /// The optimizer.
    #[serde(default)]
    pub optimizer: OptimizerSpec,
    /// The learning rate of each step.
    pub learning_rate: LearningRateSpec,
    /// The audits of the computations. In an audit, a stage recomputes a result of another stage and compares the two
    /// results. If unset, the job has no audits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<AuditSpec>,
    /// Low-rank adapters (LoRA; Hu et al., 2021). Training updates only the adapters, and the initial weights stay
    /// unchanged. If unset, training updates the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSpec>,
    /// The weights that training does not update, as patterns of their names, such as `model.embed_tokens.*`. `*`
    /// matches any number of characters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub freeze: Vec<String>,
}

/// Low-rank adapters. A linear layer with the weight W gets two matrices A and B, and computes W x + (alpha / rank) B A
/// x.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoraSpec {
    /// The number of rows of A and of columns of B.
    #[schemars(range(min = 1, max = 4096))]
    pub rank: u32,
    /// The scaling factor of the adapters. The trainer divides it by the rank, or by the square root of the rank if
    /// `useRslora` is true.
    #[schemars(extend("minimum" = 0, "exclusiveMinimum" = true))]
    pub alpha: f64,
    /// The layers with adapters, as the ends of their names, such as `q_proj`. Defaults to every linear layer except
    /// the head.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub targets: Vec<String>,
    /// Whether the trainer divides `alpha` by the square root of the rank instead of the rank (rank-stabilized LoRA;
    /// Kalajdzievski, 2023).
    #[serde(default)]
    pub use_rslora: bool,
}

impl LoraSpec {
    /// Returns the factor by which the trainer multiplies the product of B and A.
    pub fn scale(&self) -> f64 {
        let rank = f64::from(self.rank);
        self.alpha / if self.use_rslora { rank.sqrt() } else { rank }
    }
}

/// Audits. A stage recomputes a microbatch of the preceding stage from the same weights and inputs. On equal hardware
/// every bit is the same, so a difference is a fault of the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuditSpec {
    /// The number of steps between two audits. An audit recomputes one microbatch of one chunk.
    #[schemars(range(min = 1))]
    pub every_steps: u32,
    /// The action after an audit has found a difference.
    #[serde(default)]
    pub on_difference: OnDifference,
}

string_enum! {
    /// The action after a difference that an audit has found.
    #[derive(Default)]
    pub enum OnDifference {
        /// The job reports the difference, and training continues.
        #[default]
        Report = "Report",
        /// The attempt ends, and the next attempt begins at the newest checkpoint. In a cluster, the next attempt
        /// avoids the nodes of the suspected stages.
        Restart = "Restart",
    }
}

/// The length of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainingLength {
    /// A number of optimizer steps.
    Steps(u64),
    /// A number of passes over the training part of the corpus.
    Epochs(u32),
}

impl TrainingSpec {
    /// Returns the steps or the epochs. `None` unless the job gives exactly one of them, which `validate` checks.
    pub fn length(&self) -> Option<TrainingLength> {
        match (self.steps, self.epochs) {
            (Some(steps), None) => Some(TrainingLength::Steps(steps)),
            (None, Some(epochs)) => Some(TrainingLength::Epochs(epochs)),
            _ => None,
        }
    }

    /// Returns the number of gradient blocks of a job whose first attempt has `data_parallel` replicas.
    pub fn gradient_blocks(&self, data_parallel: u32) -> u32 {
        self.gradient_blocks.unwrap_or_else(|| data_parallel.next_power_of_two())
    }

    /// Whether training leaves some weights of the model unchanged.
    pub fn freezes_weights(&self) -> bool {
        self.lora.is_some() || !self.freeze.is_empty()
    }

    /// Returns the number of sequences of one microbatch. 0 if there are no microbatches to divide by.
    pub fn microbatch_size(&self) -> u32 {
        self.global_batch_size.checked_div(self.microbatches).unwrap_or(0)
    }
}

string_enum! {
    /// The number format of weights and activations. Gradients accumulate in 32 bits in any case.
    #[derive(Default)]
    pub enum Precision {
        /// 32-bit floats.
        #[default]
        Float32 = "Float32",
        /// 16-bit brain floats.
        BFloat16 = "BFloat16",
    }
}

string_enum! {
    /// The device on which stages compute.
    #[derive(Default)]
    pub enum Device {
        /// A GPU if the stage has one, otherwise the CPU.
        #[default]
        Auto = "Auto",
        /// The CPU.
        Cpu = "Cpu",
        /// A GPU. The job fails if a stage has none.
        Cuda = "Cuda",
    }
}

string_enum! {
    /// The CPU instructions that the kernels use.
    #[derive(Default)]
    pub enum Kernels {
        /// The fastest instructions of the processor. The results of different types of processors differ in their last
        /// bits.
        #[default]
        Fastest = "Fastest",
        /// AVX2 on every x86-64 processor. It is slower, but all these processors compute the same bits.
        Portable = "Portable",
    }
}

union! {
    /// The optimizer.
    pub enum OptimizerSpec (OptimizerTag, OptimizerFields) {
        /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
        AdamW = "AdamW" { adam_w as "adamW": AdamWSpec }
    }
}

impl Default for OptimizerSpec {
    fn default() -> Self {
        Self::AdamW(AdamWSpec::default())
    }
}

/// The constants of AdamW. The defaults are torch's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AdamWSpec {
    /// The decay rate of the first moment.
    #[schemars(extend("minimum" = 0, "maximum" = 1, "exclusiveMaximum" = true))]
    pub beta1: f64,
    /// The decay rate of the second moment.
    #[schemars(extend("minimum" = 0, "maximum" = 1, "exclusiveMaximum" = true))]
    pub beta2: f64,
    /// The number that AdamW adds to the square root of the second moment.
    #[schemars(extend("minimum" = 0, "exclusiveMinimum" = true))]
    pub epsilon: f64,
    /// The weight decay. Each step reduces a weight by the product of this number, the learning rate and the weight.
    #[schemars(extend("minimum" = 0))]
    pub weight_decay: f64,
    /// Whether weight decay also applies to norms, biases and embeddings.
    pub decay_norms_and_embeddings: bool,
}

impl Default for AdamWSpec {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01, decay_norms_and_embeddings: false }
    }
}

impl Payload for AdamWSpec {
    fn when_absent() -> Option<Self> {
        Some(Self::default())
    }
}

/// The learning rate: a linear warm-up to the peak, then a decay to the floor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LearningRateSpec {
    /// The highest learning rate.
    #[schemars(extend("minimum" = 0, "exclusiveMinimum" = true))]
    pub peak: f64,
    /// The number of steps of the warm-up.
    #[serde(default)]
    pub warmup_steps: u64,
    /// The learning rate at the start of the warm-up, as a fraction of the peak.
    #[serde(default)]
    #[schemars(extend("x-expected" = "it is a fraction of the peak, 0 to 1", "minimum" = 0, "maximum" = 1))]
    pub warmup_start: f64,
    /// The step at which the learning rate reaches the floor, counted from the start of the warm-up. Defaults to the
    /// number of steps at the first attempt. The value can't change once training has begun, except together with more
    /// steps. It then applies to the added steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub decay_steps: Option<u64>,
    /// The shape of the learning rate after the warm-up.
    #[serde(default)]
    pub schedule: LearningRateSchedule,
    /// The fraction of `decaySteps` over which the learning rate falls, at the end of these steps. Only the schedule
    /// WSD uses it.
    #[serde(default = "decay_fraction")]
    #[schemars(
        extend(
            "minimum" = 0, "exclusiveMinimum" = true, "maximum" = 1,
            "x-expected" = "the decay's share of decaySteps lies above 0 and is at most 1"
        )
    )]
    pub decay_fraction: f64,
    /// The lowest learning rate after the warm-up.
    #[serde(default)]
    #[schemars(extend("minimum" = 0))]
    pub floor: f64,
}

string_enum! {
    /// The shape of the learning rate after the warm-up.
    #[derive(Default)]
    pub enum LearningRateSchedule {
        /// Half a cosine from the peak to the floor.
        #[default]
        Cosine = "Cosine",
        /// A straight line from the peak to the floor.
        Linear = "Linear",
        /// The peak at every step after the warm-up.
        Constant = "Constant",
        /// Warm-up, stable, decay: the learning rate stays at the peak, and falls in a straight line to the floor over
        /// the last `decayFraction` of `decaySteps`.
        Wsd = "WSD",
    }
}

fn seed() -> u64 {
    42
}

fn decay_fraction() -> f64 {
    0.2
}
