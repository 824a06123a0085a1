//! Predicts the time of a step on GPUs with a roofline (Williams, Waterman and Patterson 2009). The time of an
//! operation is the larger of the time for its FLOPs and the time for its bytes. Both times assume the fraction of a
//! device's peaks that libraries reach.

use std::collections::BTreeMap;

use stagecoach_api::job::{Precision, Recompute};
use stagecoach_engine::StageError;
use stagecoach_model::{Architecture, Operation, OperationKind, Pass};
use stagecoach_telemetry::peak_flops;

use super::JobConfig;
use super::profile::{ModuleSeconds, Profile};

/// A model of GPU, with the numbers of NVIDIA's data sheets.
#[derive(Clone, Copy, Debug)]
pub struct GpuModel {
    pub name: &'static str,
    /// The size of the memory, in bytes.
    pub memory_bytes: u64,
    /// The bandwidth of the memory, in bytes per second.
    memory_bandwidth: f64,
    /// Bytes per second to another GPU of the node, in one direction.
    link_bandwidth: f64,
}

const GPUS: [GpuModel; 4] = [
    GpuModel { name: "H100", memory_bytes: 80_000_000_000, memory_bandwidth: 3.35e12, link_bandwidth: 450e9 },
    GpuModel { name: "H200", memory_bytes: 141_000_000_000, memory_bandwidth: 4.8e12, link_bandwidth: 450e9 },
    GpuModel { name: "A100", memory_bytes: 80_000_000_000, memory_bandwidth: 2.039e12, link_bandwidth: 300e9 },
    GpuModel { name: "L40S", memory_bytes: 48_000_000_000, memory_bandwidth: 0.864e12, link_bandwidth: 32e9 },
];

/// Returns the names that `stagecoach plan --device` accepts.
pub fn gpu_names() -> [&'static str; GPUS.len()] {
    GPUS.map(|gpu| gpu.name)
}

/// Returns the fraction of the device's peak that an operation reaches: of the peak FLOP/s or, for elementwise
/// operations, of the peak memory bandwidth. The fractions were measured on an H200 with the shapes of a model of 1.2
/// billion parameters (docs/GPUS.md).
fn reached(kind: OperationKind) -> f64 {
    match kind {
        OperationKind::Product => 0.71,
        OperationKind::Attention => 0.235,
        OperationKind::AttentionBackward => 0.15,
        OperationKind::Elementwise => 0.7,
    }
}

/// Bytes that an update moves for each parameter: values, gradients and moments in fp32, the copy in bf16, and the
/// gradients again for their norm.
const UPDATE_BYTES: f64 = 34.0;

/// The predicted work and time of all operations with the same name, summed over a step of the whole model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OperationCost {
    /// The seconds. An operation takes the larger of the time for its FLOPs and the time for its bytes.
    pub seconds: f64,
    /// Seconds of the memory-bound operations, whose bytes take longer than their FLOPs.
    memory_seconds: f64,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes that are read and written.
    pub bytes: f64,
}

impl OperationCost {
    /// Whether memory, not arithmetic, takes most of the time.
    pub fn is_bound_by_memory(&self) -> bool {
        2.0 * self.memory_seconds > self.seconds
    }
}

/// A job's predicted times on a model of GPU.
#[derive(Clone, Debug)]
pub struct Roofline {
    /// The model of GPU.
    pub gpu: GpuModel,
    /// The times of modules, from which a plan simulates the pipeline.
    pub profile: Profile,
    /// The work of a step of one pipeline, by the name of the operation.
    pub costs: BTreeMap<&'static str, OperationCost>,
    /// Peak FLOP/s of one GPU.
    pub peak_flops: f64,
    /// FLOPs of a step that count for MFU.
    pub step_flops: f64,
    /// Tokens of a step.
    pub step_tokens: f64,
    /// Seconds of an update of all parameters on one GPU.
    pub update_seconds: f64,
}

