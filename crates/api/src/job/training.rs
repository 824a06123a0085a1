//! `spec.training`: what decides the numbers (batch, optimizer, learning rate, precision, seed), and on what device.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::default_number;
use crate::string_enum::Payload;

/// Length, batch, optimizer and learning rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrainingSpec {
    /// Optimizer steps. Either this or `epochs`. If a job that has begun gets more, `learningRate.decaySteps` says what the
    /// learning rate of those added is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub steps: Option<u64>,
    /// Passes over the training part of the corpus. Either this or `steps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub epochs: Option<u32>,
    /// Sequences of one step, over all microbatches.
    #[schemars(range(min = 1))]
    pub global_batch_size: u32,
    /// Parts into which a step's batch is cut to fill the pipeline; a divisor of `globalBatchSize`.
    #[schemars(range(min = 1))]
    pub microbatches: u32,
    /// Blocks of consecutive microbatches: gradients are added within a block in the order of the microbatches, then the blocks
    /// as a binary tree. A power of two that divides `microbatches`; if absent, the smallest one that is at least the first
    /// attempt's `dataParallel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = 1024),
        extend("x-expected" = "blocks are added as a binary tree, so give a power of two, 1024 at most")
    )]
    pub gradient_blocks: Option<u32>,
    /// Seed of the initial weights and of the data's order.
    #[serde(default = "seed")]
    pub seed: u64,
    /// Number format of weights and activations.
    #[serde(default)]
    pub precision: Precision,
    /// The largest norm of the whole gradient; larger ones are scaled down. Not clipped if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "minimum" = 0, "exclusiveMinimum" = true,
            "x-expected" = "give a norm above 0, or remove it to clip nothing"
        )
    )]
    pub gradient_clip_norm: Option<f64>,
    /// Where stages compute.
    #[serde(default)]
    pub device: Device,
    /// Threads within one operation of a stage on CPU. The bits of a result depend on it.
    #[serde(default = "default_number::<1>")]
    #[schemars(range(min = 1))]
    pub threads: u32,
    /// Which instructions the CPU computes with.
    #[serde(default)]
    pub kernels: Kernels,
    /// The update rule.
    #[serde(default)]
    pub optimizer: OptimizerSpec,
    /// The learning rate over the steps.
    pub learning_rate: LearningRateSpec,
    /// Has stages compute again what others have computed, and compares. Absent: nothing is audited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<AuditSpec>,
}

/// A stage computes a microbatch of the stage before it again, from the same weights and inputs: on equal hardware every bit is the
/// same, and if one is not, hardware computes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuditSpec {
    /// One microbatch of one chunk is computed again every so many steps.
    #[schemars(range(min = 1))]
    pub every_steps: u32,
    /// What follows a difference.
    #[serde(default)]
    pub on_difference: OnDifference,
}

string_enum! {
    /// What follows a difference that an audit has found.
    #[derive(Default)]
    pub enum OnDifference {
        /// It is reported, and training continues.
        #[default]
        Report = "Report",
        /// The attempt ends, and the next one begins at the newest checkpoint; in a cluster without the nodes of the stages that are
        /// suspected.
        Restart = "Restart",
    }
}

/// How long to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainingLength {
    /// Optimizer steps.
    Steps(u64),
    /// Passes over the training part of the corpus.
    Epochs(u32),
}

impl TrainingSpec {
    /// Steps or epochs; none unless exactly one is given (`validate` refuses that).
    pub fn length(&self) -> Option<TrainingLength> {
        match (self.steps, self.epochs) {
            (Some(steps), None) => Some(TrainingLength::Steps(steps)),
            (None, Some(epochs)) => Some(TrainingLength::Epochs(epochs)),
            _ => None,
        }
    }

    /// The gradient blocks of a job that starts with so many replicas.
    pub fn gradient_blocks(&self, data_parallel: u32) -> u32 {
        self.gradient_blocks.unwrap_or_else(|| data_parallel.next_power_of_two())
    }

