//! `spec.pipeline`: the layout of layers and microbatches over the stages. The layout does not change the results.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Quantity, ScheduleSpec};

/// The schedule, the partition and the transport of the pipeline.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PipelineSpec {
    /// The order of forward and backward passes.
    #[serde(default)]
    pub schedule: ScheduleSpec,
    /// The layers of each chunk. A chunk consists of contiguous layers on one stage.
    #[serde(default)]
    pub partition: PartitionSpec,
    /// The number of chunks of each stage. Defaults to 2 for a schedule that always has two chunks, and to 1 otherwise.
    /// A schedule that supports only one chunk per stage requires 1. Csv requires the number of chunks in its table.
    /// Auto chooses the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64), extend("x-expected" = "a stage has 1 to 64 chunks"))]
    pub virtual_stages: Option<u32>,
    /// The activations that a stage recomputes in the backward pass instead of keeping them. If the schedule is Auto
    /// and `memoryLimit` is set, the planner may recompute more activations.
    #[serde(default)]
    pub recompute: Recompute,
    /// The maximum memory that the planner allows each stage to use, as a Kubernetes quantity. If unset, the memory is
    /// not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<Quantity>,
    /// The transport of activations and gradients between neighbouring stages.
    #[serde(default)]
    pub transport: Transport,
    /// Whether tensors are encrypted on the network. Stages always authenticate each other, and the control connections
    /// to the leader are always encrypted. Shared memory does not leave the host and is not encrypted.
    #[serde(default)]
    pub encryption: Encryption,
    /// A value that a later version may add.
    #[cfg(feature = "next-version")]
    #[serde(default = "super::default_number::<7>")]
    pub of_next_version: u32,
}

impl PipelineSpec {
    /// Returns the number of chunks of each stage, or the schedule's default if the field is absent.
    pub fn virtual_stages(&self) -> u32 {
        self.virtual_stages.or(self.schedule.fixed_chunks().map(|fixed| fixed.chunks)).unwrap_or(1)
    }

    /// Returns the job's explicit partition, which is the number of layers of each chunk. Returns `None` unless the
    /// strategy is Explicit and the list has `chunks` entries: after a change of the number of stages, the list may not
    /// fit. The planner then uses the strategy Auto and reports that the list does not fit.
    pub fn explicit_layers(&self, chunks: usize) -> Option<&[u32]> {
        self.partition
            .layers
            .as_deref()
            .filter(|layers| self.partition.strategy == PartitionStrategy::Explicit && layers.len() == chunks)
    }

    /// Returns a note for users if the job's partition does not fit `chunks` chunks, so that the planner computes
    /// another one. Returns `None` if the partition fits, or if the job specifies no partition.
    pub fn partition_mismatch(&self, chunks: usize) -> Option<String> {
        let given = self.partition.layers.as_ref().filter(|_| self.explicit_layers(chunks).is_none())?;
        Some(format!(
            "spec.pipeline.partition.layers has {} entries, but the pipeline has {chunks} chunks: the planner computes a partition",
            given.len()
        ))
    }
}

/// Treats an absent `virtualStages` as equal to the default of the schedule.
impl PartialEq for PipelineSpec {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            schedule,
            partition,
            virtual_stages: _,
            recompute,
            memory_limit,
            transport,
            encryption,
            #[cfg(feature = "next-version")]
            of_next_version,
        } = self;
        #[cfg(feature = "next-version")]
        if *of_next_version != other.of_next_version {
            return false;
        }
        (self.virtual_stages(), schedule, partition) == (other.virtual_stages(), &other.schedule, &other.partition)
            && (recompute, memory_limit, transport, encryption)
                == (&other.recompute, &other.memory_limit, &other.transport, &other.encryption)
    }
}

#[allow(clippy::derivable_impls, reason = "the field of the next version has another default")]
impl Default for PipelineSpec {
    fn default() -> Self {
        Self {
            schedule: ScheduleSpec::default(),
            partition: PartitionSpec::default(),
            virtual_stages: None,
            recompute: Recompute::default(),
            memory_limit: None,
            transport: Transport::default(),
            encryption: Encryption::default(),
            #[cfg(feature = "next-version")]
            of_next_version: 7,
        }
    }
}

/// The layers of each chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PartitionSpec {
    /// The strategy that divides the layers into chunks.
    #[serde(default)]
    pub strategy: PartitionStrategy,
    /// The number of layers of each chunk, in the order of the model. A chunk may have 0 layers. The strategy Explicit
    /// requires the field, and the strategy Auto does not allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384), extend("x-expected" = "list the layers of each chunk"))]
    pub layers: Option<Vec<u32>>,
}

string_enum! {
    /// The strategy that divides the layers into chunks.
    #[derive(Default)]
    pub enum PartitionStrategy {
        /// The planner minimises the time of the slowest stage.
        #[default]
        Auto = "Auto",
        /// The job gives the partition in `layers`.
        Explicit = "Explicit",
    }
}

string_enum! {
    /// The activations that a stage recomputes in the backward pass.
    #[derive(Default)]
    pub enum Recompute {
        /// The stage recomputes no activation.
        #[default]
        None = "None",
        /// The stage recomputes the inputs of attention and SwiGLU. They are the largest activations, and each costs
        /// one matrix product.
        Selective = "Selective",
        /// The stage recomputes all activations except the input of each layer.
        Full = "Full",
    }
}

string_enum! {
    /// Whether tensors are encrypted on the network.
    #[derive(Default)]
    pub enum Encryption {
        /// Tensors are not encrypted. This value suits a network that is trusted or that encrypts traffic itself.
        #[default]
        None = "None",
        /// Tensors are encrypted with Noise (ChaCha20-Poly1305).
        Required = "Required",
    }
}

string_enum! {
    /// The transport of tensors between neighbouring stages.
    #[derive(Default)]
    pub enum Transport {
        /// The stages use NCCL between GPUs if tensors are not encrypted. Otherwise, they use shared memory on one host
        /// and TCP between hosts.
        #[default]
        Auto = "Auto",
        /// TCP, also between stages on one host.
        Tcp = "Tcp",
        /// Shared memory. All stages must be on one host.
        Shm = "Shm",
        /// NCCL, which does not encrypt. All stages must have GPUs.
        Nccl = "Nccl",
    }
}
