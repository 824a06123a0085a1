//! The decisions before the first step: the numbers that a job does not specify (steps, vocabulary size), the
//! partition, and the programs. [`JobConfig`] is the trainer's form of the job, [`plan_pipeline`] chooses schedule and
//! partition, and the leader of the group sends the [`Plan`] to the other stages. The choice uses the times that
//! [`measure_profile`] measures or [`Roofline`] predicts. [`init`] proposes a job.

mod candidates;
mod checkpoint_link;
mod data_config;
mod decay_extension;
mod environment;
mod identity;
pub mod init;
mod initial_model;
mod job_config;
mod memory;
mod meshes;
mod optimal;
mod pipeline_layout;
mod plan;
mod profile;
mod profiler;
mod remote_models;
mod resume;
mod roofline;
mod speeds;
mod trainer_state;

pub use checkpoint_link::CheckpointLink;
pub use environment::{environment, environment_differences};
pub use job_config::{GENERATION_CONFIG_FILE, JobConfig, check_job};
pub use memory::StageBytes;
pub use meshes::{MeshPlan, every_mesh};
pub use pipeline_layout::{
    Alternative, PipelineLayout, PlannedStage, plan_pipeline, plan_pipeline_on, smaller_programs,
};
pub use plan::{Plan, PlannedSet, VerifiedPlan};
pub use profile::{ModuleSeconds, Profile};
pub use profiler::measure_profile;
pub use remote_models::{FetchExtent, FetchReports, RemoteModels, has_remote_models};
pub use resume::{recorded_gradient_blocks, recorded_last_sequences, recorded_streaming};
pub use roofline::{OperationCost, Roofline, gpu_names};
pub use speeds::{Machines, attempt_speeds, measured_speeds};
pub use trainer_state::{HeldOutLosses, TrainerState};
