//! Driving the real binary: jobs as YAML, a corpus made from a seed, results read back from the job's folder.
//! What fails here fails a test, so these functions panic.

pub mod corpus;
pub mod cover;
mod job;
mod launched;

pub use job::Job;
pub use launched::{Launched, Outcome, is_gone, says, signal, stagecoach, until};
