//! Executes one stage: [`Chunk`] runs forward and backward of its layers, [`Executor`] runs the stage's list of
//! pipeline actions.

mod chunk;
mod executor;
mod mask;
mod measurements;
mod stage;
mod timer;

pub use chunk::{Chunk, ChunkOutput, LossInputs, SavedActivations};
pub use executor::{Executor, StepError, StepInputs, StepOutput};
pub(crate) use measurements::StepMeasurements;
pub use stage::{Stage, StageConfig};
pub(crate) use timer::StepTimer;
