//! `make gpu`: what has to be seen on a GPU. Kernels against the reference operations, the same bits over any number of stages and both
//! transports and after a resume, tokens a second. Without a GPU it is a rehearsal: the same runs on the CPU, the stand-in for NCCL, a
//! model of toy size, and a report that says of everything else that it was not measured.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use stagecoach_tests::{Group, Hashes, TestJob, nccl, stagecoach};

use crate::stats::{line, median};

/// Names the binary of the trainer's unit tests.
const KERNEL_TESTS: &str = "STAGECOACH_KERNEL_TESTS";
const RUN_TIMEOUT_SECONDS: u64 = 120;
/// Steps of a run that is timed, and those before what is timed.
const STEPS: usize = 12;
const WARM_UP: usize = 4;

/// A GPU, as its driver tells it.
struct Gpu {
    name: String,
    driver: String,
}

impl Gpu {
    fn find() -> Option<Gpu> {
        let query = ["--query-gpu=name,driver_version", "--format=csv,noheader"];
        let output = Command::new("nvidia-smi").args(query).output().ok().filter(|output| output.status.success())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (name, driver) = text.lines().next()?.split_once(", ")?;
        Some(Gpu { name: name.to_owned(), driver: driver.to_owned() })
    }
}

pub(crate) fn measure(folder: &Path) -> Value {
    let gpu = Gpu::find();
    println!("{}", gpu.as_ref().map_or("a rehearsal: there is no GPU", |gpu| &gpu.name));
    let mut not_measured = vec!["the stall of a snapshot", "a trace of a step"];
    if gpu.is_none() {
        not_measured.extend(["kernels on a GPU", "NCCL itself", "tokens a second on a GPU, and MFU"]);
    }
    let bits: Vec<Value> =
        ["Float32", "BFloat16"].iter().map(|precision| compare_hashes(folder, precision, gpu.is_some())).collect();
    json!({
        "rehearsal": gpu.is_none(),
        "gpu": gpu.as_ref().map(|gpu| json!({ "name": gpu.name, "driver": gpu.driver })),
        "kernels": gpu.as_ref().map(|_| kernels()),
        "bits": bits,
        "speed": MODELS.iter().map(|model| model.measure(folder, gpu.as_ref())).collect::<Vec<_>>(),
        "notMeasured": not_measured,
    })
}

/// The trainer's own tests of its kernels.
fn kernels() -> Value {
    let tests =
        std::env::var_os(KERNEL_TESTS).unwrap_or_else(|| panic!("{KERNEL_TESTS} names no binary: see `make gpu`"));
    let output = Command::new(tests).args(["kernels::tests::gpu", "--ignored"]).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let result = stdout.lines().rfind(|line| line.starts_with("test result")).unwrap_or("no result").to_owned();
    line("kernels", if output.status.success() { "pass" } else { "FAIL" }.into(), &result);
    json!({ "pass": output.status.success(), "result": result, "said": stdout })
}

