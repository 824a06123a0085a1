//! A job that trains in a second, with the fields that tests vary.

use crate::nccl;

/// The fields of a small job. [`TestJob::yaml`] writes them as a job file.
#[derive(Clone, Debug)]
pub struct TestJob {
    /// `metadata.name`, which also names the job's folder.
    pub name: String,
    /// The number of stages.
    pub stages: usize,
    /// The number of replicas of the pipeline.
    pub data_parallel: usize,
    /// The number of decoder layers.
    pub layers: usize,
    /// The schedule, by its name in torch.
    pub schedule: &'static str,
    /// The number of chunks of each stage.
    pub virtual_stages: usize,
    /// An explicit partition, or `None` for `Auto`.
    pub partition: Option<Vec<usize>>,
    /// `Tcp`, `Shm`, `Auto` or `Nccl`. With `Nccl`, the stages load `tests/nccl` instead of NCCL: a library that needs
    /// no GPU.
    pub transport: &'static str,
    /// `None`, `Selective` or `Full`.
    pub recompute: &'static str,
    /// `Auto`, `Cpu` or `Cuda`.
    pub device: &'static str,
    /// `Fastest` or `Portable`.
    pub kernels: &'static str,
    /// `Float32` or `BFloat16`.
    pub precision: &'static str,
    /// The location of the corpus: `paths` or `sources`, as YAML on one line.
    pub corpus: String,
    /// The held-out part, as YAML on one line.
    pub evaluation: String,
    /// Whether sequences are packed. Without packing, each row has one padded document.
    pub packing: bool,
    /// Whether the head and the embedding share one weight.
    pub tied: bool,
    /// The number of rows of each step.
    pub global_batch_size: u32,
    /// The number of microbatches of each step.
    pub microbatches: u32,
    /// `training.gradientBlocks`: the number of groups of consecutive microbatches whose gradients are added
    /// separately.
    pub gradient_blocks: u32,
    /// The number of steps.
    pub steps: u64,
    /// The step at which the learning rate's decay ends, or `None` for the last step. With an explicit step, jobs that
    /// differ only in `steps` can resume from each other's checkpoints.
    pub decay_steps: Option<u64>,
    /// Lines to add below `spec:`, with an indentation of two.
    pub extra: String,
}

impl Default for TestJob {
    fn default() -> TestJob {
        TestJob {
            name: "small".into(),
            stages: 3,
            data_parallel: 1,
            layers: 4,
            schedule: "1F1B",
            virtual_stages: 1,
            partition: None,
            transport: "Auto",
            recompute: "None",
            device: "Auto",
            kernels: "Fastest",
            precision: "Float32",
            corpus: "paths: [corpus/small.jsonl]".into(),
            evaluation: "{fraction: 0.1, everySteps: 10}".into(),
            packing: true,
            tied: false,
            global_batch_size: 12,
            microbatches: 4,
            gradient_blocks: 1,
            steps: 20,
            decay_steps: None,
            extra: String::new(),
        }
    }
}

/// A number of steps that no machine completes during a test.
const ENDLESS: u64 = 1_000_000;
/// [`TestJob::ending_after`] rounds the last step up to a multiple of this number, so that many tests can compare their
/// results with the same run without faults.
const END: u64 = 40;

impl TestJob {
    /// Returns this job without an end: even a fast machine does not finish it before the test disturbs it.
    ///
    /// # Panics
    /// If the job's learning rate depends on the number of steps, since then no other job could resume from its
    /// checkpoints.
    pub fn endless(&self) -> TestJob {
        assert!(self.decay_steps.is_some(), "decay_steps is None");
        TestJob { steps: ENDLESS, ..self.clone() }
    }

    /// Returns this job with an end soon after step `saved`, at least 10 steps later.
    ///
    /// # Panics
    /// Like [`TestJob::endless`].
    pub fn ending_after(&self, saved: u64) -> TestJob {
        TestJob { steps: (saved + 10).next_multiple_of(END), ..self.endless() }
    }

    /// Returns the environment variables of the job's processes.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let is_nccl = self.transport == "Nccl";
        is_nccl.then(|| (nccl::LOADER_PATH, nccl::loader_path())).into_iter().collect()
    }

    /// Returns the job file with `model` (YAML, indented by two) as its model, and with the tokenizer file `tokenizer`.
    pub fn yaml_with(&self, model: &str, tokenizer: &str) -> String {
        let yaml = self.yaml();
        let (from, to) = (yaml.find("  model:").unwrap(), yaml.find("  data:").unwrap());
        let tokenizer = format!("{{type: File, file: {{path: {tokenizer}}}}}");
        format!("{}{model}{}", &yaml[..from], &yaml[to..]).replace("{type: Train, train: {vocabSize: 300}}", &tokenizer)
    }

    /// Returns the job file.
    pub fn yaml(&self) -> String {
        let TestJob { name, stages, layers, schedule, partition, transport, recompute, precision, .. } = self;
        let TestJob { virtual_stages, corpus, evaluation, packing, tied, steps, decay_steps, extra, .. } = self;
        let TestJob { global_batch_size, microbatches, gradient_blocks, data_parallel, .. } = self;
        // some tests count the lines of a job file, so blocks, replicas, device and kernels have no line if they are
        // the default
        let device = Some(self.device).filter(|device| *device != "Auto");
        let device = device.map(|device| format!("\n    device: {device}")).unwrap_or_default();
        let kernels = Some(self.kernels).filter(|kernels| *kernels != "Fastest");
        let kernels = kernels.map(|kernels| format!("\n    kernels: {kernels}")).unwrap_or_default();
        let blocks = Some(gradient_blocks).filter(|blocks| **blocks != 1);
        let blocks = blocks.map(|blocks| format!("\n    gradientBlocks: {blocks}")).unwrap_or_default();
        let replicas = Some(data_parallel).filter(|replicas| **replicas != 1);
        let replicas = replicas.map(|replicas| format!("\n  dataParallel: {replicas}")).unwrap_or_default();
        let decay_steps = decay_steps.map(|step| format!(", decaySteps: {step}")).unwrap_or_default();
        let partition = match partition {
            Some(layers) => format!("{{strategy: Explicit, layers: {layers:?}}}"),
            None => "{strategy: Auto}".into(),
        };
        format!(
            "apiVersion: stagecoach.dev/v1alpha1
kind: PipelineJob
metadata: {{name: {name}}}
spec:
  stages: {stages}{replicas}
  model:
    type: Llama
    llama: {{hiddenSize: 32, numHiddenLayers: {layers}, numAttentionHeads: 4, numKeyValueHeads: 2, intermediateSize: 48,
            maxPositionEmbeddings: 64, tieWordEmbeddings: {tied}, initializerRange: 0.1}}
  data:
    {corpus}
    sequenceLength: 24
    packing: {packing}
    evaluation: {evaluation}
    tokenizer: {{type: Train, train: {{vocabSize: 300}}}}
  training:
    steps: {steps}
    precision: {precision}{device}{kernels}
    globalBatchSize: {global_batch_size}
    microbatches: {microbatches}{blocks}
    gradientClipNorm: 0.7
    learningRate: {{peak: 1e-2, warmupSteps: 5, warmupStart: 0.1, floor: 1e-3{decay_steps}}}
    optimizer: {{type: AdamW, adamW: {{weightDecay: 0.1}}}}
  pipeline:
    schedule: {{type: {schedule}}}
    virtualStages: {virtual_stages}
    partition: {partition}
    transport: {transport}
    recompute: {recompute}
{extra}"
        )
    }
}
