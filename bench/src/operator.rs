//! The operator with 500 jobs of 4 stages: real API server, scheduler and controllers; kwok plays nodes and pods.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stagecoach_cluster::{Component, ControlPlane, Process, Settings, tool, until};

use crate::machine::{describe, memory};
use crate::stats::{line, median, percentile};

const JOBS: usize = 500;
const STAGES: usize = 4;
const NODES: usize = 30;
/// Jobs that are started and restarted alone.
const SINGLES: usize = 20;
const ROOT: &str = "/apis/stagecoach.dev/v1alpha1/namespaces/default/pipelinejobs";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// The claim that all jobs share.
const VOLUME: &str = "
{apiVersion: v1, kind: PersistentVolume, metadata: {name: training}, spec: {
  accessModes: [ReadWriteMany], storageClassName: '', capacity: {storage: 1Gi}, hostPath: {path: /nonexistent}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: training}, spec: {
  accessModes: [ReadWriteMany], storageClassName: '', volumeName: training, resources: {requests: {storage: 1Gi}}}}
";

pub(crate) fn measure() -> Value {
    println!("the operator: {JOBS} jobs of {STAGES} stages");
    let plane = ControlPlane::start_with(Settings { flags: lifted() });
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/crd/pipelinejobs.yaml");
    plane.apply(&std::fs::read_to_string(manifest).unwrap());
    until("the CRD to be served", 60, || plane.client().request(http::Method::GET, ROOT, None).ok().map(drop));
    plane.apply(VOLUME);
    let cluster = Cluster { _nodes: nodes(&plane), operator: operator(&plane), plane };

    // one by one, on an idle operator
    let none = cluster.writes();
    let singles: Vec<f64> = (0..SINGLES).map(|n| cluster.started(&format!("single-{n}"))).collect();
    line(
        "apply -> 4 pods created, one job",
        format!("{:.0} ms", median(&singles) * 1e3),
        &format!("p99 {:.0} ms", percentile(&singles, 0.99) * 1e3),
    );
    cluster.wait_running(SINGLES);
    let started = cluster.writes();
    let restarts: Vec<f64> = (0..SINGLES).map(|n| cluster.restarted(&[format!("single-{n}")], 1)).collect();
    line(
        "a pod failed -> 4 new pods created",
        format!("{:.0} ms", median(&restarts) * 1e3),
        &format!("p99 {:.0} ms", percentile(&restarts, 0.99) * 1e3),
    );

    cluster.wait_running(SINGLES);
    let [per_start, per_restart] = [(&none, &started), (&started, &cluster.writes())].map(|(from, to)| each(from, to));
    for (what, writes) in [("start", &per_start), ("restart", &per_restart)] {
        println!("  writes by anybody, one {what}:");
        writes.iter().for_each(|(request, count)| line(&format!("  {request}"), format!("{count:.1}"), ""));
    }

    let before = cluster.cpu();
    let started = Instant::now();
    (0..JOBS).for_each(|n| cluster.create(&format!("job-{n}")));
    let applied = started.elapsed().as_secs_f64();
    (0..JOBS).for_each(|n| cluster.wait_attempt(&format!("job-{n}"), 1));
    let all = started.elapsed().as_secs_f64();
    cluster.wait_running(SINGLES + JOBS);
    let cpu = cluster.cpu() - before;
    line(
        "all 2,000 pods created",
        format!("{all:.1} s"),
        &format!("{applied:.1} s of it the client's own 500 requests; {cpu:.1} CPU-seconds until all run"),
    );
    let peak = cluster.memory("VmHWM:");
    let names: Vec<String> = (0..50).map(|n| format!("job-{n}")).collect();
    let at_once = cluster.restarted(&names, 1);
    line("50 failures at once -> 200 new pods", format!("{at_once:.1} s"), "");
    std::thread::sleep(Duration::from_secs(20));
    let (idle_from, since) = (cluster.cpu(), Instant::now());
    std::thread::sleep(Duration::from_secs(20));
    let idle = (cluster.cpu() - idle_from) / since.elapsed().as_secs_f64();
    line(
        "memory at the peak",
        format!("{:.0} MiB", peak as f64 / 1024.0),
        &format!(
            "{:.0} MiB idle; {:.1} % of a core with {} jobs running",
            cluster.memory("VmRSS:") as f64 / 1024.0,
            idle * 100.0,
            JOBS + SINGLES
        ),
    );
    json!({
        "machine": describe(),
        "startSeconds": singles,
        "restartSeconds": restarts,
        "allPodsSeconds": all,
        "applySeconds": applied,
        "cpuSeconds": cpu,
        "writesPerStart": per_start,
        "writesPerRestart": per_restart,
        "restart50Seconds": at_once,
        "peakKiB": peak,
        "idleKiB": cluster.memory("VmRSS:"),
        "idleCores": idle,
    })
}

struct Cluster {
    // dropped in this order
    operator: Process,
    _nodes: Process,
    plane: ControlPlane,
}

impl Cluster {
    fn create(&self, name: &str) {
        self.plane.client().create(ROOT, &job(name)).unwrap_or_else(|refusal| panic!("{refusal}"));
    }

