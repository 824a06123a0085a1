//! The layout of one candidate: its partition, programs, costs, memory and simulated step.

use std::collections::BTreeSet;

use stagecoach_api::job::Recompute;
use stagecoach_engine::execute::kind;
use stagecoach_model::{Architecture, ModelPart};
use stagecoach_pipeline::{
    Costs, ModelCost, Partition, PartitionError, Placement, Programs, Schedule, balanced_partition, explicit_partition,
    simulate,
};

use super::super::candidates::PlannedSchedule;
use super::super::job_config::JobConfig;
use super::super::memory::{PARTS_PER_STAGE, rank_costs, stage_bytes};
use super::super::profile::Profile;
use super::super::speeds::Machines;
use super::PipelineLayout;

/// Assumed throughput of hardware without measurements: fp32 FLOP/s of a CPU core, and bytes/s of a local link.
const FLOPS_PER_SECOND: f64 = 5e10;
const LINK_BYTES_PER_SECOND: f64 = 2e9;

/// The common inputs of all candidates of a plan.
pub(super) struct LayoutContext<'a> {
    pub(super) config: &'a JobConfig,
    pub(super) architecture: &'a dyn Architecture,
    /// Measured times, if they exist.
    pub(super) profile: Option<&'a Profile>,
    pub(super) machines: &'a Machines,
}

/// The throughput that converts the work of a [`ModelCost`] and the bytes of messages to seconds.
struct Throughput {
    work_per_second: f64,
    link_bytes_per_second: f64,
}

impl LayoutContext<'_> {
    /// Partitions the model for a candidate and simulates a step.
    pub(super) fn evaluate(
        &self,
        candidate: &PlannedSchedule,
        recompute: Recompute,
    ) -> Result<PipelineLayout, PartitionError> {
        let &LayoutContext { config, architecture, .. } = self;
        let PlannedSchedule { schedule, programs } = candidate;
        let mut notes = Vec::new();
        let mut cost = architecture.cost(config.microbatch_cost(recompute));
        cost.ranks = rank_costs(config, architecture, &schedule.placement, cost.boundary_bytes);
        let throughput = self.throughput(&mut cost, recompute, &mut notes);
        let partition = self.partition(&cost, schedule, &mut notes)?;
        let parts = self.parts(schedule, &partition);
        let programs = programs_in_parts(programs, &parts, self.is_replicated());
        let costs = self.costs(&cost, &programs, &partition.split(&parts), &throughput);
        let timeline = simulate(&programs, &costs);
        let memory = stage_bytes(config, architecture, schedule, &partition, &cost);
        let (schedule, alternatives) = (schedule.clone(), Vec::new());
        Ok(PipelineLayout {
            schedule,
            partition,
            parts,
            programs,
            recompute,
            cost,
            costs,
            timeline,
            memory,
            alternatives,
            notes,
        })
    }

    fn is_replicated(&self) -> bool {
        self.config.job.spec.data_parallel > 1
    }

    /// Returns the measured throughput, or the assumed one. With measurements, the measured seconds replace the work in
    /// `cost`.
    fn throughput(&self, cost: &mut ModelCost, recompute: Recompute, notes: &mut Vec<String>) -> Throughput {
        let (work_per_second, link_bytes_per_second) = match self.profile {
            Some(profile) => {
                profile.apply(cost, recompute);
                if self.config.assumed_profile.is_none() {
                    let measured =
                        "the plan uses the times that `stagecoach plan --profile` measured on this kind of machine";
                    notes.push(measured.into());
                }
                (1.0, cost.boundary_bytes as f64 / profile.link_seconds.max(f64::MIN_POSITIVE))
            }
            None => (FLOPS_PER_SECOND, LINK_BYTES_PER_SECOND),
        };
        Throughput {
            work_per_second: work_per_second * self.machines.fastest,
            link_bytes_per_second: self.machines.link_bytes_per_second.unwrap_or(link_bytes_per_second),
        }
    }

    /// Returns the partition that the job specifies for this number of chunks, or a balanced partition.
    fn partition(
        &self,
        cost: &ModelCost,
        schedule: &Schedule,
        notes: &mut Vec<String>,
    ) -> Result<Partition, PartitionError> {
        let (pipeline, speeds) = (&self.config.job.spec.pipeline, &self.machines.speeds);
        let chunks = schedule.placement.chunks();
        let limit = pipeline.memory_limit.as_ref().and_then(|limit| limit.bytes());
        let partition = match pipeline.explicit_layers(chunks) {
            Some(layers) => {
                let layers: Vec<usize> = layers.iter().map(|&count| count as usize).collect();
                explicit_partition(cost, &layers, schedule, limit)?
            }
            None => {
                notes.extend(pipeline.partition_mismatch(chunks));
                balanced_partition(cost, schedule, limit, speeds)?
            }
        };
        if !speeds.is_equal() {
            let layers: Vec<String> = partition.layers.iter().map(usize::to_string).collect();
            notes.push(format!(
                "the stages are {speeds} times as fast as the fastest: their layers are {}",
                layers.join("/")
            ));
        }
        Ok(partition)
    }

    /// Returns the number of parts into which the programs divide each chunk. With replicas, the exchange of a part
    /// overlaps with computations of the stage. The exchange of the last part's gradients and of the first part's
    /// weights does not overlap.
    fn parts(&self, schedule: &Schedule, partition: &Partition) -> Vec<usize> {
        let placement = &schedule.placement;
        if !self.is_replicated() {
            return vec![1; placement.chunks()];
        }
        let most = |chunk: usize| PARTS_PER_STAGE / placement.chunks_of(placement.rank_of(chunk)).count();
        partition.layers.iter().enumerate().map(|(chunk, &layers)| layers.clamp(1, most(chunk).max(1))).collect()
    }

    /// Returns the seconds of each chunk of `programs` and of the messages between chunks. `partition` has the layers
    /// of each chunk.
    fn costs(&self, cost: &ModelCost, programs: &Programs, partition: &Partition, throughput: &Throughput) -> Costs {
        let &Throughput { work_per_second, link_bytes_per_second } = throughput;
        let costs = Costs::estimate(cost, partition, work_per_second, link_bytes_per_second);
        let mut costs = costs.at_speeds(&programs.placement, &self.machines.speeds);
        if self.is_replicated() {
            let bytes = data_parallel_bytes(self.config, self.architecture, &programs.placement, partition);
            let seconds = |of: usize| bytes.iter().map(|bytes: &[f64; 2]| bytes[of] / link_bytes_per_second).collect();
            (costs.reduce_seconds, costs.gather_seconds) = (seconds(0), seconds(1));
        }
        costs
    }
}

