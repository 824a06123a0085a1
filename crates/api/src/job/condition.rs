//! The conditions of a job's status: their form, types and reasons.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PipelineJobStatus;

/// One aspect of a job's state, as Kubernetes' API conventions define conditions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["type", "status", "reason", "message"]))]
pub struct Condition {
    /// The type of the condition.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// The generation of the spec that the condition refers to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The time of the last change of `status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: Option<String>,
    /// The reason, a CamelCase identifier.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

impl PipelineJobStatus {
    /// The condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}

/// The types of a job's conditions; docs/OPERATOR.md has a table of them.
pub mod condition_type {
    /// Whether the spec can be run.
    pub const ACCEPTED: &str = "Accepted";
    /// Whether the queue admits the job. Absent for a job without a queue.
    pub const ADMITTED: &str = "Admitted";
    /// Whether all pods are scheduled and have their image.
    pub const SCHEDULED: &str = "Scheduled";
    /// Whether the stages are ready.
    pub const RUNNING: &str = "Running";
    /// Whether steps are trained.
    pub const PROGRESSING: &str = "Progressing";
    /// Whether checkpoints can be saved.
    pub const CHECKPOINTS_HEALTHY: &str = "CheckpointsHealthy";
    /// Whether all that changes bits was the same since the first step.
    pub const REPRODUCIBLE: &str = "Reproducible";
    /// Whether all that a second stage has computed again was the same.
    pub const AUDITS_EQUAL: &str = "AuditsEqual";
    /// Whether no other client changes the job's objects.
    pub const OBJECTS_IN_SYNC: &str = "ObjectsInSync";
    /// Whether the job is suspended.
    pub const SUSPENDED: &str = "Suspended";
    /// Whether training is complete.
    pub const COMPLETE: &str = "Complete";
    /// Whether the job was given up.
    pub const FAILED: &str = "Failed";
    /// kstatus: whether the job is as the spec wants it.
    pub const READY: &str = "Ready";
    /// kstatus: whether stages are being started or stopped.
    pub const RECONCILING: &str = "Reconciling";
    /// kstatus: whether the job waits for a user.
    pub const STALLED: &str = "Stalled";
}

/// The reasons of a job's conditions, but for those that are a phase, a failure's, or the cluster's own;
/// docs/REFERENCE.md says what to do about each.
pub mod condition_reason {
    // of Accepted
    /// The spec can be run.
    pub const VALID: &str = "Valid";
    /// The spec has fields that the operator does not know.
    pub const UNKNOWN_FIELDS: &str = "UnknownFields";
    /// The given partition does not fit the number of chunks.
    pub const PARTITION_COMPUTED: &str = "PartitionComputed";
    /// A stage gets more GPUs than it uses.
    pub const SURPLUS_GPUS: &str = "SurplusGpus";
    /// The user must change the spec.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// The status was written by another version.
    pub const UNKNOWN_STATUS: &str = "UnknownStatus";
    /// `status.record` was written by another version.
    pub const UNKNOWN_RECORD: &str = "UnknownRecord";
    /// Another job has the folder.
    pub const FOLDER_TAKEN: &str = "FolderTaken";

    // of Admitted, besides the reasons of Kueue's own conditions
    /// The queue admits the job.
    pub const ADMITTED: &str = "Admitted";
    /// The job waits in its queue.
    pub const QUEUED: &str = "Queued";
    /// The admitted job asks for other pods, and must be admitted again.
    pub const REQUEUED: &str = "Requeued";
    /// The operator runs without support for Kueue.
    pub const KUEUE_DISABLED: &str = "KueueDisabled";
    /// The priority class that the job names does not exist.
    pub const PRIORITY_CLASS_MISSING: &str = "PriorityClassMissing";
    /// The job has more kinds of pods than Kueue admits.
    pub const TOO_MANY_POD_SETS: &str = "TooManyPodSets";
    /// The job has ended, and is in no queue.
    pub const FINISHED: &str = "Finished";

    // of Scheduled
    /// All pods are scheduled and have their image.
    pub const ALL_SCHEDULED: &str = "AllScheduled";
    /// The job wants no pods.
    pub const NOT_WANTED: &str = "NotWanted";
    /// Pods are being created.
    pub const CREATING: &str = "Creating";
    /// Pods wait, and the cluster gives no reason.
    pub const WAITING: &str = "Waiting";
    /// The namespace has no quota for the pods.
    pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
    /// Another's object has the name of one that the job needs.
    pub const NAME_TAKEN: &str = "NameTaken";
    /// The cluster does not serve the PodGroup API that the spec names.
    pub const GANG_NOT_SERVED: &str = "GangNotServed";
    /// A ResourceFlavor for which the job is admitted does not exist.
    pub const FLAVOR_MISSING: &str = "FlavorMissing";
    /// Two parts of the job's admission contradict each other.
    pub const CONTRADICTORY_ADMISSION: &str = "ContradictoryAdmission";
    /// An attempt template can't be written or read.
    pub const INVALID_ATTEMPT_TEMPLATE: &str = "InvalidAttemptTemplate";

    // of Running
    /// All stages are ready.
    pub const ALL_READY: &str = "AllReady";
    /// The job trains without some of its replicas.
    pub const REPLICAS_MISSING: &str = "ReplicasMissing";

    // of Progressing
    /// Stage 0 does not answer any more.
    pub const STATUS_UNREACHABLE: &str = "StatusUnreachable";
    /// Stage 0 has not answered yet; also of Reproducible.
    pub const NOT_HEARD: &str = "NotHeard";

    // of CheckpointsHealthy
    /// A checkpoint is committed.
    pub const COMMITTED: &str = "Committed";
    /// No checkpoint can be saved.
    pub const SAVING_FAILS: &str = "SavingFails";
    /// There is none yet; also of AuditsEqual.
    pub const NONE_YET: &str = "NoneYet";
    /// The spec wants none; also of AuditsEqual.
    pub const OFF: &str = "Off";

    // of Reproducible
    /// The environment was the same since the first step.
    pub const ONE_ENVIRONMENT: &str = "OneEnvironment";
    /// The environment has changed.
    pub const ENVIRONMENT_CHANGED: &str = "EnvironmentChanged";

    // of AuditsEqual
    /// All audits were equal.
    pub const EQUAL: &str = "Equal";
    /// A stage computed something else than another.
    pub const STAGE_DIFFERS: &str = "StageDiffers";

    // of ObjectsInSync
    /// No other client changes the objects.
    pub const IN_SYNC: &str = "InSync";
    /// Another client changes or deletes an object each time that the operator repairs it.
    pub const CHANGED_BY_OTHERS: &str = "ChangedByOthers";
    /// Another operator reconciles the job too.
    pub const OTHER_OPERATOR: &str = "OtherOperator";

    // of Ready and Reconciling
    /// Stages are being started or stopped.
    pub const PROGRESSING: &str = "Progressing";

    // of Complete
    /// Training ended before its last step, since the held-out loss did not become lower.
    pub const NO_IMPROVEMENT: &str = "NoImprovement";

    // of Suspended, Complete, Failed and Stalled, where they are False
    /// The job is not suspended.
    pub const NOT_SUSPENDED: &str = "NotSuspended";
    /// Training is not complete.
    pub const NOT_COMPLETE: &str = "NotComplete";
    /// The job has not failed.
    pub const NOT_FAILED: &str = "NotFailed";
    /// The job does not wait for a user.
    pub const NOT_STALLED: &str = "NotStalled";
}
