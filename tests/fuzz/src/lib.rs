//! Changed bytes, and the memory that a reader of them takes.

mod allocations;
mod mutations;

pub use allocations::peak_bytes;
pub use mutations::{Mutation, mutate, mutations};
