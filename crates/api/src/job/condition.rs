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
    /// The status of the condition: True, False or Unknown.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// The generation of the spec that the condition refers to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The time at which `status` last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: Option<String>,
    /// The reason for the condition's current status, a CamelCase identifier.
    pub reason: String,
    /// A human-readable description of the current status.
    pub message: String,
}

impl PipelineJobStatus {
    /// Returns the condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}

/// The types of a job's conditions; docs/OPERATOR.md has a table of them.
pub mod condition_type {
    /// Whether the operator can run the spec.
    pub const ACCEPTED: &str = "Accepted";
    /// Whether the queue admits the job. Absent for a job without a queue.
    pub const ADMITTED: &str = "Admitted";
    /// Whether all pods are scheduled and have their image.
    pub const SCHEDULED: &str = "Scheduled";
    /// Whether the stages are ready.
    pub const RUNNING: &str = "Running";
    /// Whether the job completes training steps.
    pub const PROGRESSING: &str = "Progressing";
    /// Whether checkpoints can be saved.
    pub const CHECKPOINTS_HEALTHY: &str = "CheckpointsHealthy";
    /// Whether the environment of the stages stayed the same since the first step, so that every bit of the results is
    /// reproducible.
    pub const REPRODUCIBLE: &str = "Reproducible";
    /// Whether all audits so far found equal results.
    pub const AUDITS_EQUAL: &str = "AuditsEqual";
    /// Whether the job's objects remain as the operator wrote them.
    pub const OBJECTS_IN_SYNC: &str = "ObjectsInSync";
    /// Whether the job is suspended.
    pub const SUSPENDED: &str = "Suspended";
    /// Whether training is complete.
    pub const COMPLETE: &str = "Complete";
    /// Whether the job has failed and does not restart.
    pub const FAILED: &str = "Failed";
    /// Whether the job is in the state that the spec requests. This condition and the two below follow kstatus, the
    /// convention by which deployment tools such as Flux judge an object.
    pub const READY: &str = "Ready";
    /// Whether stages are being started or stopped.
    pub const RECONCILING: &str = "Reconciling";
    /// Whether the job can't continue until a user acts.
    pub const STALLED: &str = "Stalled";
}

/// The reasons of a job's conditions. The list lacks three kinds of reasons: the name of a job phase, the kind of a
/// failure, and a reason that the cluster itself reports. docs/REFERENCE.md has a remedy for each reason.
pub mod condition_reason {
    // Reasons of the condition Accepted.
    /// The operator can run the spec.
    pub const VALID: &str = "Valid";
    /// The spec has fields that this version of the operator lacks.
    pub const UNKNOWN_FIELDS: &str = "UnknownFields";
    /// The given partition does not fit the number of chunks, so the planner computes another partition.
    pub const PARTITION_COMPUTED: &str = "PartitionComputed";
    /// A stage gets more GPUs than it uses.
    pub const SURPLUS_GPUS: &str = "SurplusGpus";
    /// The spec is invalid, and the user must change it.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// The operator can't read the status, because another version wrote it.
    pub const UNKNOWN_STATUS: &str = "UnknownStatus";
    /// The operator can't read `status.record`, because another version wrote it.
    pub const UNKNOWN_RECORD: &str = "UnknownRecord";
    /// Another job already uses this job's storage folder.
    pub const FOLDER_TAKEN: &str = "FolderTaken";

    // Reasons of the condition Admitted, besides the reasons of Kueue's own conditions.
    /// The queue admits the job.
    pub const ADMITTED: &str = "Admitted";
    /// The job waits in its queue.
    pub const QUEUED: &str = "Queued";
    /// The job needs other pods than Kueue has admitted, so it waits in the queue again.
    pub const REQUEUED: &str = "Requeued";
    /// The operator runs without support for Kueue.
    pub const KUEUE_DISABLED: &str = "KueueDisabled";
    /// The priority class that the job names does not exist.
    pub const PRIORITY_CLASS_MISSING: &str = "PriorityClassMissing";
    /// The job has more kinds of pods than Kueue admits.
    pub const TOO_MANY_POD_SETS: &str = "TooManyPodSets";
    /// The job has ended, and is in no queue.
    pub const FINISHED: &str = "Finished";

