//! A job on the node as its user sees it: through kubectl, the API, and the files on the volume.

use std::path::PathBuf;

use http::Method;
use serde_json::{Value, json};
use stagecoach_cluster::{condition_of, merge, until_or_tell};
use stagecoach_node::Container;

use crate::{Hashes, NAMESPACE, Product};

/// Returns the manifest on which all jobs of these tests are based: three stages train a small Llama on three plays,
/// with a checkpoint every 20 steps.
pub fn spec(name: &str, namespace: &str) -> Value {
    json!({
        "apiVersion": "stagecoach.dev/v1alpha1",
        "kind": "PipelineJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "stages": 3,
            "model": {"type": "Llama", "llama": {
                "hiddenSize": 96, "numHiddenLayers": 6, "numAttentionHeads": 4, "intermediateSize": 256}},
            "data": {
                "paths": ["corpus/shakespeare/*.txt"],
                "sequenceLength": 64,
                "tokenizer": {"type": "Train", "train": {"vocabSize": 1024}},
            },
            "training": {
                "steps": 300, "globalBatchSize": 16, "microbatches": 4, "gradientClipNorm": 1.0,
                "learningRate": {"peak": 2e-3, "warmupSteps": 20},
            },
            "checkpoint": {"everySteps": 20, "keepLast": 3},
            "storage": {"persistentVolumeClaim": {"claimName": "training"}},
            "restart": {"maxRestarts": 20, "backoff": {"initialSeconds": 0}},
            "template": {"spec": {
                "terminationGracePeriodSeconds": 60,
                "containers": [{
                    "name": "trainer",
                    "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
                }],
            }},
        },
    })
}

/// Returns changes of the manifest's spec that let a job train longer than a test takes.
pub fn endless() -> Value {
    json!({"training": {"steps": 1_000_000, "learningRate": {"decaySteps": 300}}})
}

/// A job that was applied. Dropping this value deletes the job and its pods.
pub struct E2eJob<'p> {
    /// The installation in which the job runs.
    pub product: &'p Product,
    /// `metadata.name`
    pub name: String,
    /// The job's folder on the volume.
    pub folder: PathBuf,
}

impl<'p> E2eJob<'p> {
    /// Applies the manifest of [`spec`] with the name `name`. `changes` are merged into the `spec` of the manifest.
    #[track_caller]
    pub fn apply(product: &'p Product, name: &str, changes: Value) -> E2eJob<'p> {
        let mut manifest = spec(name, NAMESPACE);
        merge(&mut manifest["spec"], changes);
        product.node.apply(&manifest.to_string());
        println!("-- {name}");
        E2eJob { product, name: name.into(), folder: product.volume.join(name) }
    }

    /// Returns the job's object.
    pub fn get(&self) -> Value {
        self.product.node.get(&self.path()).unwrap_or_else(|| panic!("{} is gone", self.name))
    }

    fn path(&self) -> String {
        format!("/apis/stagecoach.dev/v1alpha1/namespaces/{NAMESPACE}/pipelinejobs/{}", self.name)
    }

    /// Waits until the job's object satisfies `wanted`. Returns the object.
    #[track_caller]
    pub fn wait(&self, what: &str, mut wanted: impl FnMut(&Value) -> bool) -> Value {
        // a missing answer is not an error, since some tests stop the API server
        let job = || self.product.node.client().request(Method::GET, &self.path(), None).ok();
        let details = || {
            let pods = self.product.kubectl(&["get", "pods", "-o", "wide"]);
            format!(": {:#}\n{pods}", job().map(|job| job["status"].clone()).unwrap_or_default())
        };
        until_or_tell(&format!("{} to be {what}", self.name), || job().filter(|job| wanted(job)), details)
    }

    /// Waits for a phase. Panics if the job reaches the phase `Failed` instead.
    #[track_caller]
    pub fn wait_phase(&self, phase: &str) -> Value {
        let job = self.wait(phase, |job| job["status"]["phase"] == phase || job["status"]["phase"] == "Failed");
        assert_eq!(job["status"]["phase"], phase, "{:#}", job["status"]);
        job
    }

    /// Waits until the job runs in attempt `number`.
    #[track_caller]
    pub fn wait_running(&self, number: u64) -> Value {
        self.wait(&format!("running attempt {number}"), |job| {
            job["status"]["phase"] == "Running" && job["status"]["attempt"]["number"] == number
        })
    }

    /// Returns the number of the current attempt, or 0 before the first attempt.
    pub fn attempt(&self) -> u64 {
        self.get()["status"]["attempt"]["number"].as_u64().unwrap_or_default()
    }

    /// Returns the last step in the job's metrics, or 0 if there are no metrics.
    pub fn step(&self) -> u64 {
        let metrics = std::fs::read_to_string(self.folder.join("metrics.jsonl")).unwrap_or_default();
        let lines = metrics.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter_map(|line| line["step"].as_u64()).next().unwrap_or_default()
    }

    /// Waits until the metrics contain `step` or a later step.
    #[track_caller]
    pub fn wait_step(&self, step: u64) {
        self.wait(&format!("at step {step}"), |_| self.step() >= step);
    }

    /// Returns the job's pods, including those that are being deleted.
    pub fn all_pods(&self) -> Vec<Value> {
        let query = format!("/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=stagecoach.dev/job={}", self.name);
        self.product.node.client().list(&query)
    }

    /// Returns the job's pods, except those that are being deleted.
    pub fn pods(&self) -> Vec<Value> {
        let mut pods = self.all_pods();
        pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        pods
    }

    /// Returns the UIDs of the job's pods, sorted.
    pub fn pod_uids(&self) -> Vec<String> {
        let mut uids: Vec<String> =
            self.pods().iter().map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned()).collect();
        uids.sort();
        uids
    }

