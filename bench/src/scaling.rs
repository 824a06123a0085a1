//! Simulates how the time of a step grows with the number of replicas. The time of a layer, and the time in which all
//! stages agree on the result of a step, are measured on this machine. The speeds of the links between replicas are
//! assumptions. Each replica computes the same number of microbatches, for any number of replicas (weak scaling).

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use stagecoach_pipeline::{
    Costs, ModelCost, ModuleCost, Partition, Programs, RankSpeeds, ReplicaLinks, balanced_partition,
    interleaved_zero_bubble, lower, simulate,
};
use stagecoach_tests::stagecoach;

use crate::agreement;
use crate::stats::{line, median};

const STAGES: usize = 8;
const CHUNKS_PER_STAGE: usize = 2;
const MICROBATCHES: usize = 32;
const REPLICAS: [usize; 5] = [1, 8, 32, 64, 128];
/// The speeds at which layers are computed, relative to this machine: one core of a CPU, and two values closer to a
/// GPU.
const SPEEDS: [f64; 3] = [1.0, 100.0, 1000.0];
/// Bytes per second from a rank to ranks of other nodes: 10, 100 and 400 Gbit/s.
const NETWORKS: [f64; 3] = [1.25e9, 12.5e9, 50e9];
/// Bytes per second of an H100's NVLink.
const NODE_BYTES_PER_SECOND: f64 = 450e9;
const RANKS_PER_NODE: usize = 8;

const HIDDEN: usize = 512;
const INSIDE: usize = 1376;
const LAYERS: usize = 32;
const VOCABULARY: usize = 8000;
const JOB: &str = "apiVersion: stagecoach.dev/v1alpha1
kind: PipelineJob
metadata: {name: scaling}
spec:
  stages: 8
  model: {type: Llama, llama: {hiddenSize: 512, numHiddenLayers: 32, numAttentionHeads: 8, intermediateSize: 1376, vocabSize: 8000}}
  data:
    paths: [corpus/bench.jsonl]
    sequenceLength: 256
    tokenizer: {type: Train, train: {vocabSize: 300}}
  training:
    steps: 10
    globalBatchSize: 128
    microbatches: 32
    learningRate: {peak: 1e-3}
";

pub(crate) fn measure(folder: &Path) -> Value {
    let cost = measured_cost(folder);
    let schedule = interleaved_zero_bubble(STAGES, CHUNKS_PER_STAGE, MICROBATCHES);
    let partition = balanced_partition(&cost, &schedule, None, &RankSpeeds::default()).unwrap();
    let programs = lower(&schedule, false).unwrap().replicate();
    let agreements: Vec<f64> = REPLICAS.iter().map(|replicas| agreement_seconds(STAGES * replicas)).collect();
    println!("a step of {STAGES} stages and up to 128 replicas, by simulation");
    let mut rows = Vec::new();
    for speed in SPEEDS {
        for network in NETWORKS {
            let step =
                |replicas, agreement| Step::new(&cost, &partition, &programs, speed, network, replicas, agreement);
            let alone = step(1, agreements[0]).seconds;
            for (&replicas, &agreement) in REPLICAS.iter().zip(&agreements) {
                let step = step(replicas, agreement);
                if replicas == 128 {
                    let percent = |seconds: f64| format!("{:.1} %", 100.0 * alone / seconds);
                    line(
                        &format!("{speed} x as fast, {} Gbit/s", network * 8e-9),
                        percent(step.seconds),
                        &format!("efficiency of 128 replicas; a step of one takes {alone:.3} s"),
                    );
                }
                rows.push(json!({
                    "speed": speed, "networkBytesPerSecond": network, "replicas": replicas,
                    "stepSeconds": step.seconds, "efficiency": alone / step.seconds,
                    "reduceSeconds": step.reduce, "gatherSeconds": step.gather, "agreementSeconds": agreement,
                }));
            }
        }
    }
    let seconds = |module: &ModuleCost| [module.forward, module.backward_input, module.backward_weight];
    json!({
        "stages": STAGES, "chunksPerStage": CHUNKS_PER_STAGE, "microbatchesOfReplica": MICROBATCHES, "layers": LAYERS,
        "hiddenSize": HIDDEN, "vocabulary": VOCABULARY, "partition": partition.layers,
        "measuredSeconds": {"embedding": seconds(&cost.embedding), "layer": seconds(&cost.layers[0]), "head": seconds(&cost.head)},
        "rows": rows,
    })
}

