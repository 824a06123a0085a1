//! AdamW. Each parameter is updated by itself: the result does not depend on which other parameters share its stage.

use stagecoach_api::job::AdamWSpec;
use tch::Tensor;

use crate::kernels::{self, AdamWOptions};
use crate::model::Parameters;

/// The moments of one parameter: fp32, of the parameter's shape.
#[derive(Debug)]
pub(crate) struct Moments {
    /// Running average of the gradient.
    pub(crate) exp_avg: Tensor,
    /// Running average of the gradient's square.
    pub(crate) exp_avg_sq: Tensor,
}

/// The optimizer of one stage.
#[derive(Debug)]
pub(crate) struct AdamW {
    hyperparameters: AdamWSpec,
    moments: Vec<Moments>,
    /// Number of updates so far, which is the number of steps without the skipped ones; the same on every stage.
    updates: u64,
}

impl AdamW {
    /// Creates an optimizer with zero moments for `parameters`, in their order.
    pub(crate) fn new(hyperparameters: AdamWSpec, parameters: &Parameters) -> AdamW {
        let moments = parameters
            .iter()
            .map(|p| Moments { exp_avg: p.gradient.zeros_like(), exp_avg_sq: p.gradient.zeros_like() })
            .collect();
        AdamW { hyperparameters, moments, updates: 0 }
    }

    /// The moments of the parameter at `index`.
    pub(crate) fn moments(&self, index: usize) -> &Moments {
        &self.moments[index]
    }

    /// Sets the number of updates so far, when a checkpoint is loaded.
    pub(crate) fn set_updates(&mut self, updates: u64) {
        self.updates = updates;
    }

    /// Updates every parameter with learning rate `lr`. Gradients are first multiplied by `clip`, which is at most 1.
    pub(crate) fn step(&mut self, parameters: &Parameters, lr: f64, clip: f64) {
        self.updates += 1;
        let AdamWSpec { beta1, beta2, epsilon: eps, weight_decay, decay_norms_and_embeddings } = self.hyperparameters;
        for (parameter, Moments { exp_avg, exp_avg_sq }) in parameters.iter().zip(&self.moments) {
            let decays = parameter.spec.has_weight_decay || decay_norms_and_embeddings;
            let weight_decay = if decays { weight_decay } else { 0.0 };
            let options = AdamWOptions { lr, beta1, beta2, weight_decay, eps, step: self.updates as f64, clip };
            let moments = (exp_avg, exp_avg_sq);
            kernels::adamw(&parameter.value, &parameter.gradient, moments, parameter.bf16_copy(), options);
        }
    }
}