impl Roofline {
    /// Predicts a job's times on GPUs of the model `name`.
    ///
    /// # Errors
    /// Returns an error if the name is unknown, or if the job is not in bf16, the only type with measured fractions of
    /// the peaks.
    pub fn new(config: &JobConfig, architecture: &dyn Architecture, name: &str) -> Result<Roofline, StageError> {
        let gpu = GPUS.into_iter().find(|gpu| gpu.name == name).zip(peak_flops(name, Precision::BFloat16));
        let Some((gpu, peak_flops)) = gpu else {
            let names = gpu_names().join(", ");
            return Err(StageError::invalid(format!("--device {name}: the known devices are {names}")));
        };
        if config.training.precision != Precision::BFloat16 {
            return Err(StageError::invalid(
                "--device predicts training.precision: BFloat16, and the job has Float32: add --set training.precision=BFloat16",
            ));
        }
        let seconds = |operation: &Operation| {
            let bandwidth = gpu.memory_bandwidth * reached(OperationKind::Elementwise);
            let computing = operation.flops / (peak_flops * reached(operation.kind));
            (computing, operation.bytes / bandwidth)
        };
        let module = |operations: &[Operation], recompute: Recompute| {
            let mut times = ModuleSeconds::default();
            for operation in operations {
                let (computing, moving) = seconds(operation);
                let time = computing.max(moving);
                match operation.pass {
                    Pass::Forward => times.forward += time,
                    Pass::BackwardInput => times.backward_input += time,
                    Pass::BackwardWeight => times.backward_weight += time,
                }
                if operation.pass == Pass::Forward && is_recomputed(operation, recompute) {
                    times.backward_input += time;
                }
            }
            times
        };
        let microbatch = config.microbatch_cost(Recompute::None);
        let operations = architecture.operations(microbatch);
        let cost = architecture.cost(microbatch);
        let profile = Profile {
            embedding: module(&operations.embedding, Recompute::None),
            layer: Recompute::ALL.iter().map(|&mode| (mode.to_string(), module(&operations.layer, mode))).collect(),
            head: module(&operations.head, Recompute::None),
            link_seconds: cost.boundary_bytes as f64 / gpu.link_bandwidth,
        };
        let microbatches = f64::from(config.training.microbatches);
        let mut costs: BTreeMap<&'static str, OperationCost> = BTreeMap::new();
        let layers = architecture.num_layers() as f64;
        let module_operations = [(&operations.embedding, 1.0), (&operations.layer, layers), (&operations.head, 1.0)];
        for (operation, modules) in
            module_operations.iter().flat_map(|(all, modules)| all.iter().map(|one| (one, *modules)))
        {
            let ((computing, moving), times) = (seconds(operation), modules * microbatches);
            let total = costs.entry(operation.name).or_default();
            total.seconds += times * computing.max(moving);
            total.flops += times * operation.flops;
            total.bytes += times * operation.bytes;
            total.memory_seconds += if moving > computing { times * moving } else { 0.0 };
        }
        let parameters = architecture.parameter_count();
        Ok(Roofline {
            gpu,
            profile,
            costs,
            peak_flops,
            step_flops: microbatches * cost.work(),
            step_tokens: microbatches * microbatch.tokens as f64,
            update_seconds: parameters as f64 * UPDATE_BYTES
                / (gpu.memory_bandwidth * reached(OperationKind::Elementwise)),
        })
    }
}

/// Whether the backward pass recomputes this operation of the forward pass.
fn is_recomputed(operation: &Operation, recompute: Recompute) -> bool {
    match recompute {
        Recompute::None => false,
        Recompute::Selective => operation.is_selective,
        Recompute::Full => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::tests::config;

    /// Returns the prediction for the sample job, and the job's numbers of layers and microbatches.
    fn roofline(set: &[(&str, &str)]) -> Result<(Roofline, f64, f64), StageError> {
        let config = config(set);
        let architecture = config.architecture(300, tch::Device::Cpu);
        let counts = (architecture.num_layers() as f64, f64::from(config.training.microbatches));
        Roofline::new(&config, architecture.as_ref(), "H200").map(|roofline| (roofline, counts.0, counts.1))
    }

    /// The operations have the FLOPs that count for MFU, and their times add up to the times of the modules.
    #[test]
    fn operations_add_up_to_the_model() {
        let (roofline, layers, microbatches) = roofline(&[("training.precision", "BFloat16")]).unwrap();
        let all: Vec<OperationCost> = roofline.costs.values().copied().collect();
        let flops: f64 = all.iter().map(|cost| cost.flops).sum();
        // for each matrix product of attention's forward pass, MFU counts two products in the backward pass, but
        // attention computes 2.5
        let attention = roofline.costs["attention"].flops;
        let counted = flops - attention + attention * 3.0 / 3.5;
        assert!((counted / roofline.step_flops - 1.0).abs() < 1e-9, "{counted} of {}", roofline.step_flops);
        let seconds: f64 = all.iter().map(|cost| cost.seconds).sum();
        let total = |times: &ModuleSeconds| times.forward + times.backward_input + times.backward_weight;
        let Profile { embedding, layer, head, .. } = &roofline.profile;
        let modules = total(embedding) + layers * total(&layer["None"]) + total(head);
        assert!((microbatches * modules / seconds - 1.0).abs() < 1e-9);
        assert!(
            total(&layer["None"]) < total(&layer["Selective"]) && total(&layer["Selective"]) < total(&layer["Full"])
        );
    }

    #[test]
    fn a_job_in_fp32_is_refused() {
        let refused = roofline(&[]).unwrap_err().to_string();
        assert!(refused.contains("--set training.precision=BFloat16"), "{refused}");
    }
}