    /// Waits for a ready pod of a spare. The UID of the pod must not be in `others`. Returns the UID.
    #[track_caller]
    pub fn wait_spare(&self, others: &[String]) -> String {
        let is_ready = |pod: &&Value| {
            pod["metadata"]["labels"]["stagecoach.dev/spare"].is_string()
                && condition_of(pod, "Ready").is_some_and(|ready| ready["status"] == "True")
        };
        let mut found = None;
        self.wait("with a spare that stands by", |_| {
            let pods = self.pods();
            let uids = pods.iter().filter(is_ready).filter_map(|pod| pod["metadata"]["uid"].as_str());
            found = uids.map(str::to_owned).find(|uid| !others.contains(uid));
            found.is_some()
        });
        found.unwrap()
    }

    /// Returns the newest pod that the operator created for a rank of the current attempt. `stage` is the rank, which
    /// is the number of the stage in a job without replicas. A spare that has taken the place of this rank does not
    /// count.
    #[track_caller]
    fn newest_pod(&self, stage: u32) -> Value {
        let attempt = self.attempt();
        let label = |pod: &Value, name: &str| -> Option<u64> {
            pod["metadata"]["labels"][format!("stagecoach.dev/{name}")].as_str()?.parse().ok()
        };
        let mut pods = self.all_pods();
        let rank = |pod: &Value| label(pod, "rank").or(label(pod, "stage"));
        pods.retain(|pod| (rank(pod), label(pod, "attempt")) == (Some(stage.into()), Some(attempt)));
        pods.into_iter().max_by_key(|pod| label(pod, "incarnation")).unwrap()
    }

    /// Returns the name of the newest pod of the rank `stage` in the current attempt.
    #[track_caller]
    pub fn pod(&self, stage: u32) -> String {
        self.newest_pod(stage)["metadata"]["name"].as_str().unwrap().to_owned()
    }

    /// Returns the trainer's container in the newest pod of the rank `stage`.
    #[track_caller]
    pub fn trainer(&self, stage: u32) -> Container {
        self.product.node.container(self.newest_pod(stage)["metadata"]["uid"].as_str().unwrap(), "trainer")
    }

    /// Returns the number of restarts so far.
    pub fn restarts(&self) -> u64 {
        self.get()["status"]["restarts"]["total"].as_u64().unwrap_or_default()
    }

    /// Waits until the job is complete. Returns the hashes of its result.
    #[track_caller]
    pub fn complete(&self) -> Hashes {
        self.wait_phase("Complete");
        Hashes::read(&self.folder).unwrap_or_else(|| panic!("{} has no result.json", self.folder.display()))
    }

    /// Merges changes into the job's spec, as `kubectl patch` does.
    #[track_caller]
    pub fn edit(&self, spec: Value) {
        let patch = json!({ "spec": spec }).to_string();
        self.product.kubectl(&["patch", "pj", &self.name, "--type=merge", "-p", &patch]);
    }

    /// Returns the reasons of the events about the job.
    pub fn events(&self) -> Vec<String> {
        let events = self.product.node.client().list(&format!("/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"));
        let about =
            |event: &&Value| event["regarding"]["kind"] == "PipelineJob" && event["regarding"]["name"] == *self.name;
        events.iter().filter(about).filter_map(|event| event["reason"].as_str().map(str::to_owned)).collect()
    }
}

impl Drop for E2eJob<'_> {
    fn drop(&mut self) {
        let pods = format!("-l=stagecoach.dev/job={}", self.name);
        if std::thread::panicking() {
            let reported = self.product.node.kubectl(&["-n", NAMESPACE, "logs", &pods, "--prefix", "--tail=15"], "");
            eprintln!("{}", String::from_utf8_lossy(&reported.stdout));
        }
        // a failure of the clean-up must not hide the failure of the test
        let _ = self.product.node.kubectl(&["-n", NAMESPACE, "delete", "pj", &self.name, "--ignore-not-found"], "");
        let _ =
            self.product.node.kubectl(&["-n", NAMESPACE, "wait", "--for=delete", "pod", &pods, "--timeout=90s"], "");
    }
}
