//! The jobs that are compared.

use serde_json::{Value, json};
use stagecoach_cluster::{merge, pipeline_job};

use super::super::jobset::{JOBSET, job_set};
use super::super::system::{STAGECOACH, System};
use super::trainer::ReplicaPolicy;
use super::{REPLICAS, STAGES};

/// A job of one system.
pub(super) struct SpotJob {
    /// The name in the report.
    pub(super) name: &'static str,
    system: System,
    /// The label with a pod's index. A pod's stage is the index modulo the number of stages.
    pub(super) index: &'static str,
    /// The rules by which the simulated trainer uses the pods.
    pub(super) policy: ReplicaPolicy,
}

impl SpotJob {
    pub(super) const fn system(&self) -> System {
        self.system
    }
}

const RANK: &str = "stagecoach.dev/rank";
/// The restart limit of a JobSet. It is so high that no trace reaches it.
const MAX_RESTARTS: u32 = 100_000;
const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

pub(super) const CONTENDERS: [SpotJob; 5] = [
    SpotJob {
        name: "elastic, 1 to 8 replicas",
        system: System {
            job: |name| replicated(name, json!({"elastic": {"minDataParallel": 1, "maxDataParallel": REPLICAS}})),
            ..STAGECOACH
        },
        index: RANK,
        policy: ReplicaPolicy { min_replicas: 1, max_replicas: REPLICAS, keeps_survivors: true },
    },
    SpotJob {
        name: "fixed, 8 replicas",
        system: System { job: |name| fixed(name, REPLICAS), ..STAGECOACH },
        index: RANK,
        policy: ReplicaPolicy::fixed(REPLICAS, true),
    },
    SpotJob {
        name: "fixed, 4 replicas",
        system: System { job: |name| fixed(name, REPLICAS / 2), ..STAGECOACH },
        index: RANK,
        policy: ReplicaPolicy::fixed(REPLICAS / 2, true),
    },
    SpotJob {
        name: "JobSet, 8 replicas",
        system: System { job: |name| job_set(name, STAGES * REPLICAS, MAX_RESTARTS), ..JOBSET },
        index: COMPLETION_INDEX,
        policy: ReplicaPolicy::fixed(REPLICAS, false),
    },
    SpotJob {
        name: "JobSet, 4 replicas",
        system: System { job: |name| job_set(name, STAGES * REPLICAS / 2, MAX_RESTARTS), ..JOBSET },
        index: COMPLETION_INDEX,
        policy: ReplicaPolicy::fixed(REPLICAS / 2, false),
    },
];

fn fixed(name: &str, replicas: u32) -> Value {
    let job = replicated(name, json!({"dataParallel": replicas}));
    merged(job, json!({"spec": {"restart": {"minDataParallel": replicas}}}))
}

fn replicated(name: &str, changes: Value) -> Value {
    // these deadlines are long, so that no attempt ends while the trace has too few nodes
    let day = 86400;
    let spec = json!({
        "stages": STAGES,
        "training": {"microbatches": REPLICAS, "gradientBlocks": REPLICAS, "globalBatchSize": REPLICAS},
        "restart": {"backoff": {"initialSeconds": 0}, "reformTimeoutSeconds": day, "stallTimeoutSeconds": day, "startupTimeoutSeconds": day},
        "scheduling": {"gang": "None", "timeoutSeconds": day},
    });
    merged(pipeline_job(name, spec), json!({ "spec": changes }))
}

fn merged(mut object: Value, changes: Value) -> Value {
    merge(&mut object, changes);
    object
}
