//! The execution of one stage: [`Chunk`] runs the forward and backward passes of its layers, and [`Executor`] runs the
//! stage's list of pipeline actions.

mod audited;
mod chunk;
mod compute;
mod control;
mod dump;
mod end_of_step;
mod executor;
mod gradients;
mod reduce_and_gather;
mod sequences;
mod sharding;
mod stage;
mod stage_gpu;
mod step;
mod tied_embedding;
mod timer;

pub use audited::{ItemDigest, WorkInputs, WorkRecorder, work_numel};
pub use chunk::{Chunk, ChunkOutput, LossInputs, SavedActivations};
pub use control::{StepControl, StepProbe, StopRequest, Uncontrolled};
pub use dump::{DumpConfig, TensorDump};
pub use executor::Executor;
pub use reduce_and_gather::{finish_gathers, gather_weights};
pub use sharding::{Sharding, owners};
pub use stage::{Stage, StageConfig, kind};
pub use stage_gpu::{CopyToHost, StageGpu};
pub use step::{StepError, StepInputs, StepMeasurements, StepOutput};
use timer::StepTimer;
pub use timer::longest_wait;
