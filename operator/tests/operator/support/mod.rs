//! Runs the real operator, with the chart's service account and permissions, and a real API server. The kubelet is
//! simulated.

mod objects;
mod operator_process;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use serde_json::{Value, json};
use stagecoach_api::contract::{StagePhase, StageStatus};
use stagecoach_api::job::ProgressStatus;
pub use stagecoach_cluster::condition_of;
use stagecoach_cluster::{ControlPlane, ControlPlaneSettings, Process, TestKubelet, chart, until, until_or_tell};

pub use objects::{config_map, has_condition, job, jobs, last_failure, network_policy, path};
use objects::{split, volume};
pub use operator_process::OperatorProcess;

/// The operator's namespace.
const OPERATOR_NAMESPACE: &str = "stagecoach-system";

/// A cluster in which the operator runs.
pub struct TestCluster {
    // Rust drops the fields in this order, so the operators end before the cluster does
    operators: Mutex<Vec<OperatorProcess>>,
    pub kubelet: TestKubelet,
    pub plane: ControlPlane,
    kubeconfig: PathBuf,
    /// The number of operators that were started so far. This number names the log file of the next operator.
    started: AtomicUsize,
}

/// The namespaces of the operator in [`shared`].
const SHARED_NAMESPACES: &str = "default,few,small,strict";

/// Returns the cluster that is shared by all tests that do not disturb the nodes, the API server or the CRD. Its
/// operator watches [`SHARED_NAMESPACES`]. A test that starts another operator uses another namespace for it. The
/// cluster is never dropped: its processes end with the test's process.
pub fn shared() -> &'static TestCluster {
    static CLUSTER: OnceLock<TestCluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let cluster = TestCluster::without_operator();
        cluster.run_operator(&[("STAGECOACH_NAMESPACES", SHARED_NAMESPACES)]);
        cluster
    })
}

/// Returns the cluster of the tests that disturb the nodes, the API server or the CRD. Only one test at a time can use
/// this cluster. The function first waits until all nodes are ready and have no taints. The cluster's operator watches
/// all namespaces.
pub fn exclusive() -> MutexGuard<'static, TestCluster> {
    static CLUSTER: OnceLock<Mutex<TestCluster>> = OnceLock::new();
    let start = || {
        let cluster = TestCluster::without_operator();
        cluster.run_operator(&[]);
        Mutex::new(cluster)
    };
    // ignore a poisoned lock, so that a failed test does not fail the next test
    let cluster = CLUSTER.get_or_init(start).lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    until("all nodes to be in order", || {
        let nodes = cluster.plane.client().list("/api/v1/nodes");
        let in_order = |node: &Value| {
            node["spec"]["taints"].is_null()
                && condition_of(node, "Ready").is_some_and(|ready| ready["status"] == "True")
        };
        nodes.iter().all(in_order).then_some(())
    });
    cluster
}

impl TestCluster {
    fn without_operator() -> TestCluster {
        TestCluster::with_settings(ControlPlaneSettings::default())
    }

    /// Starts a cluster that only the caller uses, without an operator. Its control plane has these settings.
    pub fn with_settings(settings: ControlPlaneSettings) -> TestCluster {
        TestCluster::with_values(settings, &Value::Null)
    }

    /// Like [`TestCluster::with_settings`]. The operator has the rights that the chart grants with these Helm values;
    /// null stands for the chart's defaults.
    pub fn with_values(settings: ControlPlaneSettings, values: &Value) -> TestCluster {
        let plane = ControlPlane::start_with(settings);
        plane.create_namespace(OPERATOR_NAMESPACE);
        let objects = chart::apply(&plane, OPERATOR_NAMESPACE, values, &chart::OPERATOR_KINDS);
        plane.wait_for_crd("pipelinejobs.stagecoach.dev");
        let account = objects.iter().find(|object| object["kind"] == "ServiceAccount").unwrap();
        let kubeconfig =
            plane.service_account_kubeconfig(OPERATOR_NAMESPACE, account["metadata"]["name"].as_str().unwrap());
        let kubelet = TestKubelet::start(&plane, 3, 64);
        volume(&plane, "default");
        TestCluster { operators: Mutex::default(), kubelet, plane, kubeconfig, started: AtomicUsize::new(0) }
    }

