//! What `tch` lacks of libtorch's autograd: operations of the C++ shim as safe functions, and deferred weight gradients.
//! Weights never require grad: a backward pass puts the inputs of each weight's gradient into a [`GradientSink`], and
//! [`WeightGradStore`] adds the gradients to the accumulators when the schedule says so.

mod ops;
mod weight_grad_store;

pub(crate) use ops::GradientSink;
pub(crate) use ops::{accumulate_linear, adamw, cpu_capability, grad, linear, rms_norm, rotary};
pub(crate) use weight_grad_store::WeightGradStore;
pub(crate) use weight_grad_store::accumulate;
