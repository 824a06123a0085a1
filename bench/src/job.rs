//! The jobs that are measured.

use std::path::Path;

use serde_json::Value;
use stagecoach_tests::fixture::records;
use stagecoach_tests::{Launched, stagecoach, until_within};

use crate::machine::memory;

/// The size of the Llama model of a measured job.
#[derive(Clone, Copy)]
pub(crate) enum ModelSize {
    /// About 0.2 million parameters.
    Small,
    /// 33 million parameters: 400 MB of weights and Adam moments.
    Large,
    /// 130 million parameters: 1.6 GB of weights and Adam moments.
    Largest,
}

impl ModelSize {
    fn yaml(self) -> &'static str {
        match self {
            ModelSize::Small => {
                "{hiddenSize: 64, numHiddenLayers: 4, numAttentionHeads: 4, intermediateSize: 128, vocabSize: 300}"
            }
            ModelSize::Large => {
                "{hiddenSize: 512, numHiddenLayers: 8, numAttentionHeads: 8, intermediateSize: 1376, vocabSize: 8000}"
            }
            ModelSize::Largest => {
                "{hiddenSize: 1024, numHiddenLayers: 9, numAttentionHeads: 8, intermediateSize: 2752, vocabSize: 8000}"
            }
        }
    }
}

/// The settings of a measured job.
pub(crate) struct BenchJob {
    pub(crate) name: &'static str,
    pub(crate) stages: usize,
    /// The number of replicas. The job may continue with only one of them.
    pub(crate) data_parallel: usize,
    pub(crate) model: ModelSize,
    pub(crate) steps: u64,
    /// The number of rows of a step. A row has 64 tokens, and a step has four microbatches.
    pub(crate) batch: u32,
    /// The value of `spec.checkpoint`, as YAML.
    pub(crate) checkpoint: &'static str,
    /// The value of `training.audit`, as YAML.
    pub(crate) audit: Option<&'static str>,
    /// The number of spares, which are waiting processes that replace lost stages.
    pub(crate) spares: u32,
    /// The value of `restart.reformTimeoutSeconds`.
    pub(crate) reform_timeout_seconds: u32,
}

impl Default for BenchJob {
    fn default() -> Self {
        BenchJob {
            name: "bench",
            stages: 2,
            data_parallel: 1,
            model: ModelSize::Large,
            steps: 1_000_000,
            batch: 4,
            checkpoint: "{everySteps: 0}",
            audit: None,
            spares: 0,
            reform_timeout_seconds: 120,
        }
    }
}

impl BenchJob {
    fn yaml(&self) -> String {
        let BenchJob { name, stages, data_parallel, model, steps, batch, checkpoint, audit, spares, .. } = self;
        let reform_timeout_seconds = self.reform_timeout_seconds;
        let audit = audit.map_or_else(String::new, |audit| format!("\n    audit: {audit}"));
        let llama = model.yaml();
        format!(
            "apiVersion: stagecoach.dev/v1alpha1
kind: PipelineJob
metadata: {{name: {name}}}
spec:
  stages: {stages}
  dataParallel: {data_parallel}
  spares: {spares}
  model: {{type: Llama, llama: {llama}}}
  data:
    paths: [corpus/bench.jsonl]
    sequenceLength: 64
    tokenizer: {{type: Train, train: {{vocabSize: 300}}}}
  training:
    steps: {steps}
    globalBatchSize: {batch}
    microbatches: 4
    learningRate: {{peak: 1e-3, warmupSteps: 5, decaySteps: 100000}}{audit}
  checkpoint: {checkpoint}
  restart: {{maxRestarts: 100, backoff: {{initialSeconds: 0}}, reformTimeoutSeconds: {reform_timeout_seconds}, minDataParallel: 1}}
"
        )
    }

    /// Starts the job.
    pub(crate) fn start(&self, folder: &Path) -> Launched {
        self.start_program(&stagecoach(), folder, &[])
    }

    /// Starts the job with another binary of the trainer and with these variables in its environment.
    pub(crate) fn start_program(&self, program: &Path, folder: &Path, environment: &[(&str, &str)]) -> Launched {
        let file = folder.join(format!("{}.yaml", self.name));
        std::fs::write(&file, self.yaml()).unwrap();
        Launched::start_program(program, folder, &file, folder.join(self.name), &[], environment)
    }

    /// Runs the job to its end. Returns the peak resident memory, summed over the stages, in bytes.
    pub(crate) fn run(&self, folder: &Path) -> u64 {
        let mut launched = self.start(folder);
        let mut peak = 0;
        let status = until_within("the end of a job", 2400, || {
            // `memory` returns `None` for a stage that has ended
            let peaks = launched.stages().into_iter().filter_map(|stage| memory(stage, "VmHWM:"));
            peak = peak.max(peaks.sum::<u64>() * 1024);
            launched.child.try_wait().unwrap()
        });
        assert!(status.success(), "{}: {status}", self.name);
        peak
    }

    /// Returns the lines of the job's metrics.
    pub(crate) fn metrics(&self, folder: &Path) -> Vec<Value> {
        records(&folder.join(self.name))
    }
}

/// Returns the complete lines of a file of JSON lines that a running job writes, such as its metrics. A missing file has
/// no lines yet.
pub(crate) fn json_lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
