//! One stage of a model on its device: the execution of its program, the update of its weights, and its tensors by name.

pub mod execute;
pub mod generate;
pub mod optimize;
pub mod state_dict;
