//! The operator crashes after its first, second, third ... write to the API and is restarted: the result is always the same.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::support::{OperatorProcess, TestCluster, path, shared};
use serde_json::{Value, json};
use stagecoach_cluster::{Fate, Proxy, until};

/// Runs in parallel: each has its own namespace and its own operator, which mostly wait.
const PARALLEL_RUNS: usize = 4;

/// How long an undisturbed operator must have written nothing to be done.
const QUIET: Duration = Duration::from_secs(4);

/// What happens to a job: a setup, an action during which the operator crashes, and the end to wait for.
struct Scenario {
    name: &'static str,
    spec: Value,
    setup: fn(&ScenarioRun),
    action: fn(&ScenarioRun),
    wait_for_end: fn(&ScenarioRun),
}

/// A scenario's run in a namespace of its own.
struct ScenarioRun<'s> {
    cluster: &'s TestCluster,
    proxy: &'s Proxy,
    namespace: String,
    operator: Mutex<Option<OperatorProcess>>,
}

impl ScenarioRun<'_> {
    fn job(&self) -> String {
        format!("{}/job", self.namespace)
    }

    fn exit(&self, stage: u32, attempt: u64, code: i32) {
        self.cluster.kubelet.pod(&format!("{}/job-{stage}-{attempt}", self.namespace)).exit(code, "");
    }

    fn running(&self, attempt: u64) {
        self.cluster.wait_running(&self.job(), attempt);
    }

    fn start_operator(&self) {
        let env = [("STAGECOACH_NAMESPACES", self.namespace.as_str())];
        *self.operator.lock().unwrap() = Some(self.cluster.operator(self.proxy.kubeconfig(), &env));
    }

    fn list(&self, api: &str, kind: &str) -> Vec<Value> {
        let mut all = self.cluster.plane.client().list(&format!("{api}/namespaces/{}/{kind}", self.namespace));
        all.retain(|object| object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("job")));
        all
    }

    /// The objects in the end, without what differs from run to run.
    fn end(&self) -> Value {
        let names = |api: &str, kind: &str| -> Vec<Value> {
            self.list(api, kind).iter().map(|object| object["metadata"]["name"].clone()).collect()
        };
        let status = self.cluster.job(&self.job()).map(|job| job["status"].clone()).unwrap_or_default();
        let attempt = &status["attempt"];
        json!({
            "phase": status["phase"],
            "attempt": [attempt["number"], attempt["stages"], attempt["podsCreated"]],
            "restarts": status["restarts"],
            "lastFailure": [status["lastFailure"]["stage"], status["lastFailure"]["reason"]],
            "pods": names("/api/v1", "pods"),
            "configMaps": names("/api/v1", "configmaps"),
            "podGroups": names("/apis/scheduling.k8s.io/v1alpha2", "podgroups"),
            "services": self.list("/api/v1", "services").iter().map(|s| s["spec"]["selector"]["stagecoach.dev/attempt"].clone()).collect::<Vec<_>>(),
            "networkPolicies": names("/apis/networking.k8s.io/v1", "networkpolicies"),
        })
    }

    /// Waits until nothing has changed for a time that is long beside an operator's pace. Returns the end.
    fn settled(&self) -> Value {
        let mut last = self.end();
        let mut since = Instant::now();
        until("the end to settle", 60, || {
            let now = self.end();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            (since.elapsed() > QUIET).then(|| last.clone())
        })
    }
}

/// Runs a scenario in `namespace`; the operator crashes after so many writes, unless it reaches the end with fewer: two
/// status writes may become one. Returns the end, and the number of writes.
fn run(
    cluster: &TestCluster,
    scenario: &Scenario,
    namespace: String,
    crash: Option<(usize, &Value)>,
) -> (Value, usize) {
    cluster.create_namespace(&namespace);
    let proxy = Proxy::start(cluster.kubeconfig(), cluster.plane.folder());
    let run = ScenarioRun { cluster, proxy: &proxy, namespace, operator: Mutex::default() };
    run.start_operator();
    cluster.create(&run.job(), scenario.spec.clone());
    (scenario.setup)(&run);
    let before = proxy.writes().len();
    if let Some((crash, _)) = crash {
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
    if let Some((crash, end)) = crash {
        let write = format!("write {crash} of {}", scenario.name);
        until(&write, 60, || (proxy.writes().len() >= before + crash || run.end() == *end).then_some(()));
        drop(run.operator.lock().unwrap().take());
        proxy.rule(|_| Fate::Pass);
        run.start_operator();
    }
    (scenario.wait_for_end)(&run);
    let end = match crash {
        None => run.settled(),
        Some((_, expected)) => {
            let deadline = Instant::now() + Duration::from_secs(60);
            let mut end = run.end();
            while end != *expected && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
                end = run.end();
            }
            end
        }
    };
    let mut started: Vec<String> =
        cluster.kubelet.pods().into_iter().filter(|pod| pod.namespace == run.namespace).map(|pod| pod.name).collect();
    let all = started.len();
    started.sort();
    started.dedup();
    assert_eq!(started.len(), all, "{}: a stage of an attempt was started twice: {started:?}", scenario.name);
    (end, proxy.writes().len() - before)
}