    /// Sequences of one microbatch; 0 if there are no microbatches to divide by.
    pub fn microbatch_size(&self) -> u32 {
        self.global_batch_size.checked_div(self.microbatches).unwrap_or(0)
    }
}

string_enum! {
    /// Number format of weights and activations; gradients accumulate in 32 bits either way.
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
    /// Where stages compute.
    #[derive(Default)]
    pub enum Device {
        /// A GPU if the stage has one, else the CPU.
        #[default]
        Auto = "Auto",
        /// The CPU.
        Cpu = "Cpu",
        /// A GPU; without one the job fails.
        Cuda = "Cuda",
    }
}

string_enum! {
    /// Which instructions the CPU computes with.
    #[derive(Default)]
    pub enum Kernels {
        /// The best that the processor has: another kind of processor has other bits.
        #[default]
        Fastest = "Fastest",
        /// AVX2 on every x86-64 processor, so that all have the same bits; slower.
        Portable = "Portable",
    }
}

union! {
    /// The update rule.
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

/// AdamW's constants; the defaults are torch's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AdamWSpec {
    /// Decay of the first moment.
    #[schemars(extend("minimum" = 0, "maximum" = 1, "exclusiveMaximum" = true))]
    pub beta1: f64,
    /// Decay of the second moment.
    #[schemars(extend("minimum" = 0, "maximum" = 1, "exclusiveMaximum" = true))]
    pub beta2: f64,
    /// Added to the root of the second moment.
    #[schemars(extend("minimum" = 0, "exclusiveMinimum" = true))]
    pub epsilon: f64,
    /// Share of a weight taken off at each step, times the learning rate.
    #[schemars(extend("minimum" = 0))]
    pub weight_decay: f64,
    /// Whether norms, biases and embeddings decay too.
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

/// The learning rate: a linear warm-up to the peak, then a fall to the floor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LearningRateSpec {
    /// The highest rate.
    #[schemars(extend("minimum" = 0, "exclusiveMinimum" = true))]
    pub peak: f64,
    /// Steps of the warm-up.
    #[serde(default)]
    pub warmup_steps: u64,
    /// Where the warm-up starts, as a fraction of the peak.
    #[serde(default)]
    #[schemars(extend("x-expected" = "it is a fraction of the peak, 0 to 1", "minimum" = 0, "maximum" = 1))]
    pub warmup_start: f64,
    /// The step at which the floor is reached, warm-up included; the number of steps at the first attempt if absent. It stays
    /// once training began, except that a job which gets more steps may have another one for those added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub decay_steps: Option<u64>,
    /// The shape after the warm-up.
    #[serde(default)]
    pub schedule: LearningRateSchedule,
    /// WSD only: the last part of `decaySteps` in which the rate falls, as a fraction.
    #[serde(default = "decay_fraction")]
    #[schemars(
        extend(
            "minimum" = 0, "exclusiveMinimum" = true, "maximum" = 1,
            "x-expected" = "the decay's share of decaySteps lies above 0 and is at most 1"
        )
    )]
    pub decay_fraction: f64,
    /// The lowest rate after the warm-up.
    #[serde(default)]
    #[schemars(extend("minimum" = 0))]
    pub floor: f64,
}

string_enum! {
    /// The learning rate's shape after the warm-up.
    #[derive(Default)]
    pub enum LearningRateSchedule {
        /// Half a cosine from the peak to the floor.
        #[default]
        Cosine = "Cosine",
        /// A straight line from the peak to the floor.
        Linear = "Linear",
        /// The peak throughout.
        Constant = "Constant",
        /// Warm-up, stable, decay: the peak, then a straight line to the floor over the last `decayFraction`.
        Wsd = "WSD",
    }
}

fn seed() -> u64 {
    42
}

fn decay_fraction() -> f64 {
    0.2
}