    // Reasons of the condition Scheduled.
    /// All pods are scheduled and have their image.
    pub const ALL_SCHEDULED: &str = "AllScheduled";
    /// The job needs no pods now, because it is suspended, draining or finished.
    pub const NOT_WANTED: &str = "NotWanted";
    /// Pods are being created.
    pub const CREATING: &str = "Creating";
    /// Pods are not scheduled or wait for their image, and the cluster reports no reason.
    pub const WAITING: &str = "Waiting";
    /// The namespace's quota does not allow the pods.
    pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
    /// An object that does not belong to the job has a name that the job needs.
    pub const NAME_TAKEN: &str = "NameTaken";
    /// The cluster does not serve the PodGroup API that the spec names.
    pub const GANG_NOT_SERVED: &str = "GangNotServed";
    /// A ResourceFlavor for which the job is admitted does not exist.
    pub const FLAVOR_MISSING: &str = "FlavorMissing";
    /// Two parts of the job's admission contradict each other.
    pub const CONTRADICTORY_ADMISSION: &str = "ContradictoryAdmission";
    /// The operator can't write or read an attempt template.
    pub const INVALID_ATTEMPT_TEMPLATE: &str = "InvalidAttemptTemplate";

    // Reasons of the condition Running.
    /// All stages are ready.
    pub const ALL_READY: &str = "AllReady";
    /// The job trains without some of its replicas.
    pub const REPLICAS_MISSING: &str = "ReplicasMissing";

    // Reasons of the condition Progressing.
    /// The leader responded before, and does not respond at present.
    pub const STATUS_UNREACHABLE: &str = "StatusUnreachable";
    /// The leader has not responded yet. This is also a reason of Reproducible.
    pub const NOT_HEARD: &str = "NotHeard";

    // Reasons of the condition CheckpointsHealthy.
    /// A checkpoint is committed.
    pub const COMMITTED: &str = "Committed";
    /// The job can't save checkpoints.
    pub const SAVING_FAILS: &str = "SavingFails";
    /// The job has no committed checkpoint yet. For AuditsEqual, no audit has completed yet.
    pub const NONE_YET: &str = "NoneYet";
    /// The spec requests no periodic checkpoints. For AuditsEqual, the job has no audits.
    pub const OFF: &str = "Off";

    // Reasons of the condition Reproducible.
    /// The environment stayed the same since the first step.
    pub const ONE_ENVIRONMENT: &str = "OneEnvironment";
    /// The environment changed after the first step.
    pub const ENVIRONMENT_CHANGED: &str = "EnvironmentChanged";

    // Reasons of the condition AuditsEqual.
    /// All audits found equal results.
    pub const EQUAL: &str = "Equal";
    /// An audit found a difference between the results of two stages.
    pub const STAGE_DIFFERS: &str = "StageDiffers";

    // Reasons of the condition ObjectsInSync.
    /// No other client changes the objects.
    pub const IN_SYNC: &str = "InSync";
    /// Another client repeatedly changes or deletes an object after the operator has repaired it.
    pub const CHANGED_BY_OTHERS: &str = "ChangedByOthers";
    /// Another operator reconciles the job too.
    pub const OTHER_OPERATOR: &str = "OtherOperator";

    // Reasons of the conditions Ready and Reconciling.
    /// Stages are being started or stopped.
    pub const PROGRESSING: &str = "Progressing";

    // Reasons of the condition Complete.
    /// Training ended before its last step, because the held-out loss did not decrease for `data.evaluation.patience`
    /// consecutive evaluations.
    pub const NO_IMPROVEMENT: &str = "NoImprovement";

    // Reasons of the conditions Suspended, Complete, Failed and Stalled with the status False.
    /// The job is not suspended.
    pub const NOT_SUSPENDED: &str = "NotSuspended";
    /// Training is not complete.
    pub const NOT_COMPLETE: &str = "NotComplete";
    /// The job has not failed.
    pub const NOT_FAILED: &str = "NotFailed";
    /// The job can continue without a user's action.
    pub const NOT_STALLED: &str = "NotStalled";
}
