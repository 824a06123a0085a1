//! A cluster with one operator or none: a real API server, scheduler and controllers, and kwok, which simulates nodes
//! and pods.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use stagecoach_cluster::{Component, ControlPlane, ControlPlaneSettings, Process, tool};

use super::answers::StatusServer;
use super::pods::{PODS, Pods};
use super::system::{STAGES, System};
use crate::machine::{memory, processor_seconds};

const NODES: usize = 30;

/// A cluster with one operator or none.
pub(super) struct Cluster {
    // Rust drops the fields in this order, so the operator and kwok end before the control plane
    operator: Option<Process>,
    _nodes: Process,
    pub(super) plane: ControlPlane,
    pub(super) pods: Pods,
    pub(super) system: System,
}

impl Cluster {
    /// Starts a cluster with the operator.
    pub(super) fn start(system: System, answers: &StatusServer) -> Cluster {
        let mut cluster = Cluster::without_operator(system, answers, Vec::new());
        cluster.start_operator();
        cluster
    }

    /// Starts a cluster without the operator. `flags` are additional flags of the control plane's components.
    pub(super) fn without_operator(system: System, answers: &StatusServer, flags: Vec<(Component, String)>) -> Cluster {
        let cluster = Cluster::on(
            ControlPlane::start_with(ControlPlaneSettings { flags: [lifted(), flags].concat() }),
            system,
            answers,
            0,
        );
        (0..NODES).for_each(|node| cluster.add_node(node, 1000));
        cluster
    }

    /// Starts a cluster without the operator and without nodes. Clusters that run at the same time need different
    /// values of `number`, up to 100.
    pub(super) fn without_nodes(system: System, answers: &StatusServer, number: usize) -> Cluster {
        Cluster::on(ControlPlane::start(), system, answers, number)
    }

    fn on(plane: ControlPlane, system: System, answers: &StatusServer, number: usize) -> Cluster {
        let pods = Pods::follow(plane.client(), system.labels, answers.clone());
        (system.install)(&plane);
        Cluster { operator: None, _nodes: kwok(&plane, number), plane, pods, system }
    }

