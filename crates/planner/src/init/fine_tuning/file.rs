//! The file of a fine-tuning job, with a comment that explains each number.

use stagecoach_display::duration;

use super::super::file::{count, data_paths, float, quoted};
use super::super::sizes::SECONDS;
use super::super::{Facts, MEMORY_SHARE};
use super::SourceModel;
use super::sizes::{Method, Sizes};

/// The job as YAML.
pub(super) fn job_file(facts: &Facts, model: &SourceModel, sizes: &Sizes) -> String {
    [head(facts, model, sizes), data(facts, model, sizes), training(facts, sizes)].concat()
}

fn head(facts: &Facts, model: &SourceModel, sizes: &Sizes) -> String {
    format!(
        "# Written by `stagecoach init --from` for {corpus}, about {tokens} tokens,
# for a model of {parameters} parameters, and for {machine}.
# The rule: full fine-tuning on the longest sequences that model and corpus allow, if its stages are planned to use at
# most {share:.0}% of the memory, otherwise adapters on the longest that fit, for three passes over the corpus or {minutes}.
# Chosen: {method}. Estimates are rough: change what you know better.
# `stagecoach plan` shows partition, timeline and memory.
apiVersion: stagecoach.dev/v1alpha1
kind: PipelineJob
metadata:
  name: {name}  # also its folder in the workspace: checkpoints, metrics, logs
spec:
  stages: {stages}  # {why_stages}
  model:
    type: Pretrained
    pretrained:
      path: {path}  # below the workspace: configuration and weights
",
        corpus = facts.corpus(),
        tokens = count(sizes.tokens),
        parameters = count(model.parameters as f64),
        machine = facts.machine(),
        method = sizes.method.name(),
        share = 100.0 * MEMORY_SHARE,
        minutes = duration(SECONDS),
        name = quoted(&facts.name),
        stages = sizes.stages,
        why_stages = facts.why_stages(),
        path = quoted(&model.path),
    )
}

fn data(facts: &Facts, model: &SourceModel, sizes: &Sizes) -> String {
    format!(
        "{paths}    sequenceLength: {length}  # the model allows {allowed}; shorter for a small corpus, and at most 512 on CPUs, 2048 on GPUs
    evaluation:
      fraction: {fraction}  # held out to measure the model on: less of a larger corpus
      everySteps: {interval}  # five times in the run
      maxSequences: 256  # so that measuring takes little of the time
      keepBest: true  # a model that is trained already begins to memorise soon
    tokenizer:
      type: File
      file:
        path: {tokenizer}  # the model's own; the files beside it name its special tokens
",
        paths = data_paths(facts),
        length = sizes.sequence_length,
        allowed = model.max_position_embeddings,
        fraction = sizes.evaluation_fraction,
        interval = sizes.interval,
        tokenizer = quoted(&model.tokenizer()),
    )
}

fn training(facts: &Facts, sizes: &Sizes) -> String {
    let precision = match facts.gpus {
        0 => "",
        _ => {
            "    precision: BFloat16  # products in bf16, weights and moments in fp32: twice as fast, half the memory of activations\n"
        }
    };
    format!(
        "  training:
    steps: {steps}  # about {seconds} and {epochs:.1} passes over the corpus, by estimate; 20 to 2000
    globalBatchSize: {batch}  # sequences of a step: {rows} for each microbatch
    microbatches: {microbatches}  # at least two for each stage, and eight, so that the pipeline is filled
{precision}    threads: {threads}  # processors by stages, at most 4
    gradientClipNorm: 1.0  # keeps a single batch from throwing the model off
{lora}    learningRate:
      peak: {peak}  # for {method}: {why_peak}
      warmupSteps: {warmup}  # a tenth of the steps
      schedule: Cosine
      floor: {floor}  # a tenth of the peak
  pipeline:
    schedule: {{type: 1F1B}}  # memory for as many microbatches as there are stages; Auto lets the planner choose
  checkpoint:
    everySteps: {interval}  # so that a stop or a crash costs a fifth of the run at most
    keepLast: 2  # the newest, and one before it
",
        steps = sizes.steps,
        seconds = duration(sizes.seconds),
        epochs = sizes.epochs,
        batch = sizes.batch,
        rows = sizes.batch / sizes.microbatches,
        microbatches = sizes.microbatches,
        threads = sizes.threads,
        lora = match sizes.method {
            Method::Full => "",
            Method::Lora =>
                "    lora: {rank: 16, alpha: 32}  # adapters of all linear layers, scaled by alpha / rank\n",
        },
        peak = float(sizes.learning_rate),
        method = sizes.method.name(),
        why_peak = match sizes.method {
            Method::Full => "the larger the model, the lower",
            Method::Lora => "about ten times the rate of all weights",
        },
        warmup = sizes.warmup_steps,
        floor = float(sizes.learning_rate / 10.0),
        interval = sizes.interval,
    )
}
