//! A stage's tensors as names and bytes: what is hashed, saved and loaded.

mod hash;
mod load;
mod tensors;

pub use hash::TensorHash;
pub use load::{load_checkpoint, load_model};
pub use tensors::{FIRST_MOMENT, Named, SECOND_MOMENT, moments, views, weights};
