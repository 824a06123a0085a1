//! The contract between a stage and the processes that start and watch it: the stage's inputs (environment, paths,
//! ports) and its outputs (exit code, termination message, `/status`). The contract is the same for a pod, a local
//! process and a custom trainer. The ports, paths and names of this module apply only in a cluster.

mod environment;
mod labels;
mod node_affinity;
mod notes;
mod status;
mod termination;

pub use crate::mesh::{MAX_STAGES, Mesh};
pub use environment::{ContractError, StageEnv, env};
pub use labels::{
    ATTEMPT_LABEL, INCARNATION_LABEL, JOB_LABEL, JOB_UID_LABEL, RANK_LABEL, REPLICA_LABEL, SPARE_LABEL, STAGE_LABEL,
};
pub use node_affinity::keep_off_nodes;
pub use notes::{PAGE_NOTE, SPARE_TOOK_PLACE, promoted_spare, promotion_note};
pub use status::{AuditStatus, GroupStatus, LostStage, StagePhase, StageStatus, StatusQuery, SuspectedStage};
pub use termination::{ExitCode, FailureKind, TERMINATION_MESSAGE_BYTES, TerminationMessage};

/// The port on which rank 0 of a custom trainer listens for the other ranks, in a cluster. The leader of the built-in
/// trainer listens on a free port, and publishes its address on the volume.
pub const MASTER_PORT: u16 = 29500;
/// The port of `/healthz`, `/readyz`, `/metrics` and `/status`, in a cluster.
pub const HTTP_PORT: u16 = 9090;
/// The port of the live page, a web page about the job, in the pod of the leader. The leader is the stage that holds
/// the newest fence, the right to commit checkpoints. The page listens on the pod's loopback interface, so that
/// `kubectl port-forward` reaches it and other pods do not. If the port is in use, the page has another port.
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
