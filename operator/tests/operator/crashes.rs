//! Tests that a job reaches the same state if the operator crashes after its first, second, third, ... write to the API
//! and restarts.

use std::sync::Mutex;
use std::time::Duration;

use crate::support::{OperatorProcess, TestCluster, job, jobs, shared};
use serde_json::{Value, json};
use stagecoach_cluster::{Fate, Proxy, merge, until_or_tell};

/// The number of parallel runs. Each run has a namespace and an operator, and mostly waits.
const PARALLEL_RUNS: usize = 4;

/// The life of a job: a setup, an action during which the operator crashes, and the expected end.
pub struct Scenario {
    pub name: &'static str,
    pub spec: Value,
    pub setup: fn(&ScenarioRun),
    pub action: fn(&ScenarioRun),
    pub end: Value,
}

/// A cluster for scenarios, with the settings that differ between clusters.
pub struct ScenarioCluster {
    pub cluster: &'static TestCluster,
    /// The environment variables of the operators.
    pub env: &'static [(&'static str, &'static str)],
    /// Adds the objects that only this cluster has to the final state of a run.
    pub add_to_end: fn(&ScenarioRun, &mut Value),
}

/// The run of a scenario in its own namespace.
pub struct ScenarioRun<'s> {
    site: &'s ScenarioCluster,
    pub cluster: &'s TestCluster,
    proxy: &'s Proxy,
    pub namespace: String,
    operator: Mutex<Option<OperatorProcess>>,
}

impl ScenarioRun<'_> {
    pub fn job(&self) -> String {
        format!("{}/job", self.namespace)
    }

    pub fn exit(&self, stage: u32, attempt: u64, code: i32) {
        self.cluster.kubelet.pod(&format!("{}/job-{stage}-{attempt}", self.namespace)).exit(code, "");
    }

    /// Returns the end of the operator's log.
    fn log_tail(&self) -> String {
        let operator = self.operator.lock().unwrap();
        let log = operator.as_ref().map(OperatorProcess::log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    pub fn running(&self, attempt: u64) {
        self.cluster.wait_running(&self.job(), attempt);
    }

    fn start_operator(&self) {
        let mut env = vec![("STAGECOACH_NAMESPACES", self.namespace.as_str())];
        env.extend(self.site.env);
        *self.operator.lock().unwrap() = Some(self.cluster.operator(self.proxy.kubeconfig(), &env));
    }

    fn list(&self, api: &str, kind: &str) -> Vec<Value> {
        let mut all = self.cluster.plane.client().list(&format!("{api}/namespaces/{}/{kind}", self.namespace));
        all.retain(|object| object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("job")));
        all
    }

    /// Returns the objects of the run, without the fields that differ between runs.
    fn end(&self) -> Value {
        let names = |api: &str, kind: &str| -> Vec<Value> {
            self.list(api, kind).iter().map(|object| object["metadata"]["name"].clone()).collect()
        };
        let job = self.cluster.job(&self.job()).unwrap_or_default();
        let status = &job["status"];
        let attempt = &status["attempt"];
        let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let holding = conditions.iter().filter(|condition| condition["status"] == "True");
        let mut end = json!({
            "phase": status["phase"],
            "isObserved": status["observedGeneration"] == job["metadata"]["generation"],
            "conditions": holding.map(|condition| &condition["type"]).collect::<Vec<_>>(),
            "stages": [status["stages"], status["readyStages"]],
            "attempt": [attempt["number"], attempt["stages"], attempt["podsCreated"]],
            "restarts": status["restarts"]["total"],
            "lastFailure": [status["lastFailure"]["stage"], status["lastFailure"]["reason"]],
            "pods": names("/api/v1", "pods"),
            "configMaps": names("/api/v1", "configmaps"),
            "podGroups": names("/apis/scheduling.k8s.io/v1alpha2", "podgroups"),
            "services": self.list("/api/v1", "services").iter().map(|s| s["spec"]["selector"]["stagecoach.dev/attempt"].clone()).collect::<Vec<_>>(),
            "networkPolicies": names("/apis/networking.k8s.io/v1", "networkpolicies"),
        });
        (self.site.add_to_end)(self, &mut end);
        end
    }

    /// Whether the objects of the run are in the state `end`. Most jobs that are not in this state differ in the phase
    /// or the attempt, so this function compares these two before it lists the other objects.
    fn is_at(&self, end: &Value) -> bool {
        let status = &self.cluster.job(&self.job()).unwrap_or_default()["status"];
        let differs = |expected: &Value, found: &Value| !expected.is_null() && expected != found;
        let job_differs =
            differs(&end["phase"], &status["phase"]) || differs(&end["attempt"][0], &status["attempt"]["number"]);
        !job_differs && self.end() == *end
    }

    /// Waits until the objects of the run are in the state `end`, in which the operator writes nothing.
    fn wait_for(&self, end: &Value) {
        let what = format!("the end of {}", self.namespace);
        until_or_tell(&what, || self.is_at(end).then_some(()), || format!(": {:#}\nexpected {end:#}", self.end()));
    }
}

