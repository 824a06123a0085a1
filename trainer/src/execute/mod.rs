//! Executes one stage: [`Chunk`] runs forward and backward of its layers, [`Executor`] runs the stage's list of
//! pipeline actions.

mod chunk;
mod executor;
mod measurements;
mod sequences;
mod stage;
mod stop;
mod timer;
mod weight_grad_store;

pub use chunk::{Chunk, ChunkOutput, LossInputs, SavedActivations};
pub use executor::{Executor, StepError, StepInputs, StepOutput};
pub(crate) use measurements::StepMeasurements;
pub(crate) use stage::kind;
pub use stage::{Stage, StageConfig};
pub use stop::{Stop, StopSignal};
use timer::StepTimer;
pub(crate) use timer::is_timed;
