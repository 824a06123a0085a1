//! Labels of what the operator makes for a job.

/// The job's UID: selects its objects, also if another job had the same name.
pub const JOB_UID_LABEL: &str = "stagecoach.dev/job-uid";
/// The job's name.
pub const JOB_LABEL: &str = "stagecoach.dev/job";
/// The attempt number.
pub const ATTEMPT_LABEL: &str = "stagecoach.dev/attempt";
/// The number of pods of the stage that were replaced in the attempt before this one.
pub const INCARNATION_LABEL: &str = "stagecoach.dev/incarnation";
/// The stage, of its replica.
pub const STAGE_LABEL: &str = "stagecoach.dev/stage";
/// The replica of the pipeline, where there are several.
pub const REPLICA_LABEL: &str = "stagecoach.dev/replica";
/// Torch's rank: the number of a stage among those of all replicas. Where there are several replicas; else it is the
/// stage.
pub const RANK_LABEL: &str = "stagecoach.dev/rank";
/// The number of a spare, of those of its attempt. It has no label with a stage, also once it has taken the place of
/// one: the operator may not change pods.
pub const SPARE_LABEL: &str = "stagecoach.dev/spare";