/// Runs a scenario to its end in `namespace`. If `crash` is set, the operator crashes after this number of writes. A
/// run may need fewer writes, because the operator may combine two status writes; the operator then crashes at the end
/// of the run. Returns the number of writes. The writes of the setup do not count.
fn run(site: &ScenarioCluster, scenario: &Scenario, namespace: String, crash: Option<usize>) -> usize {
    let cluster = site.cluster;
    cluster.create_namespace(&namespace);
    let proxy = Proxy::start(cluster.kubeconfig(), cluster.plane.folder());
    let run = ScenarioRun { site, cluster, proxy: &proxy, namespace, operator: Mutex::default() };
    run.start_operator();
    // a scenario's spec that contains `metadata` is merged into the whole object, any other spec into the object's spec
    let mut object = job(&run.job(), json!({}));
    match scenario.spec.get("metadata") {
        Some(_) => merge(&mut object, scenario.spec.clone()),
        None => merge(&mut object["spec"], scenario.spec.clone()),
    }
    let created = cluster.plane.client().create(&jobs(&run.namespace), &object);
    created.unwrap_or_else(|refusal| panic!("{}: {refusal}", scenario.name));
    (scenario.setup)(&run);
    let before = proxy.answered_writes();
    if let Some(crash) = crash {
        let mut count = 0;
        proxy.rule(move |seen| {
            count += usize::from(seen.is_write());
            match count.cmp(&crash) {
                _ if !seen.is_write() => Fate::Pass,
                std::cmp::Ordering::Less => Fate::Pass,
                std::cmp::Ordering::Equal => Fate::LoseAnswer,
                std::cmp::Ordering::Greater => Fate::Delay(Duration::from_secs(3600)),
            }
        });
    }
    (scenario.action)(&run);
    if let Some(crash) = crash {
        let write = format!("write {crash} of {}", scenario.name);
        let is_made = || (proxy.answered_writes() >= before + crash || run.is_at(&scenario.end)).then_some(());
        until_or_tell(&write, is_made, || format!(": {:#}\n{:?}\n{}", run.end(), proxy.writes(), run.log_tail()));
        drop(run.operator.lock().unwrap().take());
        proxy.rule(|_| Fate::Pass);
        run.start_operator();
    }
    run.wait_for(&scenario.end);
    cluster.assert_started_once(&run.namespace);
    let writes = proxy.answered_writes() - before;
    cluster.kubelet.forget_pods(&run.namespace);
    writes
}

/// Returns the final state of a job that trains in attempt `number`, with `changes` merged into the state.
pub fn training(number: u64, stages: usize, changes: Value) -> Value {
    let mut end = json!({
        "phase": "Running", "isObserved": true, "conditions": ["Accepted", "Scheduled", "Running", "Progressing", "ObjectsInSync", "Ready"],
        "stages": [stages, stages], "attempt": [number, stages, true], "restarts": 0, "lastFailure": [null, null],
        "pods": (0..stages).map(|stage| format!("job-{stage}-{number}")).collect::<Vec<_>>(),
        "configMaps": [format!("job-{number}")], "podGroups": [format!("job-{number}")],
        "services": [number.to_string()], "networkPolicies": ["job"],
    });
    merge(&mut end, changes);
    end
}