/// Divides the chunks of `programs` into `parts`. The result includes the exchange between replicas if `is_replicated`.
/// `programs` are for a pipeline without replicas.
pub(super) fn programs_in_parts(programs: &Programs, parts: &[usize], is_replicated: bool) -> Programs {
    let programs = programs.split(parts);
    if is_replicated { programs.replicate() } else { programs }
}

/// Returns the bytes that each rank of a replica sends to the other replicas in REDUCE and in GATHER, by chunk. REDUCE
/// sends the gradient of each parameter to the parameter's owner, the replica that updates the parameter. GATHER sends
/// all other replicas the new values of the parameters that the rank owns. The rank receives the same number of bytes.
/// A weight that embedding and head share counts in the rank's first chunk that reads it.
fn data_parallel_bytes(
    config: &JobConfig,
    architecture: &dyn Architecture,
    placement: &Placement,
    partition: &Partition,
) -> Vec<[f64; 2]> {
    let replicas = f64::from(config.job.spec.data_parallel.max(1));
    let read_bytes = kind(config.training.precision).elt_size_in_bytes() as f64;
    let specs = |chunk| architecture.parameter_specs(&ModelPart::of_chunk(placement, partition, chunk));
    let replica_bytes = |chunk: usize| {
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let earlier = placement.chunks_of(placement.rank_of(chunk)).take_while(|other| *other < chunk);
        seen.extend(earlier.flat_map(specs).map(|spec| spec.name));
        let numel: u64 =
            specs(chunk).iter().filter(|spec| seen.insert(spec.name.clone())).map(|spec| spec.numel()).sum();
        let sent = numel as f64 * (replicas - 1.0) / replicas;
        [4.0 * sent, read_bytes * sent]
    };
    (0..placement.chunks()).map(replica_bytes).collect()
}