    /// Adds the node with the number `n` and room for `pods` pods.
    pub(super) fn add_node(&self, n: usize, pods: u32) {
        let room = json!({"cpu": "1000", "memory": "1000Gi", "pods": pods.to_string()});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{n}")},
            "status": {"allocatable": room, "capacity": room}});
        self.plane.client().create("/api/v1/nodes", &node).unwrap_or_else(|refusal| panic!("node-{n}: {refusal}"));
    }

    /// Starts the operator. A killed operator can be started again.
    pub(super) fn start_operator(&mut self) {
        self.operator = self.system.start.map(|start| start(&self.plane));
    }

    /// Kills the operator.
    pub(super) fn kill_operator(&mut self) {
        self.operator = None;
    }

    pub(super) fn create(&self, name: &str) {
        self.system.create(&self.plane, name);
    }

    /// Creates a job, and returns the seconds until its pods exist.
    pub(super) fn started(&self, name: &str) -> f64 {
        let started = Instant::now();
        self.create(name);
        (self.pods.wait(name, self.system.first_attempt, STAGES) - started).as_secs_f64()
    }

    /// Fails the second pod of the given attempt of each job, at the same time for all jobs. Returns the seconds until
    /// all pods of each job's next attempt exist.
    pub(super) fn restarted(&self, names: &[String], attempt: u64) -> Vec<f64> {
        let pods: Vec<String> = names.iter().map(|name| self.pods.second(name, attempt)).collect();
        let started = Instant::now();
        pods.iter().for_each(|pod| self.fail(pod));
        let all_there = |name: &String| (self.pods.wait(name, attempt + 1, STAGES) - started).as_secs_f64();
        names.iter().map(all_there).collect()
    }

    /// Writes the status that a kubelet writes after a container has ended with code 1.
    fn fail(&self, pod: &str) {
        let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap_or_default().to_string();
        let ended = json!({"exitCode": 1, "reason": "Error", "startedAt": now, "finishedAt": now});
        let container = json!({"name": "trainer", "image": "none", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": ended}});
        let status = json!({"status": {"phase": "Failed", "containerStatuses": [container]}});
        let path = format!("{PODS}/{pod}/status");
        self.plane.client().patch(&path, &status).unwrap_or_else(|refusal| panic!("{pod}: {refusal}"));
    }

    /// Returns the number of mutating requests since the API server started, by verb and resource.
    pub(super) fn writes(&self) -> BTreeMap<String, f64> {
        let output = self.plane.kubectl(&["get", "--raw", "/metrics"]);
        let mut all = BTreeMap::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Some((labels, value)) = line.strip_prefix("apiserver_request_total{").and_then(|l| l.split_once("} "))
            else {
                continue;
            };
            let label = |name: &str| {
                let from = labels.find(&format!("{name}=\""))? + name.len() + 2;
                labels[from..].split_once('"').map(|(value, _)| value.to_owned())
            };
            let [verb, resource, sub] = ["verb", "resource", "subresource"].map(|name| label(name).unwrap_or_default());
            // nodes and components renew their leases and update the objects of nodes independently of jobs
            let own = ["leases", "nodes"].contains(&resource.as_str());
            if ["POST", "PUT", "PATCH", "APPLY", "DELETE"].contains(&verb.as_str()) && !own {
                let slash = if sub.is_empty() { "" } else { "/" };
                *all.entry(format!("{verb} {resource}{slash}{sub}")).or_default() += value.parse().unwrap_or(0.0);
            }
        }
        all
    }

    /// Returns the processor seconds that the operator has used so far.
    pub(super) fn cpu(&self) -> f64 {
        self.operator.as_ref().map_or(0.0, |operator| processor_seconds(operator.id()))
    }

    /// Returns the processor seconds that the control plane has used so far: etcd, API server, scheduler and
    /// controllers.
    pub(super) fn plane_cpu(&self) -> f64 {
        self.plane.process_ids().into_iter().map(processor_seconds).sum()
    }

    /// Returns the mean number of cores that the operator and the control plane use during the next `window`.
    pub(super) fn cores(&self, window: Duration) -> [f64; 2] {
        let (before, started) = ([self.cpu(), self.plane_cpu()], Instant::now());
        std::thread::sleep(window);
        let seconds = started.elapsed().as_secs_f64();
        [(self.cpu() - before[0]) / seconds, (self.plane_cpu() - before[1]) / seconds]
    }

    /// Returns the kibibytes of the operator's memory, with `field` as in [`memory`].
    pub(super) fn memory(&self, field: &str) -> u64 {
        self.operator.as_ref().map_or(0, |operator| memory(operator.id(), field).unwrap())
    }
}

/// Starts kwok, which simulates the pods of all nodes. `number` determines the addresses of the pods.
fn kwok(plane: &ControlPlane, number: usize) -> Process {
    let stages = plane.folder().join("kwok.yaml");
    std::fs::write(&stages, include_str!("kwok.yaml")).unwrap();
    let mut command = Command::new(tool("kwok"));
    command.arg("--config").arg(stages);
    command.arg("--kubeconfig").arg(plane.kubeconfig());
    command.arg(format!("--cidr=127.{}.0.0/16", 64 + number));
    command.args(["--manage-all-nodes", "--node-ip=127.0.0.1", "--node-lease-duration-seconds=40"]);
    Process::start(command, &plane.folder().join("kwok.log")).unwrap()
}

/// Returns the flags that lift the rate limits of the control plane.
fn lifted() -> Vec<(Component, String)> {
    let rates = ["--kube-api-qps=5000", "--kube-api-burst=10000"];
    let mut flags: Vec<(Component, String)> = vec![
        (Component::ApiServer, "--max-requests-inflight=4000".into()),
        (Component::ApiServer, "--max-mutating-requests-inflight=2000".into()),
    ];
    for component in [Component::ControllerManager, Component::Scheduler] {
        flags.extend(rates.map(|flag| (component, flag.to_owned())));
    }
    flags
}
