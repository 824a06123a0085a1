//! Labels of the objects that the operator creates for a job.

/// The job's UID. It selects the job's objects, also if another job had the same name.
pub const JOB_UID_LABEL: &str = "stagecoach.dev/job-uid";
/// The job's name.
pub const JOB_LABEL: &str = "stagecoach.dev/job";
/// The attempt number.
pub const ATTEMPT_LABEL: &str = "stagecoach.dev/attempt";
/// The number of pods of the stage in the attempt that were replaced before this one.
pub const INCARNATION_LABEL: &str = "stagecoach.dev/incarnation";
/// The stage, within its replica.
pub const STAGE_LABEL: &str = "stagecoach.dev/stage";
/// The replica of the pipeline, if there are several.
pub const REPLICA_LABEL: &str = "stagecoach.dev/replica";
/// Torch's rank: the number of a stage among the stages of all replicas. Set only if there are several replicas; with
/// one replica, the rank is the stage.
pub const RANK_LABEL: &str = "stagecoach.dev/rank";
/// The number of a spare among the spares of its attempt. A spare has no label with a stage, even after it has taken
/// the place of one, because the operator may not change pods.
pub const SPARE_LABEL: &str = "stagecoach.dev/spare";
