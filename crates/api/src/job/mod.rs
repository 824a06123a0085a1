//! The types of the PipelineJob, for job files and for the Kubernetes object. Each module defines one part of the job.
//! Reading fills in the defaults and refuses values of a wrong type. `PipelineJob::validate` checks all other rules.

mod change;
mod checkpoint;
mod cluster;
mod condition;
mod data;
mod elastic;
mod evaluation;
mod model;
pub(crate) mod number;
mod object_name;
mod path;
mod pipeline;
mod pod_failure_policy;
mod restart;
mod schedule;
mod source;
mod spec;
mod status;
mod streaming;
mod tokenizer;
mod training;

pub(crate) use change::paths_with;
pub use change::{CHANGES, ChangeEffect, attempt_fields, change_effect};
pub use checkpoint::{
    CheckpointMode, CheckpointSpec, InitFromSpec, MemoryCheckpointSpec, PersistentVolumeClaim, StepInterval,
    StorageSpec,
};
pub(crate) use cluster::Cidr;
pub use cluster::{GangScheduling, KueueSpec, NetworkPolicyMode, NetworkPolicySpec, PodTemplate, SchedulingSpec};
pub use condition::{Condition, condition_reason, condition_type};
pub use data::{CredentialsSpec, DataFormat, DataSpec, OnBadRecord, OnLongConversation, SpecialTokens};
pub use elastic::ElasticSpec;
pub use evaluation::{EvaluationSet, EvaluationSpec};
pub use model::{
    LlamaSpec, MAX_ATTENTION_HEADS, MAX_HEAD_DIM, MAX_HIDDEN_LAYERS, MAX_HIDDEN_SIZE, MAX_INTERMEDIATE_SIZE,
    MAX_POSITIONS, MAX_VOCAB_SIZE, ModelSpec, ModelTag, ModelType, PretrainedSpec,
};
pub use number::{FloatString, Quantity};
pub(crate) use object_name::wrong_object_name;
pub(crate) use path::{DATA_SET, SOURCE_SCHEMES, list_of_schemes};
pub use pipeline::{Encryption, PartitionSpec, PartitionStrategy, PipelineSpec, Recompute, Transport};
pub use pod_failure_policy::{
    ConditionStatus, ExitCodeOperator, FailureLabel, OnExitCodes, OnPodCondition, PodFailurePolicyAction,
    PodFailurePolicyRule, PodFailurePolicySpec,
};
pub use restart::{BackoffSpec, ExitAction, ExitCodeRule, RestartSpec};
pub(crate) use schedule::FixedChunks;
pub use schedule::{CsvFile, ScheduleSpec};
pub use source::{DataSource, OnExhausted, ScheduledWeight};
pub use spec::{API_VERSION, KIND, TOKEN_CACHE};
pub use spec::{BuiltIn, Metadata, PipelineJob, PipelineJobSpec, TrainerSpec, TrainerType};
pub use status::{
    AttemptStatus, CheckpointStatus, JobPhase, LastFailureStatus, PipelineJobStatus, ProgressStatus,
    RecoveryPhasesStatus, RecoveryStatus, RestartsStatus,
};
pub use streaming::{CacheSpec, StreamingMode, StreamingSpec};
pub use tokenizer::{TokenizerFile, TokenizerSpec, TokenizerTag, TokenizerTrainingSpec};
pub use training::{
    AdamWSpec, AuditSpec, Device, Kernels, LearningRateSchedule, LearningRateSpec, LoraSpec, OnDifference,
    OptimizerSpec, OptimizerTag, Precision, TrainingLength, TrainingSpec,
};

/// Returns true, as the default of a field.
const fn default_true() -> bool {
    true
}

/// Returns the constant `N`, as the default of a field.
const fn default_number<const N: u32>() -> u32 {
    N
}
