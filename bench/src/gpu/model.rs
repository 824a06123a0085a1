//! The timed models. They are trained in bf16.

use serde_json::{Value, json};

use super::gpu_run::GpuRun;

#[derive(Clone)]
pub(super) struct GpuBenchModel {
    pub(super) name: &'static str,
    hidden: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
    intermediate: u64,
    vocabulary: u64,
    pub(super) length: u64,
    /// The number of rows (sequences) of a step. A step divides them into `microbatches` microbatches.
    pub(super) rows: u64,
    microbatches: u64,
    /// The model's speed is measured only if this number of seconds remains.
    pub(super) seconds: u64,
}

/// The model of manifests/samples/llama-12-layers.yaml.
const TWELVE_LAYERS: GpuBenchModel = GpuBenchModel {
    name: "llama-12-layers-2048",
    hidden: 768,
    layers: 12,
    heads: 12,
    kv_heads: 3,
    intermediate: 3072,
    vocabulary: 50_000,
    length: 2048,
    rows: 64,
    microbatches: 4,
    seconds: 20,
};

/// The timed models. Other measurements also split the first model into stages, and save it.
pub(super) const MODELS: [GpuBenchModel; 3] = [
    TWELVE_LAYERS,
    GpuBenchModel {
        name: "llama-1-billion-2048",
        hidden: 2048,
        layers: 16,
        heads: 16,
        kv_heads: 8,
        intermediate: 8192,
        rows: 32,
        microbatches: 8,
        seconds: 40,
        ..TWELVE_LAYERS
    },
    GpuBenchModel { name: "llama-12-layers-512", length: 512, rows: 256, ..TWELVE_LAYERS },
];

/// The layout and the settings with which a model is trained.
#[derive(Clone)]
pub(super) struct JobLayout {
    pub(super) name: &'static str,
    pub(super) stages: usize,
    pub(super) transport: &'static str,
    pub(super) steps: usize,
    pub(super) checkpoint: Value,
    /// Additional environment variables of the job's processes.
    pub(super) environment: Vec<(&'static str, String)>,
}

impl JobLayout {
    /// Returns a layout with an empty name, one stage and no checkpoints.
    pub(super) fn without_checkpoints() -> JobLayout {
        let checkpoint = json!({ "everySteps": 0 });
        JobLayout { name: "", stages: 1, transport: "Auto", steps: 8, checkpoint, environment: Vec::new() }
    }
}

impl GpuBenchModel {
    /// Returns the model that this run trains: a shrunk model in a rehearsal.
    pub(super) fn of_run(&self, run: &GpuRun) -> GpuBenchModel {
        if run.gpu().is_some() { self.clone() } else { self.shrunk() }
    }

    fn shrunk(&self) -> GpuBenchModel {
        let GpuBenchModel { name, heads, kv_heads, length, seconds, .. } = *self;
        GpuBenchModel {
            name,
            heads,
            kv_heads,
            hidden: heads * 8,
            layers: 3,
            intermediate: 128,
            vocabulary: 300,
            length: length / 32,
            rows: 8,
            microbatches: 4,
            seconds,
        }
    }

    /// Returns the job file, with the corpus of the run.
    pub(super) fn job(&self, layout: &JobLayout, device: &str) -> Value {
        let GpuBenchModel {
            hidden, layers, heads, kv_heads, intermediate, vocabulary, length, rows, microbatches, ..
        } = *self;
        json!({
            "apiVersion": "stagecoach.dev/v1alpha1",
            "kind": "PipelineJob",
            "metadata": { "name": self.job_name(layout) },
            "spec": {
                "stages": layout.stages,
                "model": { "type": "Llama", "llama": {
                    "hiddenSize": hidden, "numHiddenLayers": layers, "numAttentionHeads": heads,
                    "numKeyValueHeads": kv_heads, "intermediateSize": intermediate, "vocabSize": vocabulary,
                    "maxPositionEmbeddings": length,
                } },
                "data": {
                    "paths": ["corpus/long.jsonl"],
                    "sequenceLength": length,
                    "tokenizer": { "type": "Train", "train": { "vocabSize": 300 } },
                },
                "training": {
                    "steps": layout.steps, "globalBatchSize": rows, "microbatches": microbatches,
                    "device": device, "precision": "BFloat16",
                    "gradientClipNorm": 1.0, "learningRate": { "peak": 1e-4 },
                },
                "pipeline": { "transport": layout.transport },
                "checkpoint": layout.checkpoint,
            },
        })
    }

    pub(super) fn job_name(&self, layout: &JobLayout) -> String {
        format!("{}-{}", self.name, layout.name)
    }

    /// Returns the settings for `bench/torch/speed.py`.
    pub(super) fn torch_settings(&self, steps: usize, compile: bool) -> Value {
        let GpuBenchModel {
            hidden, layers, heads, kv_heads, intermediate, vocabulary, length, rows, microbatches, ..
        } = *self;
        json!({
            "config": {
                "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
                "num_key_value_heads": kv_heads, "intermediate_size": intermediate, "vocab_size": vocabulary,
                "max_position_embeddings": length, "rope_theta": 10_000.0, "rms_norm_eps": 1e-5,
            },
            "rows": rows, "length": length, "microbatches": microbatches, "steps": steps, "compile": compile,
        })
    }
}
