//! The AdamW optimizer. The update of a parameter uses only its own gradient and moments, the learning rate and `clip`.
//! The result therefore does not depend on which other parameters the stage holds.

use stagecoach_api::job::AdamWSpec;
use stagecoach_kernels::{self as kernels, AdamWOptions, AdamWParameter};
use stagecoach_model::{Parameter, Parameters};
use tch::Tensor;

/// The moments of one parameter: fp32, of the parameter's shape.
#[derive(Debug)]
pub(crate) struct Moments {
    /// The running average of the gradient.
    pub(crate) exp_avg: Tensor,
    /// The running average of the gradient's square.
    pub(crate) exp_avg_sq: Tensor,
}

/// The optimizer of one stage.
#[derive(Debug)]
pub(crate) struct AdamW {
    hyperparameters: AdamWSpec,
    /// The moments of each parameter; `None` for a parameter that another replica updates.
    moments: Vec<Option<Moments>>,
    /// The number of updates so far, which is equal on every stage: the number of steps minus the skipped steps.
    updates: u64,
}

impl AdamW {
    /// Creates an optimizer with zero moments for the parameters that this replica owns. `owns` returns whether this
    /// replica owns the parameter at an index.
    pub(crate) fn new(hyperparameters: AdamWSpec, parameters: &Parameters, owns: impl Fn(usize) -> bool) -> AdamW {
        let zeros = |p: &Parameter| Moments { exp_avg: p.gradient.zeros_like(), exp_avg_sq: p.gradient.zeros_like() };
        let moments = parameters.iter().enumerate().map(|(index, p)| owns(index).then(|| zeros(p))).collect();
        AdamW { hyperparameters, moments, updates: 0 }
    }

    /// Returns the moments of the parameter at `index`; `None` if another replica owns the parameter.
    pub(crate) fn moments(&self, index: usize) -> Option<&Moments> {
        self.moments[index].as_ref()
    }

    /// Sets the number of updates so far, when a checkpoint is loaded.
    pub(crate) fn set_updates(&mut self, updates: u64) {
        self.updates = updates;
    }

    /// Updates, with learning rate `lr`, every parameter that this replica owns. Gradients are first multiplied by
    /// `clip`, which is at most 1.
    pub(crate) fn step<'a>(&'a mut self, parameters: &'a Parameters, lr: f64, clip: f64) {
        self.updates += 1;
        let AdamWSpec { beta1, beta2, epsilon: eps, weight_decay, decay_norms_and_embeddings } = self.hyperparameters;
        let owned = parameters.iter().zip(&self.moments).filter_map(|(p, moments)| Some((p, moments.as_ref()?)));
        let parameter = |(parameter, Moments { exp_avg, exp_avg_sq }): (&'a Parameter, &'a Moments)| AdamWParameter {
            value: &parameter.value,
            gradient: &parameter.gradient,
            exp_avg,
            exp_avg_sq,
            compute: parameter.bf16_copy(),
            weight_decay: if parameter.spec.has_weight_decay || decay_norms_and_embeddings {
                weight_decay
            } else {
                0.0
            },
        };
        let owned: Vec<AdamWParameter> = owned.map(parameter).collect();
        let options = AdamWOptions { lr, beta1, beta2, eps, step: self.updates as f64, clip };
        if let Some(first) = owned.first() {
            kernels::adamw(&owned, options, first.value.device());
        }
    }
}
