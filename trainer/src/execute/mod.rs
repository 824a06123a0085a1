//! Executes one stage: [`Chunk`] runs the forward and backward passes of its layers, [`Executor`] runs the stage's list
//! of pipeline actions.

mod audited;
mod chunk;
mod compute;
mod control;
mod dump;
mod end_of_step;
mod executor;
mod gradient_sums;
mod measurements;
mod ownership;
mod reduce_and_gather;
mod sequences;
mod stage;
mod stage_gpu;
mod step;
mod tied_embedding;
mod timer;
mod weight_grad_store;

pub(crate) use audited::{WorkInputs, WorkResult, work_numel};
pub use chunk::{Chunk, ChunkOutput, LossInputs, SavedActivations};
pub use control::{StepControl, StopRequest};
pub(crate) use dump::DumpConfig;
pub use executor::Executor;
pub(crate) use measurements::StepMeasurements;
pub(crate) use ownership::owners;
pub(crate) use reduce_and_gather::{finish_gathers, gather_weights};
pub(crate) use stage::kind;
pub use stage::{Stage, StageConfig};
pub(crate) use stage_gpu::{CopyToHost, StageGpu};
pub use step::{StepError, StepInputs, StepOutput};
use timer::StepTimer;
pub(crate) use timer::{is_timed, longest_wait};
