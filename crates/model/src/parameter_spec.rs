//! Specifications of weights, and the bytes that they and their state need.

use std::iter::Sum;

use stagecoach_api::job::Precision;

use super::initializer::Initializer;
use super::{ParameterCopies, names};

/// A weight's name, shape, initial value and role in training.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterSpec {
    /// Hugging Face's name, or PEFT's name for a matrix of an adapter. The name does not depend on the stage or the
    /// chunk.
    pub name: String,
    /// The shape of the value.
    pub shape: Vec<i64>,
    /// The initial value.
    pub initializer: Initializer,
    /// Whether weight decay applies by default: to the matrices of layers and head, not to norms, biases and
    /// embeddings.
    pub has_weight_decay: bool,
    /// Whether the weight's rows directly follow the rows of the previous weight in memory, so that one product uses
    /// both.
    pub adjacent_to_previous: bool,
    /// How training treats the weight.
    pub role: WeightRole,
}

/// How training treats a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WeightRole {
    /// A weight of the model that training updates.
    Trained,
    /// A weight of the model that training does not update.
    Frozen,
    /// A matrix of an adapter, which training updates. The adapter multiplies the product of its matrices by `scale`.
    Adapter {
        /// The factor of the product of the adapter's matrices.
        scale: f64,
    },
}

impl ParameterSpec {
    /// Describes a matrix `[rows, columns]` with weight decay, whose initial values have the standard deviation
    /// `deviation`.
    pub(crate) fn matrix(name: String, rows: usize, columns: usize, deviation: f64) -> ParameterSpec {
        ParameterSpec {
            name,
            shape: vec![rows as i64, columns as i64],
            initializer: Initializer::Normal(deviation),
            has_weight_decay: true,
            adjacent_to_previous: false,
            role: WeightRole::Trained,
        }
    }

    /// Describes a vector without weight decay.
    pub(crate) fn vector(name: String, width: usize, initializer: Initializer) -> ParameterSpec {
        ParameterSpec {
            name,
            shape: vec![width as i64],
            initializer,
            has_weight_decay: false,
            adjacent_to_previous: false,
            role: WeightRole::Trained,
        }
    }

    /// Returns the specification of the same weight, marked as adjacent: its rows directly follow the rows of the
    /// previous weight.
    pub(crate) fn adjacent(self) -> ParameterSpec {
        ParameterSpec { adjacent_to_previous: true, ..self }
    }

    /// Returns the number of values.
    pub fn numel(&self) -> u64 {
        self.shape.iter().product::<i64>() as u64
    }

    /// Whether training updates the weight.
    pub fn is_trained(&self) -> bool {
        self.role != WeightRole::Frozen
    }

    /// Whether the weight belongs to the model, not to an adapter.
    pub fn is_model_weight(&self) -> bool {
        !matches!(self.role, WeightRole::Adapter { .. })
    }

    /// Whether the weight is a matrix, which layers read in the dtype of activations. Norms and biases are fp32.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() > 1
    }
}

/// Bytes of parameters with their state, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParameterBytes {
    /// The weights, fp32, and the copy in bf16 that layers read.
    pub weights: u64,
    /// The gradient accumulators, the sums of gradient blocks (fixed groups of microbatches) that wait to be added up,
    /// and the sums received from other replicas.
    pub gradients: u64,
    /// AdamW's moments.
    pub optimizer: u64,
    /// The copy of weights and moments from which a checkpoint is written.
    pub snapshot: u64,
    /// The copies of this stage's weights and moments that the stage itself holds for checkpoints in memory. Another
    /// rank holds further copies, which need the same number of bytes.
    pub memory_checkpoints: u64,
}

impl Sum for ParameterBytes {
    fn sum<I: Iterator<Item = ParameterBytes>>(parts: I) -> ParameterBytes {
        parts.fold(ParameterBytes::default(), |all, part| ParameterBytes {
            weights: all.weights + part.weights,
            gradients: all.gradients + part.gradients,
            optimizer: all.optimizer + part.optimizer,
            snapshot: all.snapshot + part.snapshot,
            memory_checkpoints: all.memory_checkpoints + part.memory_checkpoints,
        })
    }
}

impl ParameterBytes {
    /// Returns the bytes of parameters with `numel` values, including the copies in `copies`.
    pub fn of(numel: u64, precision: Precision, copies: ParameterCopies) -> ParameterBytes {
        let copy = match precision {
            Precision::Float32 => 0,
            Precision::BFloat16 => 2,
        };
        let weights = (4 + copy) * numel;
        let owned = numel.div_ceil(copies.replicas as u64);
        let snapshot = if copies.snapshot { 12 * owned } else { 0 };
        let memory_checkpoints = if copies.memory_checkpoints { 2 * 12 * owned } else { 0 };
        let gradients = 4 * numel * (1 + copies.partial_sums as u64) + 4 * owned * copies.received_sums as u64;
        ParameterBytes { weights, gradients, optimizer: 8 * owned, snapshot, memory_checkpoints }
    }

    /// Returns the bytes of the weights `specs`. A frozen weight exists once, in the dtype in which layers read it.
    pub fn of_specs<'s>(
        specs: impl IntoIterator<Item = &'s ParameterSpec>,
        precision: Precision,
        copies: ParameterCopies,
    ) -> ParameterBytes {
        let element = |spec: &ParameterSpec| if spec.is_matrix() { activation_bytes(precision) } else { 4 };
        let (mut trained, mut frozen) = (0, 0);
        for spec in specs {
            match spec.is_trained() {
                true => trained += spec.numel(),
                false => frozen += element(spec) * spec.numel(),
            }
        }
        let trained = ParameterBytes::of(trained, precision, copies);
        ParameterBytes { weights: trained.weights + frozen, ..trained }
    }

    /// Returns the bytes of a module's weights `specs`, without a tied embedding, which is part of a rank's cost.
    pub fn of_module(
        specs: &[ParameterSpec],
        is_tied: bool,
        precision: Precision,
        copies: ParameterCopies,
    ) -> ParameterBytes {
        let specs = specs.iter().filter(|spec| !is_tied || spec.name != names::EMBEDDING);
        ParameterBytes::of_specs(specs, precision, copies)
    }

    /// Returns the sum over all purposes.
    pub fn total(&self) -> u64 {
        let ParameterBytes { weights, gradients, optimizer, snapshot, memory_checkpoints } = self;
        weights + gradients + optimizer + snapshot + memory_checkpoints
    }
}

/// Returns the bytes of one element of activations.
pub(crate) fn activation_bytes(precision: Precision) -> u64 {
    match precision {
        Precision::Float32 => 4,
        Precision::BFloat16 => 2,
    }
}
