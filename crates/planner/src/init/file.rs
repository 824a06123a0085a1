//! The text of the job file, with a comment that explains each number.

use std::fmt::Write;

use indicatif::{DecimalBytes, HumanBytes};
use stagecoach_data::RecordForm;
use stagecoach_display::duration;

use super::sizes::{PretrainingSizes, SECONDS, TrainingSizes};
use super::{Facts, MEMORY_SHARE};

/// Returns the job as YAML.
pub(super) fn job_file(facts: &Facts, sizes: &PretrainingSizes) -> String {
    let mut text = String::new();
    // writing to a string can't fail
    let _ = write!(text, "{}{}{}{}", head(facts, sizes), model(sizes), data(facts, sizes), training(facts, sizes));
    text
}

fn head(facts: &Facts, sizes: &PretrainingSizes) -> String {
    format!(
        "# Written by `stagecoach init` for {corpus}, about {tokens} tokens,
# and for {machine}.
# The model is the largest of nine models that meet three conditions. Its layers have at most two parameters for each
# token of the corpus. It trains 200 steps within {minutes}. The plan of its stages uses at most {share:.0}% of the
# memory. Estimates are rough: change what you know better. `stagecoach plan` shows partition, timeline and memory.
apiVersion: stagecoach.dev/v1alpha1
kind: PipelineJob
metadata:
  name: {name}  # also its folder in the workspace: checkpoints, metrics, logs
spec:
  stages: {stages}  # {why_stages}
",
        corpus = facts.corpus(),
        machine = facts.machine(),
        tokens = count(sizes.training.tokens),
        minutes = duration(SECONDS),
        share = 100.0 * MEMORY_SHARE,
        name = quoted(&facts.name),
        stages = sizes.training.stages,
        why_stages = facts.why_stages(),
    )
}

fn model(sizes: &PretrainingSizes) -> String {
    format!(
        "  model:
    type: Llama
    llama:  # about {parameters} parameters, embedding and head included
      hiddenSize: {hidden}  # a multiple of the heads; by the rule above
      numHiddenLayers: {layers}  # grows with the hidden size; at least one for each stage
      numAttentionHeads: {heads}  # heads of {head_dim}
      numKeyValueHeads: {kv_heads}  # one for every two query heads: less memory for keys and values
      intermediateSize: {intermediate}  # 8/3 of the hidden size, rounded up to whole vectors of 32
      maxPositionEmbeddings: {length}  # as long as the sequences
",
        parameters = count(sizes.parameters),
        hidden = sizes.shape.hidden_size,
        layers = sizes.layers,
        heads = sizes.shape.heads,
        head_dim = sizes.shape.hidden_size / sizes.shape.heads,
        kv_heads = sizes.shape.heads / 2,
        intermediate = sizes.intermediate_size,
        length = sizes.training.sequence_length,
    )
}

fn data(facts: &Facts, sizes: &PretrainingSizes) -> String {
    format!(
        "{paths}    sequenceLength: {length}  # the longest length of which the corpus has a thousand sequences; at least 16, and at most 128 on CPUs and 512 on GPUs
    evaluation:
      fraction: {fraction}  # the share held out for evaluation, smaller for a larger corpus
      everySteps: {interval}  # five times in the run
      maxSequences: 256  # limits the time that evaluations take
    tokenizer:
      type: Train
      train:
        vocabSize: {vocab}  # grows with the corpus, and with the model: embedding and head have a row for each token
",
        paths = data_paths(facts),
        length = sizes.training.sequence_length,
        fraction = sizes.training.evaluation_fraction,
        interval = sizes.training.interval,
        vocab = sizes.vocab_size,
    )
}

/// Returns the first lines of `data`: the paths, the format and the field of text.
pub(super) fn data_paths(facts: &Facts) -> String {
    let mut text = "  data:\n    paths:  # below the workspace\n".to_owned();
    for pattern in &facts.texts.patterns {
        let _ = writeln!(text, "      - {}", quoted(pattern));
    }
    let format = match (&facts.texts.field, &facts.texts.form) {
        (None, RecordForm::Conversation(_)) => "    format: Chat  # the assistant's messages are trained on\n",
        (None, RecordForm::PromptAndCompletion) => "    format: PromptCompletion  # the completions are trained on\n",
        (_, _) => "",
    };
    text += format;
    if !format.is_empty() {
        text +=
            "    onLongConversation: Truncate  # longer than sequenceLength: cut at the end of a turn, and counted\n";
    }
    if let Some(field) = &facts.texts.field {
        let _ = writeln!(text, "    textField: {}  # the field or column of the documents' text", quoted(field));
    }
    text
}