fn scenarios() -> Vec<Scenario> {
    let first = |run: &ScenarioRun| run.running(1);
    let second = |run: &ScenarioRun| run.running(2);
    vec![
        Scenario {
            name: "create",
            spec: json!({"suspend": true}),
            setup: |run| drop(run.cluster.wait_phase(&run.job(), "Suspended")),
            action: |run| run.cluster.edit(&run.job(), json!({"suspend": false})),
            wait_for_end: first,
        },
        Scenario {
            name: "restart",
            spec: json!({}),
            setup: first,
            action: |run| run.exit(1, 1, 1),
            wait_for_end: second,
        },
        Scenario {
            name: "scale",
            spec: json!({}),
            setup: first,
            action: |run| run.cluster.edit(&run.job(), json!({"stages": 3})),
            wait_for_end: second,
        },
        Scenario {
            name: "suspend",
            spec: json!({}),
            setup: first,
            action: |run| run.cluster.edit(&run.job(), json!({"suspend": true})),
            wait_for_end: |run| {
                run.cluster.wait_phase(&run.job(), "Suspended");
                until("the pods to go", 60, || run.list("/api/v1", "pods").is_empty().then_some(()));
            },
        },
        Scenario {
            name: "complete",
            spec: json!({}),
            setup: first,
            action: |run| (0..2).for_each(|stage| run.exit(stage, 1, 0)),
            wait_for_end: |run| drop(run.cluster.wait_phase(&run.job(), "Complete")),
        },
        Scenario {
            name: "expire",
            spec: json!({"ttlSecondsAfterFinished": 1}),
            setup: first,
            action: |run| (0..2).for_each(|stage| run.exit(stage, 1, 0)),
            wait_for_end: |run| {
                until("the job to go", 60, || run.cluster.plane.get(&path(&run.job())).is_none().then_some(()));
                until("its pods to go", 60, || run.list("/api/v1", "pods").is_empty().then_some(()));
            },
        },
    ]
}

#[test]
fn a_crash_between_any_two_writes_changes_nothing() {
    let cluster = shared();
    let scenarios = scenarios();
    let undisturbed: Vec<(Value, usize)> = std::thread::scope(|scope| {
        let run = |scenario| scope.spawn(move || run(cluster, scenario, format!("{}-0", scenario.name), None));
        let running: Vec<_> = scenarios.iter().map(run).collect();
        running.into_iter().map(|run| run.join().unwrap()).collect()
    });
    for (scenario, (_, writes)) in scenarios.iter().zip(&undisturbed) {
        println!("{}: {writes} writes", scenario.name);
        assert!(*writes > 0);
    }
    let mut cases: Vec<(usize, usize)> = undisturbed
        .iter()
        .enumerate()
        .flat_map(|(at, (_, writes))| (1..=*writes).map(move |crash| (at, crash)))
        .collect();
    cases.reverse();
    let all = cases.len();
    let cases = Mutex::new(cases);
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL_RUNS {
            scope.spawn(|| {
                loop {
                    let Some((at, crash)) = cases.lock().unwrap().pop() else { break };
                    let scenario = &scenarios[at];
                    let (end, _) =
                        run(cluster, scenario, format!("{}-{crash}", scenario.name), Some((crash, &undisturbed[at].0)));
                    assert_eq!(end, undisturbed[at].0, "{}, killed after write {crash}", scenario.name);
                }
            });
        }
    });
    println!("{all} crashes");
}
