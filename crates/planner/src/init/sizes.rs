//! The rules that choose a job's numbers.

use super::Facts;

/// The shape of a model that a proposed job can have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ModelShape {
    pub(super) hidden_size: u32,
    pub(super) layers: u32,
    pub(super) heads: u32,
    /// The largest size of the vocabulary. Embedding and head have a row for each token, and should not have many more
    /// parameters than the layers.
    pub(super) most_tokens: u32,
    /// The peak of the learning rate, which is lower for wider models.
    pub(super) learning_rate: f64,
}

const fn shape(hidden_size: u32, layers: u32, heads: u32, most_tokens: u32, learning_rate: f64) -> ModelShape {
    ModelShape { hidden_size, layers, heads, most_tokens, learning_rate }
}

pub(super) const SHAPES: [ModelShape; 9] = [
    shape(64, 4, 2, 1024, 5e-3),
    shape(128, 4, 4, 2048, 4e-3),
    shape(192, 6, 6, 4096, 3e-3),
    shape(256, 8, 8, 8192, 2e-3),
    shape(384, 8, 6, 16384, 1e-3),
    shape(512, 10, 8, 16384, 1e-3),
    shape(768, 12, 12, 32768, 6e-4),
    shape(1024, 16, 16, 32768, 4e-4),
    shape(2048, 24, 32, 32768, 3e-4),
];

/// The longest duration of a first run, in seconds.
pub(super) const SECONDS: f64 = 300.0;
/// Assumed floating-point operations per second of a processor and of a GPU: well below their peak.
const PROCESSOR_FLOPS: f64 = 4e10;
const GPU_FLOPS: f64 = 1e13;
/// The seconds of a step without its arithmetic.
const STEP_SECONDS: f64 = 0.03;
/// The largest number of processors for one stage. The operations of a small model do not scale to more processors.
const MOST_THREADS: usize = 4;
/// The number of steps that must fit into the duration of a first run. After fewer steps, a model has learned little.
const LEAST_STEPS: f64 = 200.0;
const MOST_STEPS: f64 = 2000.0;
/// The largest number of passes over a small corpus. With more passes, the model would memorise the corpus.
const MOST_EPOCHS: f64 = 20.0;

/// The numbers that every proposed job has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TrainingSizes {
    pub(super) stages: u32,
    pub(super) sequence_length: u32,
    pub(super) batch: u32,
    pub(super) microbatches: u32,
    pub(super) threads: u32,
    /// The peak of the learning rate.
    pub(super) learning_rate: f64,
    pub(super) steps: u32,
    pub(super) warmup_steps: u32,
    /// The number of steps between two evaluations, and between two checkpoints.
    pub(super) interval: u32,
    pub(super) evaluation_fraction: f64,
    /// The estimated number of tokens of the corpus.
    pub(super) tokens: f64,
    /// The estimated duration of the run, in seconds.
    pub(super) seconds: f64,
}

impl TrainingSizes {
    /// Returns the numbers of a job of 0 steps. Each microbatch has `rows` sequences.
    pub(super) fn of_step(
        facts: &Facts,
        stages: u32,
        sequence_length: u32,
        rows: u32,
        learning_rate: f64,
        tokens: f64,
    ) -> TrainingSizes {
        let microbatches = microbatches(stages);
        TrainingSizes {
            stages,
            sequence_length,
            batch: microbatches * rows,
            microbatches,
            threads: (facts.processors / stages as usize).clamp(1, MOST_THREADS) as u32,
            learning_rate,
            steps: 0,
            warmup_steps: 0,
            interval: 0,
            evaluation_fraction: evaluation_fraction(tokens),
            tokens,
            seconds: 0.0,
        }
    }

    /// Returns these numbers with the number of steps: `by_epochs`, or the number that fits into [`SECONDS`] if this
    /// number is smaller. The number is at least `least`, at most [`MOST_STEPS`], and a multiple of `multiple`.
    pub(super) fn with_steps(
        self,
        facts: &Facts,
        parameters: f64,
        by_epochs: f64,
        least: u32,
        multiple: u32,
    ) -> TrainingSizes {
        let seconds_of_step = self.seconds_of_step(facts, parameters);
        let steps = by_epochs.min(SECONDS / seconds_of_step).clamp(f64::from(least), MOST_STEPS);
        let steps = (steps / f64::from(multiple)).floor() as u32 * multiple;
        TrainingSizes {
            steps,
            warmup_steps: (steps / 10).max(1),
            interval: steps / 5,
            seconds: seconds_of_step * f64::from(steps),
            ..self
        }
    }

    /// Returns the number of tokens that a step trains on.
    pub(super) fn tokens_of_step(&self) -> f64 {
        f64::from(self.batch) * f64::from(self.sequence_length)
    }

