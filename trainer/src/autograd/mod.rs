//! The seam to libtorch: the shim's operations as safe functions, and the queue of weight gradients.
//! Weights never require grad: what a backward pass owes them is left on a [`Tape`], and
//! [`WeightQueue`] adds it to the accumulators in the order that the schedule asks for.

mod ops;
mod queue;

pub use ops::{Tape, accumulate, adamw, cpu_capability, gradient, linear, rms_norm, rotary};
pub use queue::{WeightQueue, accumulate_into};
