//! The PipelineJob, field by field: what a job file and the Kubernetes object say. Each file is one part of the spec.
//! Reading fills in the defaults; what a field's type can't refuse, `PipelineJob::validate` does.

mod checkpoint;
mod cluster;
mod data;
mod model;
pub(crate) mod number;
mod path;
mod pipeline;
mod restart;
mod spec;
mod status;
mod training;

pub use checkpoint::{Checkpoint, CheckpointMode, InitFrom, PersistentVolumeClaim, Storage};
pub use cluster::{Gang, NetworkPolicy, NetworkPolicyMode, PodTemplate, Scheduling};
pub use data::{Data, Evaluation, Tokenizer, TokenizerFile, TokenizerTag, TokenizerTraining};
pub use model::{Llama, Model, ModelTag, Pretrained};
pub use number::{Measured, Quantity};
pub use pipeline::{CsvFile, Partition, PartitionStrategy, Pipeline, Recompute, Schedule, ScheduleTag, Transport};
pub use restart::{Backoff, ExitAction, ExitCodeRule, Restart};
pub use spec::{API_VERSION, KIND, TOKEN_CACHE};
pub use spec::{BuiltIn, Metadata, PipelineJob, PipelineJobSpec, Trainer, TrainerType};
pub use status::{
    AttemptStatus, CheckpointStatus, Condition, LastFailure, Phase, PipelineJobStatus, Progress, RestartsStatus,
};
pub use training::{
    AdamW, Device, LearningRate, LearningRateSchedule, Length, Optimizer, OptimizerTag, Precision, Training,
};

/// A serde default: true.
const fn yes() -> bool {
    true
}

/// A serde default: any constant.
const fn number<const N: u32>() -> u32 {
    N
}
