//! A stage's weights in memory: the parameters with their fp32 gradient accumulators, and the frozen weights.

use tch::{Device, Kind, Tensor};

use super::linear::{Bias, Linear, RowsGradient};
use super::lora::{self, Adapter};
use super::parameter_spec::{ParameterSpec, WeightRole};

/// A weight in memory that training updates.
#[derive(Debug)]
pub struct Parameter {
    /// Name, shape and initial value.
    pub spec: ParameterSpec,
    /// The weights, fp32.
    pub value: Tensor,
    /// The weights as the forward and backward passes read them if the parameter is a matrix: `value` itself, or a copy
    /// in bf16 that every update refreshes.
    compute: Tensor,
    /// The gradient accumulator in fp32. It is allocated once and zeroed at the start of each step. Gradients are only
    /// added to it.
    pub gradient: Tensor,
}

impl Parameter {
    /// Returns the tensor that layers read: for matrices the tensor in the dtype of activations, for norms and biases
    /// the fp32 tensor.
    pub fn as_read(&self) -> &Tensor {
        if self.spec.is_matrix() { &self.compute } else { &self.value }
    }

    /// Returns the bf16 copy that updates refresh; `None` if layers read `value`.
    pub fn bf16_copy(&self) -> Option<&Tensor> {
        (self.compute.kind() != self.value.kind()).then_some(&self.compute)
    }
}

/// A weight in memory that training does not update.
#[derive(Debug)]
pub struct FrozenWeight {
    /// Name and shape.
    pub spec: ParameterSpec,
    /// The weights as layers read them: matrices in the dtype of activations, norms and biases in fp32.
    pub value: Tensor,
}

/// A stage's weights, in the order in which the stage uses them: the parameters, which training updates, and the frozen
/// weights.
#[derive(Debug)]
pub struct Parameters {
    trained: Vec<Parameter>,
    frozen: Vec<FrozenWeight>,
}

/// A weight as a layer uses it.
pub(crate) struct LayerWeight {
    /// The tensor that the layer reads.
    pub(crate) value: Tensor,
    /// The gradient accumulator; `None` for a frozen weight.
    pub(crate) gradient: Option<Tensor>,
}

impl Parameters {
    /// Allocates the weights `specs`, with `kind` as the dtype of activations. Initialises the parameters if `seed` is
    /// set; otherwise all weights are zeros. A name that occurs twice (a tied weight on one stage) gives one weight.
    pub fn new(specs: Vec<ParameterSpec>, seed: Option<u64>, kind: Kind, device: Device) -> Parameters {
        let mut parameters = Parameters { trained: Vec::new(), frozen: Vec::new() };
        for group in specs.chunk_by(|_, next| next.adjacent_to_previous) {
            if parameters.layer_weight(&group[0].name).is_none() {
                parameters.allocate(group, seed, kind, device);
            }
        }
        parameters.update_compute();
        parameters
    }

    /// Allocates a group of adjacent weights, whose rows are contiguous. The accumulators of consecutive trained
    /// weights of the group are contiguous too.
    fn allocate(&mut self, group: &[ParameterSpec], seed: Option<u64>, kind: Kind, device: Device) {
        let rows_of = |specs: &[ParameterSpec]| specs.iter().map(|spec| spec.shape[0]).sum::<i64>();
        let zeros = |rows: i64, kind| {
            let shape = [&[rows], &group[0].shape[1..]].concat();
            Tensor::zeros(&shape, (kind, device))
        };
        let read_kind = if group[0].is_matrix() { kind } else { Kind::Float };
        let read = zeros(rows_of(group), read_kind);
        let mut row = 0;
        for run in group.chunk_by(|one, next| one.is_trained() == next.is_trained()) {
            let rows = rows_of(run);
            let read_of_run = read.narrow(0, row, rows);
            row += rows;
            let trained_run = run[0].is_trained().then(|| {
                let value =
                    if read_kind == Kind::Float { read_of_run.shallow_clone() } else { zeros(rows, Kind::Float) };
                let compute = match (kind, read_kind) {
                    (Kind::Float, _) => value.shallow_clone(),
                    (_, Kind::Float) => zeros(rows, kind),
                    _ => read_of_run.shallow_clone(),
                };
                [value, compute, zeros(rows, Kind::Float)]
            });
            let mut row_of_run = 0;
            for spec in run {
                let part = |tensor: &Tensor| tensor.narrow(0, row_of_run, spec.shape[0]);
                match &trained_run {
                    None => self.frozen.push(FrozenWeight { spec: spec.clone(), value: part(&read_of_run) }),
                    Some([value, compute, gradient]) => {
                        let (value, compute, gradient) = (part(value), part(compute), part(gradient));
                        if let Some(seed) = seed {
                            value.shallow_clone().copy_(&spec.initializer.value(&spec.name, &spec.shape, seed));
                        }
                        self.trained.push(Parameter { spec: spec.clone(), value, compute, gradient });
                    }
                }
                row_of_run += spec.shape[0];
            }
        }
    }

