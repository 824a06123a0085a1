//! One stage of a model on its device: the execution of its list of pipeline actions, the update of its weights, and
//! its tensors by name. The crate also generates text with a trained model.

pub mod execute;
pub mod generate;
pub mod optimize;
mod stage_error;
pub mod state_dict;
mod tensor_hash;

pub use stage_error::StageError;
