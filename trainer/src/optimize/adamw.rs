//! AdamW, a parameter at a time: nothing about a parameter's update depends on which others share its stage.

use tch::{Kind, Tensor};

use crate::autograd;
use crate::model::Parameters;

/// AdamW's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub epsilon: f64,
    /// Decoupled weight decay of the parameters that decay.
    pub weight_decay: f64,
    /// Norms and embeddings decay as well.
    pub decay_all: bool,
}

/// One parameter's running averages, fp32, of the parameter's shape.
#[derive(Debug)]
pub struct Moments {
    /// Of the gradient.
    pub exp_avg: Tensor,
    /// Of its square.
    pub exp_avg_sq: Tensor,
}

/// The optimizer of one stage.
#[derive(Debug)]
pub struct AdamW {
    hyper: Hyper,
    moments: Vec<Moments>,
    /// Updates so far: steps less the skipped ones, the same number on every stage.
    updates: u64,
}

impl AdamW {
    /// Zero moments for `parameters`, in their order.
    pub fn new(hyper: Hyper, parameters: &Parameters) -> AdamW {
        let moments = parameters
            .iter()
            .map(|p| Moments { exp_avg: p.gradient.zeros_like(), exp_avg_sq: p.gradient.zeros_like() })
            .collect();
        AdamW { hyper, moments, updates: 0 }
    }

    /// The moments of the parameter at `index`.
    pub fn moments(&self, index: usize) -> &Moments {
        &self.moments[index]
    }

    /// As a checkpoint says.
    pub fn set_updates(&mut self, updates: u64) {
        self.updates = updates;
    }

    /// One update with learning rate `lr`, after scaling the gradients by `clip` (at most 1).
    pub fn update(&mut self, parameters: &Parameters, lr: f64, clip: f64) {
        self.updates += 1;
        let step = Tensor::full([1], self.updates as f64, (Kind::Float, tch::Device::Cpu)).squeeze();
        let Hyper { beta1, beta2, epsilon, weight_decay, decay_all } = self.hyper;
        for (parameter, moments) in parameters.iter().zip(&self.moments) {
            let step = step.to_device(parameter.value.device());
            if clip < 1.0 {
                let _ = parameter.gradient.shallow_clone().g_mul_scalar_(clip);
            }
            let decay = if parameter.spec.decay || decay_all { weight_decay } else { 0.0 };
            autograd::adamw(
                &parameter.value,
                &parameter.gradient,
                &moments.exp_avg,
                &moments.exp_avg_sq,
                &step,
                lr,
                (beta1, beta2),
                decay,
                epsilon,
            );
        }
    }
}