fn training(facts: &Facts, sizes: &PretrainingSizes) -> String {
    let seconds = duration(sizes.training.seconds);
    let words = TrainingWords {
        why_steps: format!("about {seconds}, by estimate; 50 to 2000, and at most 20 passes over the corpus"),
        why_threads: match facts.processors >= 2 * sizes.training.stages as usize {
            true => "processors by stages, at most 4",
            false => "fewer than two processors for each stage",
        },
        precision: "",
        lora: "",
        peak: sizes.training.learning_rate.to_string(),
        why_peak: "the wider the model, the lower".to_owned(),
    };
    words.with(&sizes.training)
}

/// The parts of `training` that differ between a job from scratch and a fine-tuning job.
pub(super) struct TrainingWords {
    pub(super) why_steps: String,
    pub(super) why_threads: &'static str,
    /// The line with `precision`; empty if the file leaves it out.
    pub(super) precision: &'static str,
    /// The lines with `lora`; empty if the job trains no adapters.
    pub(super) lora: &'static str,
    /// The peak of the learning rate.
    pub(super) peak: String,
    pub(super) why_peak: String,
}

impl TrainingWords {
    /// Returns the end of a job file: `training`, `pipeline` and `checkpoint`.
    pub(super) fn with(&self, sizes: &TrainingSizes) -> String {
        let TrainingWords { why_steps, why_threads, precision, lora, peak, why_peak } = self;
        let TrainingSizes { batch, microbatches, threads, steps, warmup_steps, interval, .. } = sizes;
        format!(
            "  training:
    steps: {steps}  # {why_steps}
    globalBatchSize: {batch}  # sequences of a step: {rows} for each microbatch
    microbatches: {microbatches}  # at least two for each stage, and eight, so that the pipeline is filled
{precision}    threads: {threads}  # {why_threads}
    gradientClipNorm: 1.0  # keeps a single batch from throwing the model off
{lora}    learningRate:
      peak: {peak}  # {why_peak}
      warmupSteps: {warmup_steps}  # a tenth of the steps
      schedule: Cosine
      floor: {floor}  # a tenth of the peak
  pipeline:
    schedule: {{type: 1F1B}}  # memory for as many microbatches as there are stages; Auto lets the planner choose
  checkpoint:
    everySteps: {interval}  # so that a stop or a crash costs a fifth of the run at most
    keepLast: 2  # the newest, and one before it
",
            rows = batch / microbatches,
            floor = float(sizes.learning_rate / 10.0),
        )
    }
}

impl Facts {
    /// Describes the corpus for the user.
    pub fn corpus(&self) -> String {
        format!("{} of text in {}", DecimalBytes(self.texts.bytes), plural(self.texts.files, "file"))
    }

    /// Returns the reason for the number of stages, for the user.
    pub(super) fn why_stages(&self) -> &'static str {
        match (self.stages, self.gpus) {
            (Some(_), _) => "set by --stages",
            (None, 2..) => "one for each GPU; fewer if the memory has no room for as many processes",
            (None, _) => {
                "with fewer than two GPUs: 3 on at least three processors, otherwise 2; fewer if the memory has no \
                 room for as many processes"
            }
        }
    }

    /// Describes the machine's hardware for the user.
    pub fn machine(&self) -> String {
        let Facts { gpus, processors, memory_bytes, .. } = self;
        let memory = HumanBytes(*memory_bytes);
        format!("{}, {} and {memory} of memory", plural(*processors, "processor"), plural(*gpus, "GPU"))
    }
}

pub(super) fn plural(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Quotes a string of any content for YAML. A JSON string is also a YAML string.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Formats a number with two significant digits.
pub(super) fn float(value: f64) -> String {
    format!("{value:.1e}")
}

/// Formats a number in words, rounded for users.
pub(super) fn count(number: f64) -> String {
    match number {
        number if number >= 1e9 => format!("{:.1} billion", number / 1e9),
        number if number >= 1e6 => format!("{:.1} million", number / 1e6),
        number => format!("{:.0} thousand", (number / 1e3).max(1.0)),
    }
}
