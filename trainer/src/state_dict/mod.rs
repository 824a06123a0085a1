//! A stage's tensors by name, as in PyTorch's state dict: hashed, saved and loaded.

mod compare;
mod hash;
mod initial_weights;
mod load;
mod pretrained;
mod snapshot;
mod state_copy;
mod tensors;

pub(crate) use compare::first_difference;
pub(crate) use hash::TensorHash;
pub(crate) use initial_weights::{InitialWeights, find_model};
pub(crate) use load::{checkpoint_tensors, load_checkpoint};
pub(crate) use pretrained::{check_model, check_tied_head};
pub(crate) use snapshot::Snapshot;
pub(crate) use state_copy::StateCopy;
pub(crate) use tensors::{NamedTensor, weight_hashes};