/// Trains the same job in several ways, all of which must end with the hashes of one stage.
fn compare_hashes(folder: &Path, precision: &'static str, has_gpu: bool) -> Value {
    let job = |stages, transport, steps| TestJob {
        name: "bits".into(),
        stages,
        transport,
        precision,
        steps,
        decay_steps: Some(20),
        ..TestJob::default()
    };
    let stand_in = (!has_gpu).then(nccl::loader_path);
    let train = |name: &str, parts: &[(usize, &'static str, u64)]| -> Result<Hashes, String> {
        let own = folder.join(format!("{precision}-{name}"));
        std::fs::create_dir_all(&own).unwrap();
        stagecoach_tests::corpus::write(&own);
        for (attempt, &(stages, transport, steps)) in parts.iter().enumerate() {
            let loader = stand_in.as_ref().filter(|_| transport == "Nccl");
            let env: Vec<(&str, &str)> = loader.iter().map(|path| (nccl::LOADER_PATH, path.as_str())).collect();
            let job = job(stages, transport, steps);
            let mut group = Group::start_program(&stagecoach(), &env, &own, &job, "gpu", attempt as u64 + 1);
            if let Some(failed) = group.finish(RUN_TIMEOUT_SECONDS).into_iter().find(|ended| ended.code != Some(0)) {
                return Err(format!("{:?}: {}", failed.code, failed.log.lines().last().unwrap_or_default()));
            }
        }
        let result = std::fs::read_to_string(own.join("bits/result.json")).unwrap();
        Ok(Hashes::of(&serde_json::from_str(&result).unwrap()))
    };
    let one = train("1-Tcp", &[(1, "Tcp", 20)]);
    let configurations: [(&str, &[_]); 5] = [
        ("2-Tcp", &[(2, "Tcp", 20)]),
        ("3-Tcp", &[(3, "Tcp", 20)]),
        ("2-Nccl", &[(2, "Nccl", 20)]),
        ("3-Nccl", &[(3, "Nccl", 20)]),
        ("3-Nccl-resumed-by-2", &[(3, "Nccl", 10), (2, "Nccl", 20)]),
    ];
    let compare = |(name, parts): &(&str, &[_])| {
        let hashes = train(name, parts);
        let same = hashes.is_ok() && hashes == one;
        let error = hashes.as_ref().err().cloned().unwrap_or_default();
        line(&format!("{precision} {name}"), if same { "same bits" } else { "OTHER BITS" }.into(), &error);
        json!({ "way": name, "sameBits": same, "failure": hashes.err() })
    };
    let compared: Vec<Value> = configurations.iter().map(compare).collect();
    json!({ "precision": precision, "weights": one.as_ref().ok().map(|hashes| &hashes.weights), "failure": one.as_ref().err(),
            "ways": compared })
}

/// A model that is timed, in bf16 on one stage.
struct Model {
    name: &'static str,
    hidden: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
    intermediate: u64,
    vocabulary: u64,
    length: u64,
    /// Rows of a step, and its microbatches.
    rows: u64,
    microbatches: u64,
}

const MODELS: [Model; 2] = [
    // that of manifests/samples/llama-12-layers.yaml
    Model {
        name: "llama-12-layers",
        hidden: 768,
        layers: 12,
        heads: 12,
        kv_heads: 3,
        intermediate: 3072,
        vocabulary: 50_000,
        length: 2048,
        rows: 64,
        microbatches: 4,
    },
    Model {
        name: "llama-1-billion",
        hidden: 2048,
        layers: 16,
        heads: 16,
        kv_heads: 8,
        intermediate: 8192,
        vocabulary: 50_000,
        length: 2048,
        rows: 32,
        microbatches: 8,
    },
];

impl Model {
    /// The same on a toy's scale, for the rehearsal.
    fn shrunk(&self) -> Model {
        let Model { name, heads, kv_heads, .. } = *self;
        Model {
            name,
            heads,
            kv_heads,
            hidden: heads * 8,
            layers: 2,
            intermediate: 128,
            vocabulary: 300,
            length: 64,
            rows: 8,
            microbatches: 4,
        }
    }

    fn measure(&self, folder: &Path, gpu: Option<&Gpu>) -> Value {
        let model = if gpu.is_some() { self } else { &self.shrunk() };
        let Model { name, hidden, layers, heads, kv_heads, intermediate, vocabulary, length, rows, microbatches } =
            *model;
        let file = folder.join(format!("{name}.json"));
        let job = json!({
            "apiVersion": "stagecoach.dev/v1alpha1",
            "kind": "PipelineJob",
            "metadata": { "name": name },
            "spec": {
                "stages": 1,
                "model": { "type": "Llama", "llama": {
                    "hiddenSize": hidden, "numHiddenLayers": layers, "numAttentionHeads": heads, "numKeyValueHeads": kv_heads,
                    "intermediateSize": intermediate, "vocabSize": vocabulary, "maxPositionEmbeddings": length,
                } },
                "data": {
                    "paths": ["corpus/bench.jsonl"],
                    "sequenceLength": length,
                    "tokenizer": { "type": "Train", "train": { "vocabSize": 300 } },
                },
                "training": {
                    "steps": STEPS, "globalBatchSize": rows, "microbatches": microbatches, "precision": "BFloat16",
                    "gradientClipNorm": 1.0, "learningRate": { "peak": 1e-4 },
                },
                "checkpoint": { "everySteps": 0 },
            },
        });
        std::fs::write(&file, job.to_string()).unwrap();
        let output = Command::new(stagecoach()).arg("run").arg(&file).arg("--workspace").arg(folder).output().unwrap();
        let metrics = std::fs::read_to_string(folder.join(name).join("metrics.jsonl")).unwrap_or_default();
        let steps: Vec<Value> = metrics.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let measured =
            |field: &str| -> Vec<f64> { steps.iter().skip(WARM_UP).filter_map(|step| step[field].as_f64()).collect() };
        let (speeds, mfus) = (measured("tokensPerSecond"), measured("mfu"));
        if !output.status.success() || speeds.is_empty() {
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            line(name, "FAILED".into(), stderr.lines().last().unwrap_or_default());
            return json!({ "model": name, "failure": stderr });
        }
        let speed = median(&speeds);
        let torch = [false, true].map(|compile| model.measure_torch(compile));
        let mfu = (!mfus.is_empty()).then(|| median(&mfus));
        line(
            name,
            format!("{speed:.0} tokens/s"),
            &mfu.map_or("MFU unknown".to_owned(), |mfu| format!("MFU {:.1} %", 100.0 * mfu)),
        );
        json!({ "model": name, "isShrunk": gpu.is_none(), "tokensPerSecond": speed, "allTokensPerSecond": speeds,
                "mfu": mfu, "torch": torch })
    }

    /// The same model, with weights and tokens at random, in PyTorch.
    fn measure_torch(&self, compile: bool) -> Value {
        let Model { hidden, layers, heads, kv_heads, intermediate, vocabulary, length, rows, microbatches, .. } = *self;
        let settings = json!({
            "config": {
                "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
                "num_key_value_heads": kv_heads, "intermediate_size": intermediate, "vocab_size": vocabulary,
                "max_position_embeddings": length, "rope_theta": 10_000.0, "rms_norm_eps": 1e-5,
            },
            "rows": rows, "length": length, "microbatches": microbatches, "steps": STEPS, "compile": compile,
        });
        let what = if compile { "torch.compile" } else { "torch, eager" };
        // from the root of the repository
        let output = Command::new("python3").arg("bench/torch/speed.py").arg(settings.to_string()).output().unwrap();
        let measured: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let Some(seconds) = measured["seconds"].as_array() else {
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            line(what, "not measured".into(), stderr.lines().last().unwrap_or_default());
            return json!({ "what": what, "failure": stderr });
        };
        let tokens = (rows * length) as f64;
        let speeds: Vec<f64> = seconds.iter().skip(WARM_UP).filter_map(Value::as_f64).map(|s| tokens / s).collect();
        line(what, format!("{:.0} tokens/s", median(&speeds)), measured["device"].as_str().unwrap_or_default());
        json!({ "what": what, "tokensPerSecond": median(&speeds), "raw": measured })
    }
}
