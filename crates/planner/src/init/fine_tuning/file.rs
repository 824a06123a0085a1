//! The text of the file of a fine-tuning job, with a comment that explains each number.

use stagecoach_display::duration;

use super::super::file::{TrainingWords, count, data_paths, float, quoted};
use super::super::sizes::SECONDS;
use super::super::{Facts, MEMORY_SHARE};
use super::SourceModel;
use super::sizes::{FineTuningSizes, Method};

/// Returns the job as YAML.
pub(super) fn job_file(facts: &Facts, model: &SourceModel, sizes: &FineTuningSizes) -> String {
    [head(facts, model, sizes), data(facts, model, sizes), training(facts, sizes)].concat()
}

fn head(facts: &Facts, model: &SourceModel, sizes: &FineTuningSizes) -> String {
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
        tokens = count(sizes.training.tokens),
        parameters = count(model.parameters as f64),
        machine = facts.machine(),
        method = sizes.method.name(),
        share = 100.0 * MEMORY_SHARE,
        minutes = duration(SECONDS),
        name = quoted(&facts.name),
        stages = sizes.training.stages,
        why_stages = facts.why_stages(),
        path = quoted(&model.path),
    )
}

fn data(facts: &Facts, model: &SourceModel, sizes: &FineTuningSizes) -> String {
    format!(
        "{paths}    sequenceLength: {length}  # the model allows {allowed}; shorter for a small corpus, and at most 512 on CPUs, 2048 on GPUs
    evaluation:
      fraction: {fraction}  # the share held out for evaluation, smaller for a larger corpus
      everySteps: {interval}  # five times in the run
      maxSequences: 256  # limits the time that evaluations take
      keepBest: true  # keeps the checkpoint with the lowest held-out loss, because a pretrained model soon begins to memorise
    tokenizer:
      type: File
      file:
        path: {tokenizer}  # the model's own; the files beside it name its special tokens
",
        paths = data_paths(facts),
        length = sizes.training.sequence_length,
        allowed = model.max_position_embeddings,
        fraction = sizes.training.evaluation_fraction,
        interval = sizes.training.interval,
        tokenizer = quoted(&model.tokenizer()),
    )
}

fn training(facts: &Facts, sizes: &FineTuningSizes) -> String {
    let (seconds, epochs) = (duration(sizes.training.seconds), sizes.epochs);
    let words = TrainingWords {
        why_steps: format!("about {seconds} and {epochs:.1} passes over the corpus, by estimate; 20 to 2000"),
        why_threads: "processors by stages, at most 4",
        precision: match facts.gpus {
            0 => "",
            _ => {
                "    precision: BFloat16  # products in bf16, weights and moments in fp32: twice as fast, half the \
                 memory of activations\n"
            }
        },
        lora: match sizes.method {
            Method::Full => "",
            Method::Lora => {
                "    lora: {rank: 16, alpha: 32}  # adapters of all linear layers, scaled by alpha / rank\n"
            }
        },
        peak: float(sizes.training.learning_rate),
        why_peak: match sizes.method {
            Method::Full => format!("for {}: the larger the model, the lower", sizes.method.name()),
            Method::Lora => format!("for {}: about ten times the rate of all weights", sizes.method.name()),
        },
    };
    words.with(&sizes.training)
}
