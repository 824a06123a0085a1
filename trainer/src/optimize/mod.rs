//! The update: learning rate by step, and AdamW over tensors that we own (tch's optimizer hides its state, and a
//! checkpoint needs every bit of it).

mod adamw;
mod schedule;

pub use adamw::{AdamW, Hyper, Moments};
pub use schedule::{Decay, LearningRate};
