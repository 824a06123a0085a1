//! Changed bytes, and how much memory is taken while they are read.

mod allocations;
mod mutations;

pub use allocations::peak_bytes;
pub use mutations::{Mutation, mutate, mutations};
