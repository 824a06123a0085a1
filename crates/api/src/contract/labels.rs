//! Labels of the objects that the operator creates for a job.

/// The job's UID. A selector with this label matches only this job's objects, even if an earlier job had the same name.
pub const JOB_UID_LABEL: &str = "stagecoach.dev/job-uid";
/// The job's name.
pub const JOB_LABEL: &str = "stagecoach.dev/job";
/// The number of the attempt, from 1.
pub const ATTEMPT_LABEL: &str = "stagecoach.dev/attempt";
/// The incarnation: see [`env::INCARNATION`](super::env::INCARNATION).
pub const INCARNATION_LABEL: &str = "stagecoach.dev/incarnation";
/// The stage, from 0, within its replica.
pub const STAGE_LABEL: &str = "stagecoach.dev/stage";
/// The replica of the pipeline, from 0. Only the pods of jobs with several replicas have this label.
pub const REPLICA_LABEL: &str = "stagecoach.dev/replica";
/// Torch's rank: the number of a stage among the stages of all replicas. Only the pods of jobs with several replicas
/// have this label. With one replica, the rank equals the number of the stage.
pub const RANK_LABEL: &str = "stagecoach.dev/rank";
/// The number of a spare among the spares of its attempt. The pod of a spare never has the label of a stage, even after
/// the spare becomes a stage, because the operator has no permission to change pods.
pub const SPARE_LABEL: &str = "stagecoach.dev/spare";
