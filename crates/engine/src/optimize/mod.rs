//! The optimizer step: the learning rate by step, and AdamW. This crate implements AdamW, because tch's optimizer hides
//! its state, which a checkpoint must contain exactly.

mod adamw;
mod learning_rate;

pub(crate) use adamw::AdamW;
pub use learning_rate::LearningRate;
