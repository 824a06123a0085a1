//! A stage at work: chunks walk their layers, and one interpreter runs the program that was planned, verified and drawn.

mod chunk;
mod seconds;
mod stage;
mod step;

pub use chunk::{Chunk, Goal, Output, Saved};
pub use seconds::Seconds;
pub use stage::{Shape, Stage};
pub use step::{Batch, Executor, Finished, StepError};