/// The seconds of a step with a given number of replicas, and the seconds in which the slowest stage reduces gradients
/// and gathers weights.
struct Step {
    seconds: f64,
    reduce: f64,
    gather: f64,
}

impl Step {
    fn new(
        cost: &ModelCost,
        partition: &Partition,
        programs: &Programs,
        speed: f64,
        network: f64,
        replicas: usize,
        agreement: f64,
    ) -> Step {
        let links = ReplicaLinks {
            ranks_per_node: RANKS_PER_NODE,
            node_bytes_per_second: NODE_BYTES_PER_SECOND,
            network_bytes_per_second: network,
        };
        // gradients and weights are fp32
        let transfer_seconds = |chunk| {
            let bytes: u64 = partition.modules_of(cost, chunk).map(|module| module.parameter_bytes).sum();
            links.seconds(STAGES, replicas, bytes as f64)
        };
        let by_chunk: Vec<f64> = (0..partition.layers.len()).map(transfer_seconds).collect();
        let costs = Costs {
            exchange_seconds: agreement,
            reduce_seconds: by_chunk.clone(),
            gather_seconds: by_chunk.clone(),
            // neighbouring stages are on the same node
            ..Costs::estimate(cost, partition, speed, NODE_BYTES_PER_SECOND)
        };
        let rank_seconds = |rank| programs.placement.chunks_of(rank).map(|chunk| by_chunk[chunk]).sum();
        let slowest = (0..STAGES).map(rank_seconds).fold(0.0, f64::max);
        Step { seconds: simulate(programs, &costs).makespan, reduce: slowest, gather: slowest }
    }
}

/// Returns the model's modules, with the seconds that `stagecoach plan --profile` measures for each module, and with
/// the bytes of their parameters.
fn measured_cost(folder: &Path) -> ModelCost {
    let job = folder.join("scaling.yaml");
    std::fs::write(&job, JOB).unwrap();
    let planned = Command::new(stagecoach())
        .arg("plan")
        .arg(&job)
        .arg("--workspace")
        .arg(folder)
        .arg("--profile")
        .output()
        .unwrap();
    assert!(planned.status.success(), "{}", String::from_utf8_lossy(&planned.stderr));
    let printed = String::from_utf8(planned.stdout).unwrap();
    let file = printed.lines().find_map(|line| line.strip_prefix("wrote ")).expect("the profile's file");
    let profile: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let module = |name: &str, seconds: &Value, parameters: usize| {
        let pass_seconds = |kind: &str| seconds[kind].as_f64().expect(kind);
        ModuleCost {
            name: name.into(),
            forward: pass_seconds("forward"),
            backward_input: pass_seconds("backwardInput"),
            backward_weight: pass_seconds("backwardWeight"),
            parameter_bytes: 4 * parameters as u64,
            ..ModuleCost::default()
        }
    };
    let profile = &profile["profile"];
    let layer = module("layer", &profile["layer"]["None"], 4 * HIDDEN * HIDDEN + 3 * HIDDEN * INSIDE + 2 * HIDDEN);
    ModelCost {
        embedding: module("embedding", &profile["embedding"], VOCABULARY * HIDDEN),
        layers: vec![layer; LAYERS],
        head: module("head", &profile["head"], VOCABULARY * HIDDEN + HIDDEN),
        // a microbatch has four rows
        boundary_bytes: (4 * 256 * HIDDEN * 4) as u64,
        ranks: Vec::new(),
    }
}

/// Returns the median seconds of a few agreements between `members` members, which are threads of this machine.
fn agreement_seconds(members: usize) -> f64 {
    median(&agreement::seconds(members))
}
