//! A stage's parameters: value, fp32 gradient accumulator, and how each starts.

use tch::{Device, Kind, Tensor};

use super::initialize;

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// Independent normal values with this standard deviation.
    Normal(f64),
    /// All ones.
    Ones,
}

/// A parameter that a stage will hold.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterSpec {
    /// Hugging Face's name, which is global: no stage or chunk in it.
    pub name: String,
    /// The value's shape.
    pub shape: Vec<i64>,
    /// How it starts.
    pub initial: Initial,
    /// Whether weight decay applies by default: matrices of layers and the head, not norms and embeddings.
    pub decay: bool,
}

/// A parameter in memory.
#[derive(Debug)]
pub struct Parameter {
    /// Name, shape and start.
    pub spec: ParameterSpec,
    /// The weights. Never requires grad.
    pub value: Tensor,
    /// The accumulator: fp32, allocated once, zeroed at each step's start, only ever added to.
    pub gradient: Tensor,
}

/// A stage's parameters, in the order in which the stage uses them.
#[derive(Debug)]
pub struct Parameters(Vec<Parameter>);

impl Parameters {
    /// Allocates and initialises; a name that occurs twice (a tied weight on one stage) is held once.
    pub fn new(specs: Vec<ParameterSpec>, seed: u64, device: Device) -> Parameters {
        let mut parameters: Vec<Parameter> = Vec::with_capacity(specs.len());
        for spec in specs {
            if parameters.iter().all(|p| p.spec.name != spec.name) {
                let value = initialize::values(&spec, seed).to_device(device);
                let gradient = Tensor::zeros(&spec.shape, (Kind::Float, device));
                parameters.push(Parameter { spec, value, gradient });
            }
        }
        Parameters(parameters)
    }

    /// Where `name` is, if this stage holds it.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|p| p.spec.name == name)
    }

    /// Where `name` is.
    ///
    /// # Panics
    /// If the stage was built without it: an architecture's list and its layers disagree.
    #[allow(clippy::expect_used, reason = "an architecture that disagrees with itself is a bug, not input")]
    pub fn index(&self, name: &str) -> usize {
        self.find(name).expect("the architecture lists every parameter that its layers use")
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Parameter> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// A stage may hold none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Zeroes every accumulator: a step's start.
    pub fn zero_gradients(&self) {
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
