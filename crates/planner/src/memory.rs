//! The memory of a stage: the bytes of its process that do not belong to its layers, and all its bytes by purpose.

use stagecoach_api::job::{CheckpointMode, Device, Recompute};
use stagecoach_model::{Architecture, MicrobatchCost, ModelPart, ParameterBytes, ParameterCopies};
use stagecoach_pipeline::{ModelCost, Partition, Placement, RankMemory, ReplicaBlocks, Schedule, StageMemory};
use stagecoach_transport::{LinkId, PeerRing, held_bytes, link_ids};

use super::job_config::JobConfig;

/// The measured resident bytes of a stage that do not depend on its model and data. A process with a minimal model has
/// 145 MiB: one half is pages of the files of libtorch and of this program, and the other half is the data of both,
/// compiled matrix products, stacks, and nine checkpoint buffers of 1 MiB. The remaining 12 MiB are memory that malloc
/// holds between the blocks of a real model; this amount differs by some MiB between runs.
const PROCESS_BYTES: u64 = (157 << 20) + UNOPTIMISED_CODE_BYTES;

/// The measured resident bytes of code that a development build has beyond an optimised build.
const UNOPTIMISED_CODE_BYTES: u64 = if cfg!(debug_assertions) { 25 << 20 } else { 0 };

/// Bytes of a GPU that a stage uses beyond the peak of libtorch's tensors, as measured on an H200: 0.95 and 0.97 GiB
/// with models of 1.2 and 0.2 billion parameters. Half of these bytes are CUDA's context with the loaded kernels. The
/// other half is the workspace of matrix products, and memory that the allocator holds between tensors. Buffers of NCCL
/// are not included.
const GPU_PROCESS_BYTES: u64 = 1 << 30;

/// The largest number of parts into which a job with replicas divides the chunks of a stage.
pub(super) const PARTS_PER_STAGE: usize = 8;

impl JobConfig {
    /// Describes the microbatch for which the planner computes costs.
    pub fn microbatch_cost(&self, recompute: Recompute) -> MicrobatchCost {
        let length = self.data.sequence_length as usize;
        let tokens = self.microbatch_size() * length;
        let precision = self.training.precision;
        MicrobatchCost {
            tokens,
            length,
            precision,
            recompute,
            on_gpu: self.is_on_gpu(),
            copies: self.parameter_copies(),
        }
    }

    /// Whether the job is certain to compute on GPUs. If so, the planned memory is that of the GPU, which holds no copy
    /// for checkpoints and no buffers of links.
    pub(crate) fn is_on_gpu(&self) -> bool {
        self.training.device == Device::Cuda
    }

    /// Returns the copies of parameters that stages hold in the planned memory.
    pub(crate) fn parameter_copies(&self) -> ParameterCopies {
        let spec = &self.job.spec;
        let checkpoint = &spec.checkpoint;
        let snapshot = checkpoint.mode == CheckpointMode::Async && checkpoint.every_steps > 0;
        let memory_checkpoints = spec.memory_checkpoints().is_some();
        let replicas = spec.data_parallel as usize;
        let blocks = self.blocks().map(|blocks| blocks.of_replica(0, replicas));
        let partial_sums = blocks.as_ref().map_or(0, ReplicaBlocks::partial_sums);
        // the number of sums that a replica receives from all other replicas; the maximum over the replicas
        let received_sums = blocks.as_ref().map_or(0, |blocks| {
            let sums = (0..replicas).map(|replica| blocks.all().of_replica(replica, replicas).subtrees().len());
            sums.clone().sum::<usize>() - sums.min().unwrap_or(0)
        });
        match self.is_on_gpu() {
            true => ParameterCopies { partial_sums, received_sums, replicas, ..ParameterCopies::default() },
            false => ParameterCopies { snapshot, memory_checkpoints, partial_sums, received_sums, replicas },
        }
    }
}

