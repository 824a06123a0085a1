//! The measured system: an operator, and its jobs.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use stagecoach_cluster::{ControlPlane, Process, pipeline_job, until};

use super::pods::PODS;

/// The number of pods of each job.
pub(super) const STAGES: usize = 4;

/// An operator, and the jobs that it manages.
#[derive(Clone, Copy)]
pub(super) struct System {
    /// The name of the system in the report.
    pub(super) name: &'static str,
    /// Prepares a fresh control plane to serve the jobs.
    pub(super) install: fn(&ControlPlane),
    /// Starts the operator on that control plane; `None` for a system without an operator.
    pub(super) start: Option<fn(&ControlPlane) -> Process>,
    /// The path of the collection of the jobs.
    pub(super) jobs: &'static str,
    /// Returns a job of 4 pods with the given name. If a pod fails, the job restarts immediately.
    pub(super) job: fn(&str) -> Value,
    /// The labels with a pod's job and attempt.
    pub(super) labels: LabelKeys,
    /// The number of a job's first attempt.
    pub(super) first_attempt: u64,
}

/// The names of a pod's labels.
#[derive(Clone, Copy)]
pub(super) struct LabelKeys {
    /// The label with the job's name.
    pub(super) job: &'static str,
    /// The label with the attempt's number.
    pub(super) attempt: &'static str,
}

impl System {
    /// Creates a job.
    pub(super) fn create(&self, plane: &ControlPlane, name: &str) {
        let created = plane.client().create(self.jobs, &(self.job)(name));
        created.unwrap_or_else(|refusal| panic!("{refusal}"));
    }
}

/// Stagecoach without gang scheduling: the scheduler places pods one by one, as it places JobSet's pods.
pub(super) const STAGECOACH: System = System {
    name: "Stagecoach",
    install,
    start: Some(start),
    jobs: "/apis/stagecoach.dev/v1alpha1/namespaces/default/pipelinejobs",
    job: |name| gang_job(name, "None"),
    labels: LabelKeys { job: "stagecoach.dev/job", attempt: "stagecoach.dev/attempt" },
    first_attempt: 1,
};

/// Stagecoach with the gang scheduling of the Kubernetes scheduler, which places all pods of a job or none.
pub(super) const STAGECOACH_GANG: System =
    System { name: "Stagecoach, gang scheduling", job: |name| gang_job(name, "Native"), ..STAGECOACH };

/// A system without an operator, in which this program creates the pods itself. It shows the cluster's own cost for the
/// pods.
pub(super) const PODS_ALONE: System = System {
    name: "pods alone",
    install: |_| {},
    start: None,
    jobs: PODS,
    job: |name| {
        let (labels, spec) = (
            json!({"job": name, "attempt": "0"}),
            json!({"restartPolicy": "Never",
            "containers": [{"name": "trainer", "image": "none"}]}),
        );
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec})
    },
    labels: LabelKeys { job: "job", attempt: "attempt" },
    first_attempt: 0,
};

/// The PersistentVolumeClaim that all jobs share, and its PersistentVolume.
const VOLUME: &str = "
{apiVersion: v1, kind: PersistentVolume, metadata: {name: training}, spec: {
  accessModes: [ReadWriteMany], storageClassName: '', capacity: {storage: 1Gi}, hostPath: {path: /nonexistent}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: training}, spec: {
  accessModes: [ReadWriteMany], storageClassName: '', volumeName: training, resources: {requests: {storage: 1Gi}}}}
";

fn install(plane: &ControlPlane) {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/crd/pipelinejobs.yaml");
    plane.apply(&std::fs::read_to_string(manifest).unwrap());
    wait_served(plane, &STAGECOACH);
    plane.apply(VOLUME);
}

fn start(plane: &ControlPlane) -> Process {
    // the operator's release build, because this program may be built with another profile
    let own = std::env::current_exe().unwrap();
    let target = own.parent().and_then(Path::parent).unwrap();
    let mut command = Command::new(target.join("release/stagecoach-operator"));
    command.env("KUBECONFIG", plane.kubeconfig()).args([
        "--trainer-image",
        "none",
        "--listen",
        "127.0.0.1:0",
        "--log-level",
        "warn,kube_client=off",
    ]);
    Process::start(command, &plane.folder().join("operator.log")).unwrap()
}

/// Waits until the API server serves the system's jobs.
pub(super) fn wait_served(plane: &ControlPlane, system: &System) {
    until(&format!("{} to be served", system.jobs), || {
        plane.client().request(http::Method::GET, system.jobs, None).ok().map(drop)
    });
}

fn gang_job(name: &str, gang: &str) -> Value {
    let spec = json!({"stages": STAGES, "restart": {"backoff": {"initialSeconds": 0}, "reformTimeoutSeconds": 0, "stallTimeoutSeconds": 86400}, "scheduling": {"gang": gang}});
    pipeline_job(name, spec)
}