    /// Waits for an attempt's pods, one by one: a list, asked for again and again, would be most of what is measured.
    fn wait_attempt(&self, name: &str, attempt: u64) {
        for stage in 0..STAGES {
            let path = format!("{PODS}/{name}-{stage}-{attempt}");
            let deadline = Instant::now() + Duration::from_secs(120);
            while self.plane.get(&path).is_none() {
                assert!(Instant::now() < deadline, "{path} did not come within 120 s");
                std::thread::sleep(Duration::from_millis(4));
            }
        }
    }

    /// Seconds from the creation of a job until its pods exist.
    fn started(&self, name: &str) -> f64 {
        let started = Instant::now();
        self.create(name);
        self.wait_attempt(name, 1);
        started.elapsed().as_secs_f64()
    }

    /// Seconds from the failure of a pod of each job until all pods of their next attempts exist.
    fn restarted(&self, names: &[String], attempt: u64) -> f64 {
        let started = Instant::now();
        for name in names {
            self.fail(&format!("{name}-1-{attempt}"));
        }
        names.iter().for_each(|name| self.wait_attempt(name, attempt + 1));
        started.elapsed().as_secs_f64()
    }

    /// Writes what a kubelet writes when a trainer ended with code 1.
    fn fail(&self, pod: &str) {
        let path = format!("{PODS}/{pod}/status");
        let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap_or_default().to_string();
        let ended = json!({"exitCode": 1, "reason": "Error", "startedAt": now, "finishedAt": now});
        let container = json!({"name": "trainer", "image": "none", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": ended}});
        let status = json!({"status": {"phase": "Failed", "containerStatuses": [container]}});
        self.plane.client().patch(&path, &status).unwrap_or_else(|refusal| panic!("{pod}: {refusal}"));
    }

    /// Requests that changed something, by verb and resource, since the API server started.
    fn writes(&self) -> BTreeMap<String, f64> {
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
            if ["POST", "PUT", "PATCH", "APPLY", "DELETE"].contains(&verb.as_str()) && resource != "leases" {
                let slash = if sub.is_empty() { "" } else { "/" };
                *all.entry(format!("{verb} {resource}{slash}{sub}")).or_default() += value.parse().unwrap_or(0.0);
            }
        }
        all
    }

    fn wait_running(&self, count: usize) {
        until("all jobs to run", 600, || {
            let running = |job: &&Value| job["status"]["phase"] == "Running";
            let all = self.plane.client().list(ROOT).iter().filter(running).count();
            std::thread::sleep(Duration::from_millis(200));
            (all >= count).then_some(())
        });
    }

    /// Processor seconds of the operator so far.
    fn cpu(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.operator.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
    }

    /// Kibibytes of the operator's memory.
    fn memory(&self, field: &str) -> u64 {
        memory(self.operator.id(), field)
    }
}

/// What was written once more for each of the single jobs.
fn each(from: &BTreeMap<String, f64>, to: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let more = |(request, count): (&String, &f64)| {
        let count = (count - from.get(request).unwrap_or(&0.0)) / SINGLES as f64;
        (count >= 0.1).then(|| (request.clone(), count))
    };
    to.iter().filter_map(more).collect()
}

/// Nodes with room for all pods, and kwok, which runs them.
fn nodes(plane: &ControlPlane) -> Process {
    let room = json!({"cpu": "1000", "memory": "1000Gi", "pods": "1000"});
    for n in 0..NODES {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{n}")},
            "status": {"allocatable": room, "capacity": room}});
        plane.client().create("/api/v1/nodes", &node).unwrap_or_else(|refusal| panic!("node-{n}: {refusal}"));
    }
    let stages = plane.folder().join("kwok.yaml");
    std::fs::write(&stages, include_str!("kwok.yaml")).unwrap();
    let mut command = Command::new(tool("kwok"));
    command.arg("--config").arg(stages);
    command.arg("--kubeconfig").arg(plane.kubeconfig());
    command.args([
        "--manage-all-nodes",
        "--cidr=127.64.0.0/16",
        "--node-ip=127.0.0.1",
        "--node-lease-duration-seconds=40",
    ]);
    Process::start(command, &plane.folder().join("kwok.log")).unwrap()
}

/// No rate limits in the control plane.
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

fn operator(plane: &ControlPlane) -> Process {
    // as users get it: beside the folder of this program's own profile
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

fn job(name: &str) -> Value {
    json!({
        "apiVersion": "stagecoach.dev/v1alpha1", "kind": "PipelineJob", "metadata": {"name": name},
        "spec": {
            "stages": STAGES,
            "model": {"type": "Llama", "llama": {
                "hiddenSize": 64, "numHiddenLayers": 4, "numAttentionHeads": 4, "intermediateSize": 128}},
            "data": {"paths": ["corpus/a.txt"], "sequenceLength": 64, "tokenizer": {"type": "Train", "train": {"vocabSize": 300}}},
            "training": {"steps": 100, "globalBatchSize": 8, "microbatches": 2, "learningRate": {"peak": 1e-3}},
            "storage": {"persistentVolumeClaim": {"claimName": "training"}},
            "restart": {"backoff": {"initialSeconds": 0}},
        },
    })
}
