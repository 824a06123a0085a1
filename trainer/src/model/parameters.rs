//! A stage's parameters: their values and fp32 gradient accumulators.

use tch::{Device, Kind, Tensor};

use super::initializer::Initializer;

/// Specification of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterSpec {
    /// Hugging Face's name: global, independent of stage and chunk.
    pub name: String,
    /// Shape of the value.
    pub shape: Vec<i64>,
    /// The initial value.
    pub(crate) initializer: Initializer,
    /// Whether weight decay applies by default: to the matrices of layers and head, not to norms and embeddings.
    pub(crate) has_weight_decay: bool,
}

/// A parameter in memory.
#[derive(Debug)]
pub struct Parameter {
    /// Name, shape and initial value.
    pub spec: ParameterSpec,
    /// The weights. Never requires grad.
    pub value: Tensor,
    /// The gradient accumulator: fp32, allocated once, zeroed at the start of each step, then only added to.
    pub gradient: Tensor,
}

/// A stage's parameters, in the order in which the stage uses them.
#[derive(Debug)]
pub struct Parameters(Vec<Parameter>);

impl Parameters {
    /// Allocates and initialises parameters; of a name that occurs twice (a tied weight on one stage) there is one.
    pub(crate) fn new(specs: Vec<ParameterSpec>, seed: u64, device: Device) -> Parameters {
        let mut parameters: Vec<Parameter> = Vec::with_capacity(specs.len());
        for spec in specs {
            if parameters.iter().all(|p| p.spec.name != spec.name) {
                let value = spec.initializer.value(&spec.name, &spec.shape, seed).to_device(device);
                let gradient = Tensor::zeros(&spec.shape, (Kind::Float, device));
                parameters.push(Parameter { spec, value, gradient });
            }
        }
        Parameters(parameters)
    }

    /// Index of the parameter `name`, if this stage holds it.
    fn find(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|p| p.spec.name == name)
    }

    /// Index of the parameter `name`.
    ///
    /// # Panics
    /// If this stage does not hold it: the architecture's specs and its layers disagree.
    #[allow(clippy::expect_used, reason = "an architecture that disagrees with itself is a bug, not input")]
    pub(crate) fn index(&self, name: &str) -> usize {
        self.find(name).expect("the architecture lists every parameter that its layers use")
    }

    /// All parameters.
    pub fn iter(&self) -> impl Iterator<Item = &Parameter> {
        self.0.iter()
    }

    /// Number of parameters.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Zeroes every gradient accumulator.
    pub(crate) fn zero_grad(&self) {
        for parameter in &self.0 {
            let _ = parameter.gradient.shallow_clone().zero_();
        }
    }
}

impl std::ops::Index<usize> for Parameters {
    type Output = Parameter;
    fn index(&self, index: usize) -> &Parameter {
        &self.0[index]
    }
}
