//! Runs a trainer (Stagecoach or PyTorch) with its settings, as processes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use stagecoach_cluster::Process;
use stagecoach_tests::Launched;

use super::run::MeasuredRun;
use super::workload::{LENGTH, SEQUENCES, TrainingCase};

const LEARNING_RATE: f64 = 1e-3;
const WEIGHT_DECAY: f64 = 0.1;
const CLIP_NORM: f64 = 1.0;

/// A trainer with its settings.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    pub(super) name: String,
    pub(super) workload: &'static TrainingCase,
    pub(super) trainer: Framework,
    pub(super) threads: usize,
    pub(super) bf16: bool,
    pub(super) pipeline: Pipeline,
    /// Whether the contender takes part in the comparison of losses before the timed runs.
    pub(super) is_checked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Framework {
    Stagecoach,
    Torch {
        /// Whether torch.compile compiles the model.
        compiled: bool,
        /// Whether AdamW runs in one kernel.
        fused: bool,
    },
}

/// The ranks, and how they share the work.
#[derive(Clone, Debug)]
pub(super) struct Pipeline {
    /// The schedule's name, which is the same in PyTorch and in Stagecoach.
    pub(super) schedule: &'static str,
    pub(super) ranks: usize,
    /// The number of replicas of the pipeline. PyTorch runs them with DistributedDataParallel.
    pub(super) data_parallel: usize,
    /// The number of layers of each chunk for PyTorch. Stagecoach determines its partition itself.
    pub(super) split: Vec<usize>,
}

impl Pipeline {
    fn processes(&self) -> usize {
        self.ranks * self.data_parallel
    }
}

impl Contender {
    /// Trains for `steps` steps.
    pub(super) fn run(&self, folder: &Path, steps: usize) -> MeasuredRun {
        let folder = folder.join(self.workload.name);
        match self.trainer {
            Framework::Stagecoach => self.run_stagecoach(&folder, steps),
            Framework::Torch { compiled, fused } => self.run_torch(&folder, steps, compiled, fused),
        }
    }

    fn precision(&self) -> &'static str {
        if self.bf16 { "BFloat16" } else { "Float32" }
    }

    fn run_stagecoach(&self, folder: &Path, steps: usize) -> MeasuredRun {
        let Contender { workload, threads, pipeline, .. } = self;
        let file = folder.join("job.yaml");
        let job = json!({
            "apiVersion": "stagecoach.dev/v1alpha1",
            "kind": "PipelineJob",
            "metadata": { "name": "stagecoach" },
            "spec": {
                "stages": pipeline.ranks,
                "dataParallel": pipeline.data_parallel,
                "model": { "type": "Pretrained", "pretrained": { "path": "model" } },
                "data": {
                    "paths": ["corpus/ids.u16"],
                    "sequenceLength": LENGTH,
                    "tokenizer": { "type": "File", "file": { "path": "model/tokenizer.json" } },
                },
                "training": {
                    // this program ends the trainer after the timed steps; the last step, at which the trainer saves,
                    // must be far beyond these steps
                    "steps": steps + 1000,
                    "globalBatchSize": SEQUENCES,
                    "microbatches": workload.microbatches,
                    "threads": threads,
                    "device": "Cpu",
                    "precision": self.precision(),
                    "gradientClipNorm": CLIP_NORM,
                    "learningRate": { "peak": LEARNING_RATE, "schedule": "Constant" },
                    "optimizer": { "type": "AdamW", "adamW": { "weightDecay": WEIGHT_DECAY } },
                },
                "pipeline": {
                    "schedule": { "type": pipeline.schedule },
                    "virtualStages": (pipeline.split.len() / pipeline.ranks).max(1),
                },
                "checkpoint": { "everySteps": 0 },
            },
        });
        std::fs::write(&file, job.to_string()).unwrap();
        let job_folder = folder.join("stagecoach");
        let _ = std::fs::remove_dir_all(&job_folder);
        let metrics = job_folder.join("metrics.jsonl");
        let started = Instant::now();
        let mut launched = Launched::start_file(folder, &file, job_folder, &[]);
        let mut stages = Vec::new();
        MeasuredRun::watch(started, &metrics, steps, || {
            assert!(launched.child.try_wait().unwrap().is_none(), "{} ended: see {}", self.name, folder.display());
            // `stages` reads every process of the machine, so it is not called again after it has found all stages
            if stages.len() < pipeline.processes() {
                stages = launched.stages();
            }
            stages.clone()
        })
    }

    fn run_torch(&self, folder: &Path, steps: usize, compiled: bool, fused: bool) -> MeasuredRun {
        let Contender { workload, threads, pipeline, .. } = self;
        let metrics = folder.join("torch.jsonl");
        let _ = std::fs::remove_file(&metrics);
        let settings = json!({
            "folder": folder,
            "sequences": SEQUENCES,
            "length": LENGTH,
            "microbatches": workload.microbatches,
            "steps": steps + 1000,
            "threads": threads,
            "precision": self.precision(),
            "compile": compiled,
            "fused": fused,
            "learningRate": LEARNING_RATE,
            "weightDecay": WEIGHT_DECAY,
            "clipNorm": CLIP_NORM,
            "schedule": pipeline.schedule,
            "dataParallel": pipeline.data_parallel,
            "split": pipeline.split,
            "metrics": metrics,
        });
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let started = Instant::now();
        let rank = |rank: usize| {
            let log = folder.join(format!("torch-{rank}.log"));
            let mut command = python(&settings);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", pipeline.processes().to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            command.env("TORCHINDUCTOR_CACHE_DIR", folder.join("inductor"));
            Process::start(command, &log).unwrap()
        };
        let mut ranks: Vec<Process> = (0..pipeline.processes()).map(rank).collect();
        MeasuredRun::watch(started, &metrics, steps, || {
            for rank in &mut ranks {
                assert!(rank.ended().is_none(), "{} ended: see {}", self.name, folder.display());
            }
            ranks.iter().map(Process::id).collect()
        })
    }
}

/// Returns the command of PyTorch's trainer with these settings.
pub(super) fn python(settings: &Value) -> Command {
    let mut command = Command::new("python3");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/torch/train.py");
    command.arg(script).arg(settings.to_string()).stdin(Stdio::null());
    // without this variable, gloo looks up the address of the host's name, and some machines have no such address
    command.env("GLOO_SOCKET_IFNAME", "lo").env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Returns the version of PyTorch.
pub(super) fn torch_version() -> String {
    let output = Command::new("python3").args(["-c", "import torch; print(torch.__version__)"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
