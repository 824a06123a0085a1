//! Tests of the operator under faults: an API server that returns errors, stalls and loses responses; a spec and an
//! operator that change during an attempt; a Lease that another process holds; pods and a status that another client
//! writes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::{OperatorProcess, condition_of, exclusive, has_condition, path, shared};
use serde_json::{Value, json};
use stagecoach_cluster::{Fate, Proxy, Seen, merge, until};

/// A namespace with its own operator behind a proxy.
struct ProxiedOperator {
    namespace: &'static str,
    proxy: Proxy,
}

impl ProxiedOperator {
    fn new(namespace: &'static str) -> ProxiedOperator {
        shared().create_namespace(namespace);
        ProxiedOperator { namespace, proxy: Proxy::start(shared().kubeconfig(), shared().plane.folder()) }
    }

    fn operator(&self, env: &[(&str, &str)]) -> OperatorProcess {
        let env = [&[("STAGECOACH_NAMESPACES", self.namespace)], env].concat();
        shared().operator(self.proxy.kubeconfig(), &env)
    }

    fn job(&self) -> String {
        format!("{}/job", self.namespace)
    }

    /// Returns, for each attempt, the image of each pod and the value of its label `version`.
    fn versions(&self) -> BTreeMap<String, BTreeSet<(String, Option<String>)>> {
        let mut all: BTreeMap<String, BTreeSet<_>> = BTreeMap::new();
        for pod in shared().kubelet.pods().into_iter().filter(|pod| pod.namespace == self.namespace) {
            let attempt = pod.labels["stagecoach.dev/attempt"].clone();
            all.entry(attempt).or_default().insert((pod.image, pod.labels.get("version").cloned()));
        }
        all
    }
}

/// Returns a rule that delays the creation of the second pod and every later write, until another rule is set.
fn after_one_pod() -> impl FnMut(&Seen) -> Fate + Send {
    let mut pods = 0;
    move |seen: &Seen| {
        pods += usize::from(seen.method == "POST" && seen.path.ends_with("/pods"));
        if pods > 1 && seen.is_write() { Fate::Delay(Duration::from_secs(3600)) } else { Fate::Pass }
    }
}

fn pods_of(own: &ProxiedOperator) -> usize {
    shared().pods(&own.job()).len()
}

#[test]
fn an_operator_with_another_default_image_does_not_mix_versions() {
    let own = ProxiedOperator::new("images");
    own.proxy.rule(after_one_pod());
    let first = own.operator(&[]);
    shared().create(&own.job(), json!({}));
    until("the first pod", || (pods_of(&own) == 1).then_some(()));
    drop(first);
    own.proxy.rule(|_| Fate::Pass);
    let second = own.operator(&[("STAGECOACH_TRAINER_IMAGE", "example.com/trainer:2")]);
    shared().wait_running(&own.job(), 1);
    let image = |tag: &str| BTreeSet::from([(format!("example.com/trainer:{tag}"), None)]);
    assert_eq!(own.versions(), BTreeMap::from([("1".to_owned(), image("1"))]));
    // the next attempt has the new operator's image, because no step was trained yet
    shared().kubelet.pod(&format!("{}-0-1", own.job())).exit(1, "");
    shared().wait_running(&own.job(), 2);
    assert_eq!(own.versions()["2"], image("2"));
    // from the first step on, a job keeps its image
    shared().train_to(&own.job(), 2, 1);
    drop(second);
    let _third = own.operator(&[("STAGECOACH_TRAINER_IMAGE", "example.com/trainer:3")]);
    shared().kubelet.pod(&format!("{}-0-2", own.job())).exit(1, "");
    let job = shared().wait_running(&own.job(), 3);
    assert_eq!(own.versions()["3"], image("2"));
    assert_eq!(job["status"]["attempt"]["image"], "example.com/trainer:2");
}

#[test]
fn a_spec_edited_between_two_pods_applies_to_the_next_attempt() {
    let own = ProxiedOperator::new("edits");
    own.proxy.rule(after_one_pod());
    let _operator = own.operator(&[]);
    let version = |version: &str| json!({"template": {"metadata": {"labels": {"version": version}}}});
    shared().create(&own.job(), version("old"));
    until("the first pod", || (pods_of(&own) == 1).then_some(()));
    shared().edit(&own.job(), version("new"));
    own.proxy.rule(|_| Fate::Pass);
    let job = shared().wait(&own.job(), "running the new version", |job| {
        let new = |pod: &Value| pod["metadata"]["labels"]["version"] == "new";
        job["status"]["phase"] == "Running" && shared().pods(&own.job()).iter().all(new)
    });
    assert_eq!(job["status"]["restarts"]["total"], 0);
    assert!(own.versions().values().all(|versions| versions.len() == 1), "{:?}", own.versions());
}