    /// Starts an operator with additional environment variables. The operator ends with the cluster, unless
    /// [`TestCluster::kill_operator`] kills it earlier.
    pub fn run_operator(&self, env: &[(&str, &str)]) {
        self.operators.lock().unwrap().push(self.operator(&self.kubeconfig, env));
    }

    /// Starts an operator with a kubeconfig and additional environment variables. The operator ends when the result is
    /// dropped.
    pub fn operator(&self, kubeconfig: &Path, env: &[(&str, &str)]) -> OperatorProcess {
        self.operator_of(Path::new(env!("CARGO_BIN_EXE_stagecoach-operator")), kubeconfig, env)
    }

    /// Like [`TestCluster::operator`], for the operator of another version.
    pub fn operator_of(&self, program: &Path, kubeconfig: &Path, env: &[(&str, &str)]) -> OperatorProcess {
        let mut command = Command::new(program);
        command
            .env("KUBECONFIG", kubeconfig)
            .env("STAGECOACH_TRAINER_IMAGE", "example.com/trainer:1")
            .env("STAGECOACH_LISTEN", "127.0.0.1:0")
            .env("STAGECOACH_POLL_SECONDS", "0.5")
            .env("STAGECOACH_LOG_LEVEL", "info,kube_client=off,stagecoach_operator=debug")
            .env("POD_NAMESPACE", OPERATOR_NAMESPACE)
            .envs(env.iter().copied());
        let log = self.log_file(self.started.fetch_add(1, Ordering::Relaxed));
        OperatorProcess { process: Process::start(command, &log).unwrap(), log }
    }

    /// Returns the kubeconfig of the operator's service account, which has the permissions that the chart grants.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Kills the operator that was started first, with SIGKILL.
    pub fn kill_operator(&self) {
        drop(self.operators.lock().unwrap().remove(0));
    }

    /// Whether all operators that [`TestCluster::run_operator`] started still run.
    pub fn operators_are_running(&self) -> bool {
        self.operators.lock().unwrap().iter_mut().all(|operator| operator.ended().is_none())
    }

    /// Returns the last 30 lines about a job in the operators' logs. These are the lines that contain the job's name
    /// or, if the job is not in `default`, its namespace.
    fn log_tail(&self, job: &str) -> String {
        let about = if split(job).0 == "default" { job } else { split(job).0 };
        let logs = (0..self.started.load(Ordering::Relaxed)).map(|number| self.log_file(number));
        let text: String = logs.map(|log| std::fs::read_to_string(log).unwrap_or_default()).collect();
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(about)).collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    fn log_file(&self, operator: usize) -> PathBuf {
        self.plane.folder().join(format!("operator-{operator}.log"))
    }

    /// Creates a namespace in which jobs can run.
    pub fn create_namespace(&self, name: &str) {
        self.plane.create_namespace(name);
        volume(&self.plane, name);
    }

    /// Creates a job of two stages, with changes merged into its spec.
    #[track_caller]
    pub fn create(&self, name: &str, changes: Value) -> Value {
        let object = job(name, changes);
        self.plane.client().create(&jobs(split(name).0), &object).unwrap_or_else(|refusal| panic!("{name}: {refusal}"))
    }

    /// Merges changes into a job's spec.
    #[track_caller]
    pub fn edit(&self, name: &str, spec: Value) {
        let patch = json!({ "spec": spec });
        self.plane.client().patch(&path(name), &patch).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    }

    /// Merges changes into a job's spec, and waits until the operator has observed them.
    #[track_caller]
    pub fn edit_and_wait(&self, name: &str, spec: Value) -> Value {
        self.edit(name, spec);
        let generation = self.job(name).unwrap()["metadata"]["generation"].clone();
        self.wait(name, "seen", |job| job["status"]["observedGeneration"] == generation)
    }

    /// Returns the job; `None` if the job does not exist.
    pub fn job(&self, name: &str) -> Option<Value> {
        self.plane.get(&path(name))
    }