    /// Estimates the seconds of a step of a model of `parameters` parameters. The forward and backward pass take six
    /// operations for each parameter and token.
    fn seconds_of_step(&self, facts: &Facts, parameters: f64) -> f64 {
        let flops = match facts.gpus {
            0 => PROCESSOR_FLOPS * (facts.processors.max(1) as f64).min(f64::from(self.stages * self.threads)),
            gpus => GPU_FLOPS * gpus.min(self.stages as usize) as f64,
        };
        STEP_SECONDS + 6.0 * parameters * self.tokens_of_step() / flops
    }
}

/// Returns the number of microbatches of a step.
pub(super) fn microbatches(stages: u32) -> u32 {
    (2 * stages).next_power_of_two().max(8)
}

/// The numbers of a job that trains a model from scratch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PretrainingSizes {
    pub(super) shape: ModelShape,
    pub(super) layers: u32,
    pub(super) intermediate_size: u32,
    pub(super) vocab_size: u32,
    /// The number of parameters, including embedding and head.
    pub(super) parameters: f64,
    pub(super) training: TrainingSizes,
}

impl PretrainingSizes {
    pub(super) fn new(facts: &Facts, shape: &ModelShape, stages: u32) -> PretrainingSizes {
        let bytes = facts.texts.bytes as f64;
        let (by_corpus, bytes_per_token) = vocabulary(bytes);
        let vocab_size = by_corpus.min(shape.most_tokens);
        let tokens = bytes / bytes_per_token;
        // the corpus has enough sequences that no step trains on a sequence twice
        let sequence_length = [512.0, 256.0, 128.0, 64.0, 32.0].into_iter().find(|length| tokens >= 1000.0 * length);
        let sequence_length = match (facts.gpus, sequence_length) {
            (0, length) => length.unwrap_or(16.0).min(128.0),
            (_, length) => length.unwrap_or(16.0),
        };
        let rows = if sequence_length < 64.0 { 2 } else { 4 };
        let (hidden, layers) = (f64::from(shape.hidden_size), shape.layers.max(stages));
        // 8/3 of the hidden size, as in Llama, rounded up to a multiple of 32
        let intermediate_size = (8 * shape.hidden_size / 3).next_multiple_of(32);
        let layer_parameters = 3.0 * hidden * hidden + 3.0 * hidden * f64::from(intermediate_size) + 2.0 * hidden;
        let parameters = f64::from(layers) * layer_parameters + (2.0 * f64::from(vocab_size) + 1.0) * hidden;
        let step = TrainingSizes::of_step(facts, stages, sequence_length as u32, rows, shape.learning_rate, tokens);
        let by_epochs = MOST_EPOCHS * tokens / step.tokens_of_step();
        let training = step.with_steps(facts, parameters, by_epochs, 50, 50);
        PretrainingSizes { shape: *shape, layers, intermediate_size, vocab_size, parameters, training }
    }

    /// Whether the layers have at most two parameters for each token of the corpus, and `LEAST_STEPS` steps fit into
    /// [`SECONDS`].
    pub(super) fn is_trained_in_time(&self, facts: &Facts) -> bool {
        let seconds = LEAST_STEPS * self.training.seconds_of_step(facts, self.parameters);
        let layer_parameters = self.parameters - 2.0 * f64::from(self.vocab_size) * f64::from(self.shape.hidden_size);
        seconds <= SECONDS && layer_parameters <= 2.0 * self.training.tokens
    }
}

/// Returns the share of a corpus of `tokens` tokens that the job holds out.
fn evaluation_fraction(tokens: f64) -> f64 {
    match tokens {
        tokens if tokens < 1e6 => 0.05,
        tokens if tokens < 1e8 => 0.02,
        _ => 0.005,
    }
}

/// Returns the preferred number of stages: one for each GPU if there are at least two; otherwise two, or three if there
/// are at least three processors.
pub(super) fn wanted_stages(facts: &Facts) -> u32 {
    match (facts.gpus, facts.processors) {
        (gpus, _) if gpus >= 2 => gpus.min(64) as u32,
        (_, processors) if processors >= 3 => 3,
        _ => 2,
    }
}

/// Returns the size of the vocabulary for a corpus, and the approximate number of bytes per token.
fn vocabulary(bytes: f64) -> (u32, f64) {
    match bytes {
        bytes if bytes < 1e5 => (384, 1.5),
        bytes if bytes < 1e6 => (1024, 2.2),
        bytes if bytes < 3e6 => (2048, 2.8),
        bytes if bytes < 3e7 => (4096, 3.3),
        bytes if bytes < 3e8 => (8192, 3.7),
        bytes if bytes < 3e9 => (16384, 4.0),
        _ => (32768, 4.2),
    }
}
