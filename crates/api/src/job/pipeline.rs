//! `spec.pipeline`: how layers and microbatches are laid out over the stages. None of it changes the numbers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Quantity, ScheduleSpec};

/// Schedule, partition and transport.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PipelineSpec {
    /// The order of forward and backward passes.
    #[serde(default)]
    pub schedule: ScheduleSpec,
    /// Which layers each chunk holds.
    #[serde(default)]
    pub partition: PartitionSpec,
    /// Chunks a stage holds. Without it 2 for a schedule of two chunks, which has no other number, else 1. A schedule that
    /// is not for several chunks has 1, a Csv as many as its table has, and Auto chooses how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64), extend("x-expected" = "a stage has 1 to 64 chunks"))]
    pub virtual_stages: Option<u32>,
    /// Which activations are computed again in the backward pass instead of kept. With the schedule Auto and a `memoryLimit`,
    /// more of them where what fits by that is fastest.
    #[serde(default)]
    pub recompute: Recompute,
    /// Memory that one stage may use, as a Kubernetes quantity; unlimited if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<Quantity>,
    /// How neighbours pass activations and gradients.
    #[serde(default)]
    pub transport: Transport,
    /// Whether what neighbours pass over the network is encrypted. Stages authenticate each other in any case, and what stage 0
    /// and the others tell each other is always encrypted. Shared memory does not leave the host and is not.
    #[serde(default)]
    pub encryption: Encryption,
    /// What a later version may add.
    #[cfg(feature = "next-version")]
    #[serde(default = "super::default_number::<7>")]
    pub of_next_version: u32,
}

impl PipelineSpec {
    /// Chunks a stage holds.
    pub fn virtual_stages(&self) -> u32 {
        self.virtual_stages.or(self.schedule.fixed_chunks().map(|fixed| fixed.chunks)).unwrap_or(1)
    }

    /// The layers of each chunk, if they are given and there are so many of them. A list that no longer fits, because the
    /// job was scaled, gives way to Auto; whoever plans says so.
    pub fn explicit_layers(&self, chunks: usize) -> Option<&[u32]> {
        self.partition
            .layers
            .as_deref()
            .filter(|layers| self.partition.strategy == PartitionStrategy::Explicit && layers.len() == chunks)
    }

    /// Says that the given partition does not fit so many chunks, and is computed instead; none if it does, or if none is given.
    pub fn unfitting_partition(&self, chunks: usize) -> Option<String> {
        let given = self.partition.layers.as_ref().filter(|_| self.explicit_layers(chunks).is_none())?;
        Some(format!(
            "spec.pipeline.partition.layers has {} entries and the pipeline {chunks} chunks: the partition is computed",
            given.len()
        ))
    }
}

/// A number of chunks that is left out equals the one that the schedule has without it.
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

/// Which layers each chunk holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PartitionSpec {
    /// Computed, or given as `layers`.
    #[serde(default)]
    pub strategy: PartitionStrategy,
    /// Layers of each chunk in the model's order, for Explicit; 0 is allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384), extend("x-expected" = "list the layers of each chunk"))]
    pub layers: Option<Vec<u32>>,
}

string_enum! {
    /// How the partition is found.
    #[derive(Default)]
    pub enum PartitionStrategy {
        /// The split whose slowest stage is fastest.
        #[default]
        Auto = "Auto",
        /// The list in `layers`.
        Explicit = "Explicit",
    }
}

string_enum! {
    /// Which activations are computed again.
    #[derive(Default)]
    pub enum Recompute {
        /// All are kept.
        #[default]
        None = "None",
        /// All but the inputs of attention and SwiGLU are kept: the largest, at the price of one product each.
        Selective = "Selective",
        /// Only each layer's input is kept.
        Full = "Full",
    }
}

string_enum! {
    /// Whether tensors are encrypted on their way over the network.
    #[derive(Default)]
    pub enum Encryption {
        /// They are not: the network is trusted, or encrypts by itself.
        #[default]
        None = "None",
        /// They are, by Noise (ChaCha20-Poly1305).
        Required = "Required",
    }
}

string_enum! {
    /// How neighbours pass tensors.
    #[derive(Default)]
    pub enum Transport {
        /// NCCL between GPUs where nothing has to be encrypted, shared memory on one host, else TCP.
        #[default]
        Auto = "Auto",
        /// TCP.
        Tcp = "Tcp",
        /// Shared memory; all stages on one host.
        Shm = "Shm",
        /// NCCL, which does not encrypt; all stages on GPUs.
        Nccl = "Nccl",
    }
}