    /// Waits until `wanted` returns true for the job. Returns the job. If the wait fails, panics with `what`, the job's
    /// status, the status of its pods and the last log lines about the job.
    #[track_caller]
    pub fn wait(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let job = || self.job(name).unwrap_or_else(|| panic!("{name} was deleted while waiting for it to be {what}"));
        let details = || {
            let pods = self.pods(name);
            let pods = pods.iter().map(|pod| format!("{} {}", pod["metadata"]["name"], pod["status"]));
            format!(": {:#}\n{}\n{}", job()["status"], pods.collect::<Vec<_>>().join("\n"), self.log_tail(name))
        };
        let as_wanted = || Some(job()).filter(|job| wanted(job));
        until_or_tell(&format!("{name} to be {what}"), as_wanted, details)
    }

    /// Waits until the job has this phase. Returns the job.
    #[track_caller]
    pub fn wait_phase(&self, name: &str, phase: &str) -> Value {
        self.wait(name, phase, |job| job["status"]["phase"] == phase)
    }

    /// Waits until attempt `number` runs.
    #[track_caller]
    pub fn wait_running(&self, name: &str, number: u64) -> Value {
        self.wait(name, &format!("running attempt {number}"), |job| {
            job["status"]["phase"] == "Running" && job["status"]["attempt"]["number"] == number
        })
    }

    /// Makes stage 0 of attempt `number` report that it trains and has finished `step` steps. Waits until the operator
    /// has read the report.
    #[track_caller]
    pub fn train_to(&self, name: &str, number: u64, step: u64) -> Value {
        let progress = ProgressStatus { step, ..ProgressStatus::default() };
        let training = StageStatus { phase: StagePhase::Training, progress, ..StageStatus::default() };
        self.kubelet.pod(&format!("{name}-0-{number}")).set_status(training);
        self.wait(name, &format!("at step {step}"), |job| job["status"]["progress"]["step"] == step)
    }

    /// Makes all stages of attempt `number` exit with 0.
    pub fn finish(&self, name: &str, number: u64, stages: u32) {
        for stage in 0..stages {
            self.kubelet.pod(&format!("{name}-{stage}-{number}")).exit(0, "");
        }
    }

    /// Creates a ResourceQuota of `pods` pods, and waits until the quota controller has computed its use.
    #[track_caller]
    pub fn limit_pods(&self, namespace: &str, name: &str, pods: u32) {
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": {"hard": {"pods": pods.to_string()}}});
        let quotas = format!("/api/v1/namespaces/{namespace}/resourcequotas");
        self.plane.client().create(&quotas, &quota).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        until("the quota to be counted", || {
            let quota = self.plane.get(&format!("{quotas}/{name}"))?;
            quota["status"]["used"]["pods"].is_string().then_some(())
        });
    }

    /// Returns the pods of the job of this name.
    pub fn pods(&self, name: &str) -> Vec<Value> {
        let (namespace, name) = split(name);
        self.plane
            .client()
            .list(&format!("/api/v1/namespaces/{namespace}/pods?labelSelector=stagecoach.dev/job={name}"))
    }

    /// Returns the sorted names of the job's pods.
    pub fn pod_names(&self, name: &str) -> Vec<String> {
        let pods = self.pods(name);
        let mut names: Vec<_> = pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect();
        names.sort_unstable();
        names
    }

    /// Checks that no two pods of one name were started in a namespace.
    #[track_caller]
    pub fn assert_started_once(&self, namespace: &str) {
        let pods = self.kubelet.pods().into_iter().filter(|pod| pod.namespace == namespace);
        let mut names: Vec<String> = pods.map(|pod| pod.name).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all, "{namespace}: a stage of an attempt was started twice: {names:?}");
    }

    /// Returns the reasons of the events about a job, oldest first.
    pub fn events(&self, name: &str) -> Vec<String> {
        self.of_events(name, "reason")
    }

    /// Returns the notes of the events about a job, oldest first.
    pub fn event_notes(&self, name: &str) -> Vec<String> {
        self.of_events(name, "note")
    }

    fn of_events(&self, name: &str, field: &str) -> Vec<String> {
        let events = self.event_objects(name);
        events.iter().map(|event| event[field].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Returns the events about a job, oldest first.
    pub fn event_objects(&self, name: &str) -> Vec<Value> {
        let (namespace, name) = split(name);
        let mut events = self.plane.client().list(&format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"));
        events.retain(|event| event["regarding"]["kind"] == "PipelineJob" && event["regarding"]["name"] == name);
        events.sort_by_key(|event| event["eventTime"].as_str().unwrap_or_default().to_owned());
        events
    }
}
