//! The memory of a stage's process besides the costs of its layers, and the total memory by purpose.

use stagecoach_api::job::{CheckpointMode, Device, Recompute};
use stagecoach_model::{Architecture, MicrobatchCost, ModelPart, ParameterBytes, ParameterCopies, names};
use stagecoach_pipeline::{ModelCost, Partition, Placement, RankCost, ReplicaBlocks, Schedule, StageMemory};
use stagecoach_transport::{LinkId, PeerRing, held_bytes, link_ids};

use super::job_config::JobConfig;

/// Resident bytes of a stage besides the memory that depends on its model and data, as measured. A process with a
/// minimal model has 145 MiB. Half of it is pages of the files of libtorch and of this program; the rest is their data,
/// compiled products, stacks and buffers of checkpoints (nine of 1 MiB). The other 12 MiB are memory that malloc keeps
/// between the blocks of a real model, which differs by some MiB between runs.
const PROCESS_BYTES: u64 = 157 << 20;

/// Bytes of a GPU that a stage uses beyond the peak of libtorch's tensors, as measured on an H200: 0.95 and 0.97 GiB
/// with models of 1.2 and 0.2 billion parameters. Half of it is CUDA's context with the loaded kernels; the rest is the
/// workspace of products, and memory that the allocator holds between tensors. Buffers of NCCL are not included.
const GPU_PROCESS_BYTES: u64 = 1 << 30;

/// The number of parts into which a job with replicas divides the chunks of a stage.
pub(super) const PARTS_PER_STAGE: usize = 8;

impl JobConfig {
    /// The microbatch whose costs plan the pipeline.
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

    /// Whether the job is certain to compute on GPUs. In that case the planned memory is the GPU's, which holds no copy
    /// for checkpoints and no buffers of links.
    pub(crate) fn is_on_gpu(&self) -> bool {
        self.training.device == Device::Cuda
    }

    /// The copies of parameters that stages hold in the planned memory.
    pub(crate) fn parameter_copies(&self) -> ParameterCopies {
        let spec = &self.job.spec;
        let checkpoint = &spec.checkpoint;
        let snapshot = checkpoint.mode == CheckpointMode::Async && checkpoint.every_steps > 0;
        let memory_checkpoints = spec.memory_checkpoints().is_some();
        let replicas = spec.data_parallel as usize;
        let blocks = self.blocks().map(|blocks| blocks.of_replica(0, replicas));
        let partial_sums = blocks.as_ref().map_or(0, ReplicaBlocks::partial_sums);
        // the sums of all other replicas, on the replica that receives the most
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

/// The memory that each rank holds independently of its layers, with boundary tensors of `boundary_bytes`.
pub(super) fn rank_costs(
    config: &JobConfig,
    architecture: &dyn Architecture,
    placement: &Placement,
    boundary_bytes: u64,
) -> Vec<RankCost> {
    let tied_bytes = if architecture.adds_tied_gradients() { 4 * embedding_numel(architecture) } else { 0 };
    let mut links = link_ids(placement, architecture.adds_tied_gradients());
    if config.parameter_copies().memory_checkpoints {
        // a rank has the same number of links with two replicas as with more
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
        // one link to and one link from each other replica
        let replica_links = 2 * u64::from(config.job.spec.data_parallel.saturating_sub(1));
        let links = links + replica_links * held_bytes(LinkId::replicas(0, 1), transport, boundary_bytes, tied_bytes);
        let tied = tied_parameters(config, architecture, placement, rank);
        let chunks = match config.job.spec.data_parallel {
            1 => placement.chunks_of(rank).count(),
            // the largest number of parts
            _ => placement.chunks_of(rank).count().max(PARTS_PER_STAGE),
        };
        let (link_bytes, process_bytes) =
            if config.is_on_gpu() { (0, GPU_PROCESS_BYTES) } else { (links, PROCESS_BYTES) };
        RankCost {
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

/// The weight that embedding and head share, if `rank` holds one of them. It counts once, with both gradients.
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
    // the gradient of the other end, which has separate blocks if both ends are on this rank
    let other = if has_both_ends { once.gradients } else { 4 * numel };
    ParameterBytes { gradients: once.gradients + other, ..once }
}

/// A step's token ids on the first stage, and targets on the last.
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
    /// All parts. `parts.parameters` is the sum of `parameters`.
    pub parts: StageMemory,
}

/// The peak bytes of every stage.
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
        let is_tied = |name: &str| architecture.tie_word_embeddings() && name == names::EMBEDDING;
        let specs = architecture.weight_specs(&part);
        let specs = specs.iter().filter(|spec| !is_tied(&spec.name));
        ParameterBytes::of_specs(specs, config.training.precision, config.parameter_copies())
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
    use std::path::Path;

    use stagecoach_pipeline::Replica;

    use super::*;
    use crate::plan_pipeline;
    use stagecoach_engine::execute::{Stage, StageConfig};
    use stagecoach_engine::state_dict::Snapshot;

    /// The plan adds modules and the ranks' costs. The test adds the parameters by name, as a stage allocates them.
    #[test]
    fn parameters_are_those_that_stages_hold() {
        let sample = include_str!("../../../manifests/samples/shakespeare.yaml");
        for (stages, tied, precision) in
            [(1, true, "Float32"), (1, false, "BFloat16"), (3, true, "BFloat16"), (3, false, "Float32")]
        {
            let set =
                [("model.llama.tieWordEmbeddings", tied.to_string()), ("training.precision", precision.to_owned())];
            let set: Vec<_> = set.into_iter().map(|(path, value)| (path.to_owned(), value)).collect();
            let job = stagecoach_api::parse_with(sample, "shakespeare.yaml", &set).unwrap();
            let config = JobConfig::new(job, Path::new("/tmp")).unwrap();
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
        let sample = include_str!("../../../manifests/samples/shakespeare.yaml");
        let plan = |data_parallel: &str| {
            let set = [
                ("dataParallel", data_parallel),
                ("training.gradientBlocks", "4"),
                ("training.microbatches", "8"),
                ("model.llama.tieWordEmbeddings", "false"),
                ("pipeline.transport", "Shm"),
            ];
            let set: Vec<_> = set.into_iter().map(|(path, value)| (path.to_owned(), value.to_owned())).collect();
            let job = stagecoach_api::parse_with(sample, "shakespeare.yaml", &set).unwrap();
            let config = JobConfig::new(job, Path::new("/tmp")).unwrap();
            let architecture = config.architecture(300, tch::Device::Cpu);
            plan_pipeline(&config, architecture.as_ref(), 1, &Default::default()).unwrap().memory[0]
        };
        let (one, three) = (plan("1"), plan("3"));
        let numel = one.parameters.optimizer / 8;
        // one replica has the sum of two blocks, and the others have one block each, so a replica receives at most two
        // sums
        assert_eq!(one.parameters.gradients, 3 * 4 * numel);
        let (gradients, third) = (three.parameters.gradients, numel.div_ceil(3));
        assert!(gradients.abs_diff(2 * 4 * numel + 2 * 4 * third) < 1000, "{gradients} of {numel}");
        assert_eq!(three.parts.links - one.parts.links, 4 * (8 << 20));
    }
}