/// Returns the memory that each rank holds independently of its layers. A boundary tensor, the tensor that one chunk
/// sends to the next for a microbatch, has `boundary_bytes` bytes.
pub(super) fn rank_costs(
    config: &JobConfig,
    architecture: &dyn Architecture,
    placement: &Placement,
    boundary_bytes: u64,
) -> Vec<RankMemory> {
    let tied_bytes = if architecture.adds_tied_gradients() { 4 * embedding_numel(architecture) } else { 0 };
    let mut links = link_ids(placement, architecture.adds_tied_gradients());
    if config.parameter_copies().memory_checkpoints {
        // more than two replicas add no further links to a rank
        let replicas = config.job.spec.data_parallel.min(2) as usize;
        links.extend(PeerRing { stages: placement.ranks(), replicas }.link_ids());
    }
    if config.training.audit.is_some() {
        // one link to the next rank and one from the previous rank, for any number of ranks
        let ranks = placement.ranks().max(2);
        links.extend((0..ranks).map(|rank| LinkId::audit(rank, ranks)));
    }
    let rank = |rank| {
        let own_links = links.iter().filter(|link| link.from == rank || link.to == rank);
        let transport = config.job.spec.pipeline.transport;
        let is_end = placement.first_and_last_ranks().contains(&rank);
        let has_peer = tied_bytes > 0 && is_end && placement.first_rank() != placement.last_rank();
        let links: u64 = own_links.map(|&link| held_bytes(link, transport, boundary_bytes, tied_bytes)).sum();
        // one link in each direction for each other replica
        let replica_links = 2 * u64::from(config.job.spec.data_parallel.saturating_sub(1));
        let links = links + replica_links * held_bytes(LinkId::replicas(0, 1), transport, boundary_bytes, tied_bytes);
        let tied = tied_parameters(config, architecture, placement, rank);
        let chunks = match config.job.spec.data_parallel {
            1 => placement.chunks_of(rank).count(),
            // an upper bound of the number of parts
            _ => placement.chunks_of(rank).count().max(PARTS_PER_STAGE),
        };
        let (link_bytes, process_bytes) =
            if config.is_on_gpu() { (0, GPU_PROCESS_BYTES) } else { (links, PROCESS_BYTES) };
        RankMemory {
            parameter_bytes: tied.total(),
            copied_bytes: tied.memory_checkpoints,
            link_bytes,
            process_bytes: process_bytes
                + chunks as u64 * architecture.chunk_bytes()
                + batch_bytes(config, placement, rank),
            // the sent and the received gradient of the tied weight
            step_end_bytes: if has_peer { 2 * tied_bytes } else { 0 },
        }
    };
    (0..placement.ranks()).map(rank).collect()
}

fn embedding_numel(architecture: &dyn Architecture) -> u64 {
    (architecture.vocab_size() * architecture.hidden_size()) as u64
}

/// Returns the bytes of the weight that embedding and head share, if `rank` holds one of these modules. The weight
/// counts once, with the gradients of both modules.
fn tied_parameters(
    config: &JobConfig,
    architecture: &dyn Architecture,
    placement: &Placement,
    rank: usize,
) -> ParameterBytes {
    if !architecture.tie_word_embeddings() || !placement.first_and_last_ranks().contains(&rank) {
        return ParameterBytes::default();
    }
    let precision = config.training.precision;
    let copies = config.parameter_copies();
    if !architecture.adds_tied_gradients() {
        let embedding = ModelPart { layers: 0..0, has_embedding: true, has_head: false };
        return ParameterBytes::of_specs(&architecture.weight_specs(&embedding), precision, copies);
    }
    // only the rank with the head saves the weight
    let copies = ParameterCopies { snapshot: copies.snapshot && placement.last_rank() == rank, ..copies };
    let numel = embedding_numel(architecture);
    let once = ParameterBytes::of(numel, precision, copies);
    let has_both_ends = placement.first_rank() == placement.last_rank();
    // the gradient of the module at the other end of the pipeline; if both modules are on this rank, the gradient
    // blocks of each module are added separately
    let other = if has_both_ends { once.gradients } else { 4 * numel };
    ParameterBytes { gradients: once.gradients + other, ..once }
}

/// Returns the bytes of a step's token ids on the first stage, and of its targets on the last stage.
fn batch_bytes(config: &JobConfig, placement: &Placement, rank: usize) -> u64 {
    let tokens = u64::from(config.training.global_batch_size) * u64::from(config.data.sequence_length);
    let holds = [placement.first_rank() == rank, placement.last_rank() == rank];
    8 * tokens * holds.into_iter().filter(|holds| *holds).count() as u64
}

