//! Tests of jobs in the queues of the real Kueue.

mod admission;
mod checks;
mod crashes;
mod elastic;
mod multikueue;
mod outage;
mod preemption;
mod scaling;
mod topology;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use stagecoach_cluster::kueue::{self, Kueue, cluster_queue, collection, local_queue, priority_class, resource_flavor};
use stagecoach_cluster::{ControlPlaneSettings, merge, until};

use crate::support::{TestCluster, condition_of, job, jobs};

/// The value of STAGECOACH_NAMESPACES with which an operator watches all namespaces.
const ALL_NAMESPACES: &str = "";

/// A cluster with Kueue, and an operator that creates Workloads. The cluster is never dropped.
struct QueuedCluster {
    cluster: TestCluster,
    kueue: Kueue,
}

fn start() -> QueuedCluster {
    start_with(json!({}))
}

/// Like [`start`], with changes merged into Kueue's configuration.
fn start_with(changes: Value) -> QueuedCluster {
    // the tests of crashes run other operators in other namespaces
    start_in("default", changes)
}

/// Like [`start_with`], with an operator for these namespaces.
fn start_in(namespaces: &str, changes: Value) -> QueuedCluster {
    let cluster = TestCluster::with_values(ControlPlaneSettings::default(), &json!({"kueue": {"enabled": true}}));
    let mut configuration = json!({"featureGates": {"PriorityBoost": true, "ElasticJobsViaWorkloadSlices": true}});
    merge(&mut configuration, changes);
    let kueue = Kueue::start(&cluster.plane, configuration);
    let client = cluster.plane.client();
    kueue::create(client, &[resource_flavor("default", json!({})), priority_class("high", 1000)]);
    cluster.run_operator(&[("STAGECOACH_KUEUE", "true"), ("STAGECOACH_NAMESPACES", namespaces)]);
    QueuedCluster { cluster, kueue }
}

/// Returns the cluster of the tests that do not change Kueue. Each test has separate queues.
fn queued() -> &'static QueuedCluster {
    static CLUSTER: OnceLock<QueuedCluster> = OnceLock::new();
    CLUSTER.get_or_init(start)
}

/// Returns the cluster of the tests that need a Kueue without Workload slices, or that restart Kueue.
fn without_slices() -> &'static QueuedCluster {
    static CLUSTER: OnceLock<QueuedCluster> = OnceLock::new();
    CLUSTER.get_or_init(|| start_with(json!({"featureGates": {"ElasticJobsViaWorkloadSlices": false}})))
}

impl QueuedCluster {
    /// Creates a LocalQueue with a quota of `pods` pods. `spec` is merged into the ClusterQueue of the same name.
    fn queue(&self, pods: u32, spec: Value) -> String {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("queue-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let quota = json!({ "pods": pods });
        kueue::create(
            self.cluster.plane.client(),
            &[cluster_queue(&name, &[("default", quota)], spec), local_queue(&name, &name)],
        );
        name
    }

    /// Creates a job of two stages in a queue, with changes merged into the object.
    fn create(&self, name: &str, queue: &str, changes: Value) {
        let mut object = job(name, json!({"scheduling": {"kueue": {"queueName": queue}}}));
        merge(&mut object, changes);
        let created = self.cluster.plane.client().create(&jobs("default"), &object);
        created.unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    }

    /// Returns the Workloads of a job, in the order of their names.
    fn workloads(&self, job: &str) -> Vec<Value> {
        let path = format!("{}?labelSelector=stagecoach.dev/job={job}", collection("Workload", "default"));
        self.cluster.plane.client().list(&path)
    }

    /// Returns the newest unfinished Workload of a job.
    fn workload(&self, job: &str) -> Option<Value> {
        let is_finished = |workload: &Value| condition_of(workload, "Finished").is_some();
        self.workloads(job).into_iter().rfind(|workload| !is_finished(workload))
    }

    /// Waits until the condition `Admitted` of a job has this status.
    #[track_caller]
    fn wait_admitted(&self, name: &str, status: &str) -> Value {
        self.cluster.wait(name, &format!("Admitted={status}"), |job| {
            condition_of(job, "Admitted").is_some_and(|condition| condition["status"] == status)
        })
    }

    /// Waits until a condition of the job's Workload has this status.
    #[track_caller]
    fn wait_workload(&self, job: &str, kind: &str, status: &str) -> Value {
        until(&format!("the Workload of {job} to have {kind}={status}"), || {
            let workload = self.workload(job)?;
            condition_of(&workload, kind).filter(|condition| condition["status"] == status).map(|_| workload)
        })
    }
}

fn message(job: &Value, kind: &str) -> String {
    condition_of(job, kind).map(|condition| condition["message"].as_str().unwrap().to_owned()).unwrap_or_default()
}
