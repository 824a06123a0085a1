//! A stage's parameters: their values and fp32 gradient accumulators.

use std::iter::Sum;

use stagecoach_api::job::Precision;
use tch::{Device, Kind, Tensor};

use super::ParameterCopies;
use super::initializer::Initializer;
use super::linear::{Bias, Linear};

/// Specification of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterSpec {
    /// Hugging Face's name: global, independent of stage and chunk.
    pub name: String,
    /// Shape of the value.
    pub shape: Vec<i64>,
    /// The initial value.
    pub initializer: Initializer,
    /// Whether weight decay applies by default: to the matrices of layers and head, not to norms, biases and
    /// embeddings.
    pub has_weight_decay: bool,
    /// Whether the parameter's rows directly follow those of the previous parameter, so that one product uses both.
    pub adjacent_to_previous: bool,
}

impl ParameterSpec {
    /// A matrix `[rows, columns]` with weight decay, whose initial values have this standard deviation.
    pub(crate) fn matrix(name: String, rows: usize, columns: usize, deviation: f64) -> ParameterSpec {
        let (shape, initializer) = (vec![rows as i64, columns as i64], Initializer::Normal(deviation));
        ParameterSpec { name, shape, initializer, has_weight_decay: true, adjacent_to_previous: false }
    }

    /// A vector without weight decay.
    pub(crate) fn vector(name: String, width: usize, initializer: Initializer) -> ParameterSpec {
        let shape = vec![width as i64];
        ParameterSpec { name, shape, initializer, has_weight_decay: false, adjacent_to_previous: false }
    }

    /// The same parameter, whose rows directly follow those of the previous one.
    pub(crate) fn adjacent(self) -> ParameterSpec {
        ParameterSpec { adjacent_to_previous: true, ..self }
    }

    /// Number of values.
    pub fn numel(&self) -> u64 {
        self.shape.iter().product::<i64>() as u64
    }
}

/// Bytes of parameters with their state, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParameterBytes {
    /// The weights, fp32, and the copy in bf16 that layers read.
    pub weights: u64,
    /// The gradient accumulators, the sums of blocks that wait to be added, and the sums received from other replicas.
    pub gradients: u64,
    /// AdamW's moments.
    pub optimizer: u64,
    /// The copy of weights and moments from which a checkpoint is written.
    pub snapshot: u64,
    /// The copies of weights and moments that this stage holds of its own state for checkpoints in memory; the next
    /// stage holds as much.
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
    /// The bytes of `numel` values with these copies.
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

    /// The sum.
    pub fn total(&self) -> u64 {
        let ParameterBytes { weights, gradients, optimizer, snapshot, memory_checkpoints } = self;
        weights + gradients + optimizer + snapshot + memory_checkpoints
    }
}

/// A parameter in memory.
#[derive(Debug)]
pub struct Parameter {
    /// Name, shape and initial value.
    pub spec: ParameterSpec,
    /// The weights, fp32.
    pub value: Tensor,
    /// The weights as the forward and backward passes read them: `value` itself, or a copy in bf16 that every update
    /// refreshes.
    pub(crate) compute: Tensor,
    /// The gradient accumulator: fp32, allocated once, zeroed at the start of each step, then only added to.
    pub gradient: Tensor,
}

impl Parameter {
    /// The tensor that layers read: for matrices the tensor in the type of activations, for norms and biases the fp32
    /// tensor.
    pub fn as_read(&self) -> &Tensor {
        if self.spec.shape.len() > 1 { &self.compute } else { &self.value }
    }

    /// The copy that layers read, if they do not read `value` itself.
    pub fn bf16_copy(&self) -> Option<&Tensor> {
        (self.compute.kind() != self.value.kind()).then_some(&self.compute)
    }
}

/// A stage's parameters, in the order in which the stage uses them.
#[derive(Debug)]
pub struct Parameters(Vec<Parameter>);

impl Parameters {
    /// Allocates parameters with `kind` as the type of activations and, with a seed, initialises them. A name that
    /// occurs twice (a tied weight on one stage) gives one parameter.
    pub fn new(specs: Vec<ParameterSpec>, seed: Option<u64>, kind: Kind, device: Device) -> Parameters {
        let mut parameters: Vec<Parameter> = Vec::with_capacity(specs.len());
        for group in specs.chunk_by(|_, next| next.adjacent_to_previous) {
            if parameters.iter().all(|p| p.spec.name != group[0].name) {
                parameters.extend(allocate(group, seed, kind, device));
            }
        }
        let parameters = Parameters(parameters);
        parameters.update_compute();
        parameters
    }