/// The peak bytes of a stage.
#[derive(Clone, Copy, Debug)]
pub struct StageBytes {
    /// The bytes of the parameters.
    pub parameters: ParameterBytes,
    /// The bytes by purpose. `parts.parameters` is the sum of `parameters`.
    pub parts: StageMemory,
}

/// Returns the peak bytes of every stage.
pub(super) fn stage_bytes(
    config: &JobConfig,
    architecture: &dyn Architecture,
    schedule: &Schedule,
    partition: &Partition,
    cost: &ModelCost,
) -> Vec<StageBytes> {
    let placement = &schedule.placement;
    let chunk_bytes = |chunk| {
        let part = ModelPart::of_chunk(placement, partition, chunk);
        let (precision, copies) = (config.training.precision, config.parameter_copies());
        ParameterBytes::of_module(
            &architecture.weight_specs(&part),
            architecture.tie_word_embeddings(),
            precision,
            copies,
        )
    };
    let rank_bytes = |rank| {
        let tied = tied_parameters(config, architecture, placement, rank);
        placement.chunks_of(rank).map(chunk_bytes).chain([tied]).sum()
    };
    let memory = partition.memory(cost, schedule).into_iter().enumerate();
    memory.map(|(rank, parts)| StageBytes { parameters: rank_bytes(rank), parts }).collect()
}

#[cfg(test)]
mod tests {
    use stagecoach_pipeline::Replica;

    use super::*;
    use crate::identity::tests::config;
    use crate::plan_pipeline;
    use stagecoach_engine::execute::{Stage, StageConfig};
    use stagecoach_engine::state_dict::Snapshot;

    /// The plan sums the costs of modules and ranks. The test sums the parameters by name, as a stage allocates them.
    #[test]
    fn parameters_are_those_that_stages_hold() {
        for (stages, tied, precision) in
            [(1, true, "Float32"), (1, false, "BFloat16"), (3, true, "BFloat16"), (3, false, "Float32")]
        {
            let config =
                config(&[("model.llama.tieWordEmbeddings", &tied.to_string()), ("training.precision", precision)]);
            let architecture = config.architecture(300, tch::Device::Cpu);
            let layout = plan_pipeline(&config, architecture.as_ref(), stages, &Default::default()).unwrap();
            for (rank, StageBytes { parameters, parts }) in layout.memory.iter().enumerate() {
                assert_eq!(parameters.total(), parts.parameters);
                let stage = Stage::build(
                    rank,
                    &StageConfig {
                        architecture: architecture.as_ref(),
                        placement: &layout.schedule.placement,
                        partition: &layout.partition,
                        seed: Some(1),
                        optimizer: config.adamw(),
                        recompute: layout.recompute,
                        precision: config.training.precision,
                        device: tch::Device::Cpu,
                        replica: Replica::ONLY,
                    },
                );
                let numel: usize = stage.parameters.iter().map(|parameter| parameter.value.numel()).sum();
                let saved: usize = Snapshot::of(&stage).weights.iter().map(|tensor| tensor.bytes().len() / 4).sum();
                assert_eq!((parameters.optimizer, parameters.snapshot), (8 * numel as u64, 12 * saved as u64));
            }
        }
    }

    #[test]
    fn replicas_need_room_for_what_they_exchange() {
        let plan = |data_parallel: &str| {
            let config = config(&[
                ("dataParallel", data_parallel),
                ("training.gradientBlocks", "4"),
                ("training.microbatches", "8"),
                ("model.llama.tieWordEmbeddings", "false"),
                ("pipeline.transport", "Shm"),
            ]);
            let architecture = config.architecture(300, tch::Device::Cpu);
            plan_pipeline(&config, architecture.as_ref(), 1, &Default::default()).unwrap().memory[0]
        };
        let (one, three) = (plan("1"), plan("3"));
        let numel = one.parameters.optimizer / 8;
        // one replica has the sum of two blocks, and each of the other two has one block, so a replica receives at most
        // two sums
        assert_eq!(one.parameters.gradients, 3 * 4 * numel);
        let (gradients, third) = (three.parameters.gradients, numel.div_ceil(3));
        assert!(gradients.abs_diff(2 * 4 * numel + 2 * 4 * third) < 1000, "{gradients} of {numel}");
        assert_eq!(three.parts.links - one.parts.links, 4 * (8 << 20));
    }
}
