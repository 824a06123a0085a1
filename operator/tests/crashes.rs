//! The operator dies after its first, second, third ... write to the API, and comes back: the end is always the same.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use stagecoach_cluster::{Fate, Process, Proxy, Settings, until};
use support::{Scene, path};

/// Runs at the same time: each has its own namespace and its own operator, which mostly wait.
const AT_ONCE: usize = 4;

/// What happens to a job: what was done before, what is done then, and when it is over.
struct Course {
    name: &'static str,
    spec: Value,
    before: fn(&Run),
    then: fn(&Run),
    over: fn(&Run),
}

/// One job's course in a namespace of its own.
struct Run<'s> {
    scene: &'s Scene,
    proxy: &'s Proxy,
    namespace: String,
    operator: Mutex<Option<Process>>,
}

impl Run<'_> {
    fn job(&self) -> String {
        format!("{}/job", self.namespace)
    }

    fn exit(&self, stage: u32, attempt: u64, code: i32) {
        self.scene.kubelet.pod(&format!("{}/job-{stage}-{attempt}", self.namespace)).exit(code, "");
    }

    fn running(&self, attempt: u64) {
        self.scene.wait_running(&self.job(), attempt);
    }

    fn start_operator(&self) {
        let env = [("STAGECOACH_NAMESPACES", self.namespace.as_str())];
        *self.operator.lock().unwrap() = Some(self.scene.operator(self.proxy.kubeconfig(), &env));
    }

    fn list(&self, api: &str, kind: &str) -> Vec<Value> {
        let mut all = self.scene.plane.client().list(&format!("{api}/namespaces/{}/{kind}", self.namespace));
        all.retain(|object| object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("job")));
        all
    }

    /// What is left in the end, without what differs from run to run.
    fn end(&self) -> Value {
        let names = |api: &str, kind: &str| -> Vec<Value> {
            self.list(api, kind).iter().map(|object| object["metadata"]["name"].clone()).collect()
        };
        let status = self.scene.job(&self.job()).map(|job| job["status"].clone()).unwrap_or_default();
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

    /// Waits until nothing changes any more, and gives the end.
    fn settled(&self) -> Value {
        let mut last = self.end();
        let mut since = std::time::Instant::now();
        until("the end to settle", 60, || {
            let now = self.end();
            if now != last {
                (last, since) = (now, std::time::Instant::now());
            }
            (since.elapsed() > Duration::from_millis(700)).then(|| last.clone())
        })
    }
}

/// Runs a course in `namespace`; the operator dies after so many writes, unless it reaches the end with fewer: two status
/// writes may become one. The end, and how many writes there were.
fn run(scene: &Scene, course: &Course, namespace: String, crash: Option<(usize, &Value)>) -> (Value, usize) {
    scene.plane.create_namespace(&namespace);
    support::volume(&scene.plane, &namespace);
    let proxy = Proxy::start(scene.kubeconfig(), scene.plane.folder());
    let run = Run { scene, proxy: &proxy, namespace, operator: Mutex::default() };
    run.start_operator();
    scene.create(&run.job(), course.spec.clone());
    (course.before)(&run);
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
    (course.then)(&run);
    if let Some((crash, end)) = crash {
        let write = format!("write {crash} of {}", course.name);
        until(&write, 60, || (proxy.writes().len() >= before + crash || run.end() == *end).then_some(()));
        drop(run.operator.lock().unwrap().take());
        proxy.rule(|_| Fate::Pass);
        run.start_operator();
    }
    (course.over)(&run);
    let end = run.settled();
    let mut started: Vec<String> =
        scene.kubelet.pods().into_iter().filter(|pod| pod.namespace == run.namespace).map(|pod| pod.name).collect();
    let all = started.len();
    started.sort();
    started.dedup();
    assert_eq!(started.len(), all, "{}: a stage of an attempt was started twice: {started:?}", course.name);
    (end, proxy.writes().len() - before)
}

fn courses() -> Vec<Course> {
    let first = |run: &Run| run.running(1);
    let second = |run: &Run| run.running(2);
    vec![
        Course {
            name: "create",
            spec: json!({"suspend": true}),
            before: |run| drop(run.scene.wait_phase(&run.job(), "Suspended")),
            then: |run| run.scene.edit(&run.job(), json!({"suspend": false})),
            over: first,
        },
        Course { name: "restart", spec: json!({}), before: first, then: |run| run.exit(1, 1, 1), over: second },
        Course {
            name: "scale",
            spec: json!({}),
            before: first,
            then: |run| run.scene.edit(&run.job(), json!({"stages": 3})),
            over: second,
        },
        Course {
            name: "suspend",
            spec: json!({}),
            before: first,
            then: |run| run.scene.edit(&run.job(), json!({"suspend": true})),
            over: |run| {
                run.scene.wait_phase(&run.job(), "Suspended");
                until("the pods to go", 60, || run.list("/api/v1", "pods").is_empty().then_some(()));
            },
        },
        Course {
            name: "complete",
            spec: json!({}),
            before: first,
            then: |run| (0..2).for_each(|stage| run.exit(stage, 1, 0)),
            over: |run| drop(run.scene.wait_phase(&run.job(), "Complete")),
        },
        Course {
            name: "expire",
            spec: json!({"ttlSecondsAfterFinished": 1}),
            before: first,
            then: |run| (0..2).for_each(|stage| run.exit(stage, 1, 0)),
            over: |run| {
                until("the job to go", 60, || run.scene.plane.get(&path(&run.job())).is_none().then_some(()));
                until("its pods to go", 60, || run.list("/api/v1", "pods").is_empty().then_some(()));
            },
        },
    ]
}

#[test]
fn a_crash_between_any_two_writes_changes_nothing() {
    let scene = Scene::without_operator(Settings::default());
    let courses = courses();
    let undisturbed: Vec<(Value, usize)> =
        courses.iter().map(|course| run(&scene, course, format!("{}-0", course.name), None)).collect();
    for (course, (_, writes)) in courses.iter().zip(&undisturbed) {
        println!("{}: {writes} writes", course.name);
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
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some((at, crash)) = cases.lock().unwrap().pop() else { break };
                    let course = &courses[at];
                    let (end, _) =
                        run(&scene, course, format!("{}-{crash}", course.name), Some((crash, &undisturbed[at].0)));
                    assert_eq!(end, undisturbed[at].0, "{}, killed after write {crash}", course.name);
                }
            });
        }
    });
    println!("{all} crashes");
}
