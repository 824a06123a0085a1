//! The contract between a stage and the processes that start and watch it: the stage's inputs (environment, paths,
//! ports) and its outputs (exit code, termination message, `/status`). The contract is the same for a pod, a local
//! process and a custom trainer.

mod environment;
mod labels;
mod node_affinity;
mod notes;
mod status;
mod termination;

pub use crate::mesh::{MAX_SPARES, MAX_STAGES, Mesh};
pub use environment::{ContractError, StageEnv, env};
pub use labels::{
    ATTEMPT_LABEL, INCARNATION_LABEL, JOB_LABEL, JOB_UID_LABEL, RANK_LABEL, REPLICA_LABEL, SPARE_LABEL, STAGE_LABEL,
};
pub use node_affinity::keep_off_nodes;
pub use notes::{PAGE_NOTE, SPARE_TOOK_PLACE, promoted_spare, promotion_note};
pub use status::{AuditStatus, GroupStatus, LostStage, StagePhase, StageStatus, StatusQuery, SuspectedStage};
pub use termination::{ExitCode, FailureKind, TERMINATION_MESSAGE_BYTES, TerminationMessage};

/// The port on which stage 0 listens for the other stages, in a cluster.
pub const MASTER_PORT: u16 = 29500;
/// The port of `/healthz`, `/readyz`, `/metrics` and `/status`, in a cluster.
pub const HTTP_PORT: u16 = 9090;
/// The port of the live page in stage 0's pod. The page listens on the pod's loopback interface, so that `kubectl
/// port-forward` reaches it and other pods do not.
pub const PAGE_PORT: u16 = 9091;
/// The path of the attempt's job file in a pod.
pub const CONFIG_PATH: &str = "/etc/stagecoach/job.yaml";
/// The path at which a pod mounts the job's shared volume, which has the corpus and the checkpoints.
pub const WORKSPACE_PATH: &str = "/workspace";
/// The name of the container that runs the stage. The stage ends when this container exits.
pub const CONTAINER_NAME: &str = "trainer";
/// The name of the resource under which NVIDIA's device plugin advertises GPUs.
pub const GPU_RESOURCE: &str = "nvidia.com/gpu";
/// The trainer's arguments in a pod.
pub const CONTAINER_ARGS: [&str; 1] = ["stage"];
/// The termination grace period of a stage in seconds, unless the pod template sets another one.
pub const DEFAULT_TERMINATION_GRACE_SECONDS: u64 = 120;
