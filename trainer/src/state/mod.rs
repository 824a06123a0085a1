//! A stage's tensors as names and bytes: what is hashed, saved and loaded.

mod compare;
mod hash;
mod load;
mod pretrained;
mod snapshot;
mod source;
mod tensors;

pub use compare::first_difference;
pub use hash::TensorHash;
pub use load::load_checkpoint;
pub use pretrained::{check_model, load_model};
pub use snapshot::Snapshot;
pub use source::{Source, find_model};
pub use tensors::{FIRST_MOMENT, Named, SECOND_MOMENT, weights};