    /// Returns the weight `name` as layers use it; `None` if this stage does not hold it.
    fn layer_weight(&self, name: &str) -> Option<LayerWeight> {
        if let Some(parameter) = self.trained.iter().find(|parameter| parameter.spec.name == name) {
            let gradient = Some(parameter.gradient.shallow_clone());
            return Some(LayerWeight { value: parameter.as_read().shallow_clone(), gradient });
        }
        let frozen = self.frozen.iter().find(|weight| weight.spec.name == name)?;
        Some(LayerWeight { value: frozen.value.shallow_clone(), gradient: None })
    }

    /// Returns the weight `name` as layers use it.
    ///
    /// # Panics
    /// If this stage does not hold the weight. In this case, the architecture's specs and its layers disagree.
    #[allow(clippy::expect_used, reason = "an architecture that disagrees with itself is a bug, not input")]
    pub(crate) fn get(&self, name: &str) -> LayerWeight {
        self.layer_weight(name).expect("the architecture lists every weight that its layers use")
    }

    /// Returns the index of the parameter `name`.
    ///
    /// # Panics
    /// If this stage does not hold the parameter, or the weight is frozen.
    #[allow(clippy::expect_used, reason = "an architecture that disagrees with itself is a bug, not input")]
    pub fn index(&self, name: &str) -> usize {
        self.find(name).expect("the architecture lists every parameter that its layers use")
    }

    /// Returns the index of the parameter `name`; `None` if this stage does not hold the parameter, or the weight is
    /// frozen.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.trained.iter().position(|parameter| parameter.spec.name == name)
    }

    /// Returns a linear layer over the adjacent weights `names`, in their order, with the adapters of these weights.
    ///
    /// # Panics
    /// Like `Parameters::get`, or if the weights are not adjacent.
    pub(super) fn linear(&self, names: &[String]) -> Linear {
        let weights: Vec<LayerWeight> = names.iter().map(|name| self.get(name)).collect();
        let (value, gradients) = adjacent(&weights);
        let mut first = 0;
        let adapters = names.iter().zip(&weights).filter_map(|(name, weight)| {
            let outputs = first..first + weight.value.size()[0];
            first = outputs.end;
            Some(self.adapter(name)?.at(outputs))
        });
        Linear { adapters: adapters.collect(), weight: value, gradients }
    }

    /// Returns the adapter of the weight `name`, if it has one.
    fn adapter(&self, name: &str) -> Option<Adapter> {
        let [a, b] = lora::adapter_names(name);
        let [a, b] = [&self.trained[self.find(&a)?], &self.trained[self.find(&b)?]];
        let WeightRole::Adapter { scale } = b.spec.role else { return None };
        Some(Adapter::new([a, b], scale))
    }

    /// Returns the bias of a linear layer, made of the adjacent vectors `names`.
    ///
    /// # Panics
    /// Like [`Parameters::linear`].
    pub(super) fn bias(&self, names: &[String]) -> Bias {
        let weights: Vec<LayerWeight> = names.iter().map(|name| self.get(name)).collect();
        let (value, gradients) = adjacent(&weights);
        Bias { value, gradients }
    }

    /// Refreshes the copies in bf16, after the weights have been initialised or loaded.
    pub fn update_compute(&self) {
        for parameter in &self.trained {
            if let Some(copy) = parameter.bf16_copy() {
                copy.shallow_clone().copy_(&parameter.value);
            }
        }
    }

    /// Returns all parameters.
    pub fn iter(&self) -> impl Iterator<Item = &Parameter> {
        self.trained.iter()
    }

    /// Returns the frozen weights.
    pub fn frozen(&self) -> &[FrozenWeight] {
        &self.frozen
    }

    /// Returns the number of parameters.
    pub fn len(&self) -> usize {
        self.trained.len()
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.trained.is_empty()
    }

    /// Zeroes every gradient accumulator.
    pub fn zero_grad(&self) {
        for parameter in &self.trained {
            let _ = parameter.gradient.shallow_clone().zero_();
        }
    }
}

/// Combines weights that are stored side by side into one tensor. Also returns an accumulator for each run of
/// consecutive trained weights among them.
///
/// # Panics
/// If the weights are not stored side by side in this order.
fn adjacent(weights: &[LayerWeight]) -> (Tensor, Vec<RowsGradient>) {
    let mut next = weights[0].value.data_ptr();
    for LayerWeight { value, .. } in weights {
        assert!(value.data_ptr() == next, "the weights are not stored side by side in this order");
        next = value.data_ptr().wrapping_byte_add(value.numel() * value.kind().elt_size_in_bytes());
    }
    let rows_of = |weights: &[LayerWeight]| weights.iter().map(|weight| weight.value.size()[0]).sum::<i64>();
    let all = |first: &Tensor, rows: i64| match first.size()[1..] {
        [columns] => first.as_strided([rows, columns], [columns, 1], None),
        _ => first.as_strided([rows], [1], None),
    };
    let mut gradients = Vec::new();
    let mut row = 0;
    for run in weights.chunk_by(|one, next| one.gradient.is_some() == next.gradient.is_some()) {
        let rows = row..row + rows_of(run);
        row = rows.end;
        if let Some(first) = &run[0].gradient {
            gradients.push(RowsGradient { accumulator: all(first, rows.end - rows.start), rows });
        }
    }
    (all(&weights[0].value, row), gradients)
}

impl std::ops::Index<usize> for Parameters {
    type Output = Parameter;
    fn index(&self, index: usize) -> &Parameter {
        &self.trained[index]
    }
}