#[test]
fn errors_and_lost_responses_are_survived() {
    let own = ProxiedOperator::new("chaos");
    let mut seed = 7_u64;
    own.proxy.rule(move |seen| {
        if seen.watch {
            return Fate::Pass;
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match seed >> 58 {
            0..=2 => Fate::Refuse(500),
            3..=5 => Fate::Refuse(429),
            6..=8 if seen.is_write() => Fate::Refuse(409),
            9 if seen.is_write() => Fate::LoseAnswer,
            10..=13 => Fate::Delay(Duration::from_millis(200)),
            _ => Fate::Pass,
        }
    });
    let _operator = own.operator(&[]);
    shared().create(&own.job(), json!({"restart": {"maxRestarts": 9}}));
    for attempt in 1..=3 {
        shared().wait_running(&own.job(), attempt);
        shared().kubelet.pod(&format!("{}-1-{attempt}", own.job())).exit(1, "");
    }
    let job = shared().wait_running(&own.job(), 4);
    assert_eq!(job["status"]["restarts"]["total"], 3);
    shared().edit(&own.job(), json!({"stages": 1}));
    shared().wait_running(&own.job(), 5);
    shared().kubelet.pod(&format!("{}-0-5", own.job())).exit(0, "");
    shared().wait_phase(&own.job(), "Complete");
    shared().assert_started_once(own.namespace);
}

#[test]
fn the_second_replica_takes_over_the_lease() {
    let own = ProxiedOperator::new("replicas");
    let with = |name: &'static str| {
        own.operator(&[("STAGECOACH_LEADER_ELECTION", "true"), ("POD_NAME", name), ("STAGECOACH_LEASE", "replicas")])
    };
    let lease = || shared().plane.get("/apis/coordination.k8s.io/v1/namespaces/stagecoach-system/leases/replicas");
    let holder = |name: &str| {
        until(&format!("{name} to lead"), || lease().filter(|lease| lease["spec"]["holderIdentity"] == name).map(drop));
    };
    let first = with("first");
    holder("first");
    let _second = with("second");
    shared().create(&own.job(), json!({}));
    shared().wait_running(&own.job(), 1);
    drop(first); // killed, so the Lease is not released and has to expire
    holder("second");
    shared().kubelet.pod(&format!("{}-0-1", own.job())).exit(1, "");
    let job = shared().wait_running(&own.job(), 2);
    assert_eq!(job["status"]["restarts"]["total"], 1, "the running attempt was kept");
}

#[test]
fn the_lease_survives_clocks_that_differ_and_is_taken_once_it_is_released() {
    let own = ProxiedOperator::new("clocks");
    let leases = "/apis/coordination.k8s.io/v1/namespaces/stagecoach-system/leases";
    let renewed = |seconds: i64| {
        let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
        json!(format!("{time:.6}"))
    };
    let with = |lease: &str| {
        own.operator(&[("STAGECOACH_LEADER_ELECTION", "true"), ("POD_NAME", "ours"), ("STAGECOACH_LEASE", lease)])
    };
    let held = |name: &str, seconds: i64, duration: u32| {
        let spec = json!({"holderIdentity": "theirs", "leaseDurationSeconds": duration, "renewTime": renewed(seconds)});
        let lease =
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec});
        shared().plane.client().create(leases, &lease).unwrap();
    };
    let holder =
        |name: &str| shared().plane.get(&format!("{leases}/{name}")).unwrap()["spec"]["holderIdentity"].clone();

    // the holder's clock is a minute behind: the operator does not take the Lease while the holder renews it, although
    // the Lease seems expired
    held("late", -60, 15);
    let mut operator = with("late");
    until("the operator to wait for it", || operator.log().contains("waiting for the Lease").then_some(()));
    for _ in 0..200 {
        let renewal = json!({"spec": {"renewTime": renewed(-60)}});
        shared().plane.client().patch(&format!("{leases}/late"), &renewal).unwrap();
        assert_eq!(holder("late"), "theirs");
    }
    assert!(operator.ended().is_none());
    // a released Lease is taken long before it would have expired
    shared()
        .plane
        .client()
        .patch(&format!("{leases}/late"), &json!({"spec": {"holderIdentity": null, "leaseDurationSeconds": 3600}}))
        .unwrap();
    until("it to be taken", || (holder("late") == "ours").then_some(()));
    shared().create(&own.job(), json!({}));
    shared().wait_running(&own.job(), 1);
    // a client annotates the Lease, and the operator still renews the Lease
    let renewal = || shared().plane.get(&format!("{leases}/late")).unwrap()["spec"]["renewTime"].clone();
    shared()
        .plane
        .client()
        .patch(&format!("{leases}/late"), &json!({"metadata": {"annotations": {"a": "b"}}}))
        .unwrap();
    let before = renewal();
    until("it to be renewed", || (renewal() != before).then_some(()));
    // the operator ends when a client takes the Lease by force
    shared().plane.client().patch(&format!("{leases}/late"), &json!({"spec": {"holderIdentity": "theirs"}})).unwrap();
    until("the operator to end", || operator.ended());
    assert!(operator.log().contains("the Lease is lost"), "{}", operator.log());

    // the holder does not renew its Lease of two seconds, and its clock is an hour ahead: the operator takes the Lease
    // after two seconds, not after an hour
    held("early", 3600, 2);
    let _operator = with("early");
    until("it to be taken", || (holder("early") == "ours").then_some(()));
}

