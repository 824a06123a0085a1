//! Random changes of bytes, and the measurement of the memory that a reader of such bytes allocates.

mod allocations;
mod mutations;

pub use allocations::peak_bytes;
pub use mutations::{Mutation, mutate, mutations};