    /// The parameter `name`.
    ///
    /// # Panics
    /// If this stage does not hold the parameter: the architecture's specs and its layers disagree.
    pub(crate) fn get(&self, name: &str) -> &Parameter {
        &self.0[self.index(name)]
    }

    /// Index of the parameter `name`.
    ///
    /// # Panics
    /// Like `Parameters::get`.
    #[allow(clippy::expect_used, reason = "an architecture that disagrees with itself is a bug, not input")]
    pub fn index(&self, name: &str) -> usize {
        let index = self.0.iter().position(|p| p.spec.name == name);
        index.expect("the architecture lists every parameter that its layers use")
    }

    /// A linear layer over the adjacent parameters `names`, in their order.
    ///
    /// # Panics
    /// Like `Parameters::get`, and if they are not adjacent.
    pub(super) fn linear(&self, names: &[String]) -> Linear {
        let (first, rows) = self.adjacent(names);
        let columns = first.spec.shape[1];
        let all = |tensor: &Tensor| tensor.as_strided([rows, columns], [columns, 1], None);
        Linear { weight: all(&first.compute), gradient: all(&first.gradient) }
    }

    /// The biases of a linear layer over the adjacent parameters `names`.
    ///
    /// # Panics
    /// Like [`Parameters::linear`].
    pub(super) fn bias(&self, names: &[String]) -> Bias {
        let (first, values) = self.adjacent(names);
        let all = |tensor: &Tensor| tensor.as_strided([values], [1], None);
        Bias { value: all(&first.value), gradient: all(&first.gradient) }
    }

    /// The first of the adjacent parameters `names`, and the total number of their rows.
    fn adjacent(&self, names: &[String]) -> (&Parameter, i64) {
        let first = self.index(&names[0]);
        let parts = &self.0[first..first + names.len()];
        assert!(parts.iter().map(|p| &p.spec.name).eq(names), "{names:?} are not stored in this order");
        assert!(parts[1..].iter().all(|p| p.spec.adjacent_to_previous), "{names:?} are not stored side by side");
        (&parts[0], parts.iter().map(|p| p.spec.shape[0]).sum())
    }

    /// Refreshes the copies in bf16, after the weights have been initialised or loaded.
    pub fn update_compute(&self) {
        for parameter in &self.0 {
            if let Some(copy) = parameter.bf16_copy() {
                copy.shallow_clone().copy_(&parameter.value);
            }
        }
    }

    /// All parameters.
    pub fn iter(&self) -> impl Iterator<Item = &Parameter> {
        self.0.iter()
    }

    /// Number of parameters.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Zeroes every gradient accumulator.
    pub fn zero_grad(&self) {
        for parameter in &self.0 {
            let _ = parameter.gradient.shallow_clone().zero_();
        }
    }
}

/// Allocates parameters whose rows are contiguous.
fn allocate(group: &[ParameterSpec], seed: Option<u64>, kind: Kind, device: Device) -> Vec<Parameter> {
    let mut shape = group[0].shape.clone();
    shape[0] = group.iter().map(|spec| spec.shape[0]).sum();
    let zeros = |kind| Tensor::zeros(&shape, (kind, device));
    let (value, gradient) = (zeros(Kind::Float), zeros(Kind::Float));
    let compute = if kind == Kind::Float { value.shallow_clone() } else { zeros(kind) };
    let mut row = 0;
    let mut part = |spec: &ParameterSpec| {
        let rows = |tensor: &Tensor| tensor.narrow(0, row, spec.shape[0]);
        let (value, gradient, compute) = (rows(&value), rows(&gradient), rows(&compute));
        if let Some(seed) = seed {
            value.shallow_clone().copy_(&spec.initializer.value(&spec.name, &spec.shape, seed));
        }
        row += spec.shape[0];
        Parameter { spec: spec.clone(), value, compute, gradient }
    };
    group.iter().map(&mut part).collect()
}

impl std::ops::Index<usize> for Parameters {
    type Output = Parameter;
    fn index(&self, index: usize) -> &Parameter {
        &self.0[index]
    }
}