/// Returns a pod with the labels of stage 0 of `attempt` of this job, and with `changes` merged into it.
fn labelled_pod(job: &Value, name: &str, attempt: u64, changes: Value) -> Value {
    let labels = json!({
        "stagecoach.dev/job": "job", "stagecoach.dev/job-uid": job["metadata"]["uid"],
        "stagecoach.dev/attempt": attempt.to_string(), "stagecoach.dev/stage": "0",
    });
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "trainer", "image": "example.com/other:1"}]},
    });
    merge(&mut pod, changes);
    pod
}

#[test]
fn only_pods_that_the_job_controls_count_and_no_attempt_number_crashes_the_operator() {
    let own = ProxiedOperator::new("foreign");
    let mut operator = own.operator(&[]);
    shared().create(&own.job(), json!({}));
    let job = shared().wait_running(&own.job(), 1);
    let owner = json!({
        "apiVersion": "stagecoach.dev/v1alpha1", "kind": "PipelineJob", "name": "job", "uid": job["metadata"]["uid"],
        "controller": true,
    });
    let create = |pod: Value| {
        shared().plane.client().create("/api/v1/namespaces/foreign/pods", &pod).unwrap();
    };
    // pods without an owner, and a pod with the right owner but an attempt number that was never reached
    create(labelled_pod(&job, "unowned-next", 7, json!({})));
    create(labelled_pod(&job, "unowned-last", u64::MAX, json!({})));
    create(labelled_pod(&job, "owned-last", u64::MAX, json!({"metadata": {"ownerReferences": [owner]}})));
    for name in ["unowned-next", "unowned-last", "owned-last"] {
        shared().kubelet.pod(&format!("foreign/{name}")).view();
    }
    // the job is reconciled while all of these pods exist
    shared().kubelet.pod(&format!("{}-0-1", own.job())).exit(1, "");
    let job = shared().wait_running(&own.job(), 2);
    assert_eq!((&job["status"]["restarts"]["total"], &job["status"]["stages"]), (&json!(1), &json!(2)));
    for stage in [0, 1] {
        shared().kubelet.pod(&format!("{}-{stage}-2", own.job())).exit(0, "");
    }
    shared().wait_phase(&own.job(), "Complete");
    assert!(operator.ended().is_none(), "the operator ended");
    let left = shared().pods(&own.job());
    let left: BTreeSet<&str> = left.iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    for name in ["unowned-next", "unowned-last", "owned-last"] {
        assert!(left.contains(name), "{name} is not the job's, but was deleted: {left:?}");
    }
}

#[test]
fn an_unreadable_status_is_left_alone() {
    // this test changes the CRD of all jobs
    let cluster = exclusive();
    cluster.create("unreadable", json!({}));
    cluster.wait_running("unreadable", 1);
    for stage in [0, 1] {
        cluster.kubelet.pod(&format!("unreadable-{stage}-1")).exit(0, "");
    }
    let before = cluster.wait_phase("unreadable", "Complete");
    cluster.kill_operator();
    // simulate a newer operator: the CRD and the status have a phase that is unknown to this operator
    let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pipelinejobs.stagecoach.dev";
    let phases = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/phase/enum/-";
    cluster.plane.client().patch(crd, &json!([{"op": "add", "path": phases, "value": "Archived"}])).unwrap();
    let status = format!("{}/status", path("unreadable"));
    let archived = json!({"status": {"phase": "Archived"}});
    until("the new phase to be served", || cluster.plane.client().patch(&status, &archived).ok());
    cluster.run_operator(&[]);
    let job = cluster.wait("unreadable", "refused", |job| has_condition(job, "Accepted", "False", "UnknownStatus"));
    let sentence = condition_of(&job, "Accepted").unwrap()["message"].to_string();
    assert!(sentence.contains("`Archived`") && sentence.contains("another version"), "{sentence}");
    let job = cluster.edit_and_wait("unreadable", json!({"suspend": true}));
    for field in ["attempt", "record", "completionTime", "restarts", "progress"] {
        assert_eq!(job["status"][field], before["status"][field], "{field}");
    }
    assert_eq!(job["status"]["phase"], "Archived");
    assert_eq!(cluster.pods("unreadable").len(), 2, "no pod was created");
}