fn scenarios() -> Vec<Scenario> {
    let first = |run: &ScenarioRun| run.running(1);
    vec![
        Scenario {
            name: "create",
            spec: json!({"suspend": true}),
            setup: |run| drop(run.cluster.wait_phase(&run.job(), "Suspended")),
            action: |run| run.cluster.edit(&run.job(), json!({"suspend": false})),
            end: training(1, 2, json!({})),
        },
        Scenario {
            name: "restart",
            spec: json!({}),
            setup: first,
            action: |run| run.exit(1, 1, 1),
            end: training(2, 2, json!({"restarts": 1, "lastFailure": [1, "Error"]})),
        },
        Scenario {
            name: "replace",
            spec: json!({"restart": {"reformTimeoutSeconds": 60}}),
            setup: first,
            action: |run| run.exit(1, 1, 1),
            end: training(1, 2, json!({"restarts": 1, "lastFailure": [1, "Error"], "pods": ["job-0-1", "job-1-1-1"]})),
        },
        Scenario {
            name: "replica",
            spec: json!({
                "stages": 1, "dataParallel": 2, "training": {"gradientBlocks": 2}, "restart": {"reformTimeoutSeconds": 60},
            }),
            setup: first,
            // the first replica continues to train while the second replica is replaced
            action: |run| run.cluster.kubelet.pod(&format!("{}/job-1-0-1", run.namespace)).exit(1, ""),
            end: training(
                1,
                1,
                json!({
                    "restarts": 1, "lastFailure": [0, "Error"], "stages": [2, 2],
                    "pods": ["job-0-0-1", "job-1-0-1-1"],
                }),
            ),
        },
        Scenario {
            name: "scale",
            spec: json!({}),
            setup: first,
            action: |run| run.cluster.edit(&run.job(), json!({"stages": 3})),
            end: training(2, 3, json!({})),
        },
        Scenario {
            name: "suspend",
            spec: json!({}),
            setup: first,
            action: |run| run.cluster.edit(&run.job(), json!({"suspend": true})),
            end: training(
                1,
                2,
                json!({
                    "phase": "Suspended", "conditions": ["Accepted", "ObjectsInSync", "Suspended", "Ready"], "stages": [0, 0], "pods": [],
                    "services": [],
                }),
            ),
        },
        Scenario {
            name: "complete",
            spec: json!({}),
            setup: first,
            action: |run| (0..2).for_each(|stage| run.exit(stage, 1, 0)),
            end: training(
                1,
                2,
                json!({"phase": "Complete", "conditions": ["Accepted", "ObjectsInSync", "Complete", "Ready"], "stages": [0, 0], "services": []}),
            ),
        },
        Scenario {
            name: "open",
            spec: json!({}),
            setup: first,
            action: |run| run.cluster.edit(&run.job(), json!({"networkPolicy": {"mode": "None"}})),
            end: training(1, 2, json!({"networkPolicies": []})),
        },
        Scenario {
            name: "expire",
            spec: json!({"ttlSecondsAfterFinished": 1}),
            setup: first,
            action: |run| (0..2).for_each(|stage| run.exit(stage, 1, 0)),
            end: json!({
                "phase": null, "isObserved": true, "conditions": [], "stages": [null, null],
                "attempt": [null, null, null], "restarts": null, "lastFailure": [null, null], "pods": [],
                "configMaps": [], "podGroups": [], "services": [], "networkPolicies": [],
            }),
        },
    ]
}

#[test]
fn a_crash_between_any_two_writes_changes_nothing() {
    let site = ScenarioCluster { cluster: shared(), env: &[], add_to_end: |_, _| {} };
    crash_after_each_write(&site, &scenarios());
}

/// Runs each scenario without a crash, and then once for each of its writes, with a crash after this write.
pub fn crash_after_each_write(site: &ScenarioCluster, scenarios: &[Scenario]) {
    let undisturbed: Vec<usize> = std::thread::scope(|scope| {
        let run = |scenario| scope.spawn(move || run(site, scenario, format!("{}-0", scenario.name), None));
        let running: Vec<_> = scenarios.iter().map(run).collect();
        running.into_iter().map(|run| run.join().unwrap()).collect()
    });
    for (scenario, writes) in scenarios.iter().zip(&undisturbed) {
        println!("{}: {writes} writes", scenario.name);
        assert!(*writes > 0);
    }
    let mut cases: Vec<(usize, usize)> =
        undisturbed.iter().enumerate().flat_map(|(at, writes)| (1..=*writes).map(move |crash| (at, crash))).collect();
    cases.reverse();
    let all = cases.len();
    let cases = Mutex::new(cases);
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL_RUNS {
            scope.spawn(|| {
                loop {
                    let Some((at, crash)) = cases.lock().unwrap().pop() else { break };
                    let scenario = &scenarios[at];
                    run(site, scenario, format!("{}-{crash}", scenario.name), Some(crash));
                }
            });
        }
    });
    println!("{all} crashes");
}
