//! A stage's tensors by name, as in PyTorch's state dict: hashed, saved and loaded.

mod compare;
mod initial_weights;
mod load;
mod merged;
mod peer_copy;
mod pretrained;
mod snapshot;
mod tensors;

pub use crate::tensor_hash::TensorHash;
pub use compare::first_difference;
pub use initial_weights::{FrozenWeights, InitialWeights, find_model};
pub use load::{checkpoint_tensors, load_checkpoint};
pub use merged::MergedWeights;
pub use peer_copy::PeerCopy;
pub use pretrained::{check_model, check_tied_head};
pub use snapshot::Snapshot;
pub use tensors::{NamedTensor, weight_hashes};
