//! Jobs that MultiKueue sends from one cluster to another. Each cluster has its own Kueue and its own operator, and all
//! rights are those of the page.

use std::sync::OnceLock;

use k8s_openapi::ByteString;
use serde_json::{Value, json};
use stagecoach_cluster::kueue::{self, cluster_queue, collection, local_queue};
use stagecoach_cluster::{merge, until, until_or_tell};

use super::{QueuedCluster, start, start_with};
use crate::support::{condition_of, has_condition, jobs, path};

const PAGE: &str = include_str!("../../../../docs/KUEUE.md");

struct Clusters {
    manager: QueuedCluster,
    worker: QueuedCluster,
}

/// The manager cluster and its only worker cluster. They are never dropped.
fn clusters() -> &'static Clusters {
    static CLUSTERS: OnceLock<Clusters> = OnceLock::new();
    CLUSTERS.get_or_init(|| {
        let (_, section) = PAGE.split_once("## MultiKueue").unwrap();
        let blocks = section.split("\n```yaml\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0));
        let [configuration, rights, account, queues] = blocks.collect::<Vec<_>>()[..] else { panic!("{section}") };

        let worker = start();
        worker.cluster.plane.apply(account);
        worker.cluster.plane.apply(&rights_of_kueues_own_kinds().to_string());
        let worker_queues = PAGE.split("   ```yaml\n").nth(1).and_then(|rest| Some(rest.split_once("   ```")?.0));
        worker.cluster.plane.apply(&worker_queues.unwrap().replace("\n   ", "\n").replacen("   ", "", 1));
        let node = json!({"metadata": {"labels": {"gpu": "h200"}}});
        worker.cluster.plane.client().patch("/api/v1/nodes/node-0", &node).unwrap();

        let manager = start_with(serde_saphyr::from_str(configuration).unwrap());
        manager.cluster.plane.apply(rights);
        let secret = json!({"metadata": {"name": "east-kubeconfig"}, "data": {"kubeconfig": kubeconfig(&worker)}});
        manager.cluster.plane.client().create("/api/v1/namespaces/kueue-system/secrets", &secret).unwrap();
        manager.cluster.plane.apply(queues);
        let east = format!("{}/east", collection("MultiKueueCluster", ""));
        let cluster = || manager.cluster.plane.get(&east).unwrap_or_default();
        until_or_tell(
            "the worker cluster to be connected",
            || has_condition(&cluster(), "Active", "True", "Active").then_some(()),
            || format!(": {:#}\n{}", cluster()["status"], manager.kueue.log_tail(20)),
        );
        Clusters { manager, worker }
    })
}

/// The rights of the manager for the kinds that Kueue has integrated itself, for which Kueue gives a list.
fn rights_of_kueues_own_kinds() -> Value {
    let version = "rbac.authorization.k8s.io/v1";
    let rules = json!([{"apiGroups": ["", "batch"], "resources": ["pods", "jobs"], "verbs": ["get", "list", "watch"]}]);
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "own-kinds"});
    let subject = json!({"kind": "ServiceAccount", "name": "multikueue", "namespace": "kueue-system"});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": "own-kinds"}, "rules": rules},
        {"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": "own-kinds"}, "roleRef": role, "subjects": [subject]},
    ]})
}

/// A kubeconfig of the manager's account in the worker cluster. Kueue accepts no path of another file in it.
fn kubeconfig(worker: &QueuedCluster) -> ByteString {
    let file = worker.cluster.plane.service_account_kubeconfig("kueue-system", "multikueue");
    let mut config: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let cluster = config["clusters"][0]["cluster"].as_object_mut().unwrap();
    let authority = std::fs::read(cluster.remove("certificate-authority").unwrap().as_str().unwrap()).unwrap();
    cluster.insert("certificate-authority-data".into(), json!(ByteString(authority)));
    ByteString(config.to_string().into_bytes())
}

/// Kueue skips the check of pods that request none of the queue's resources.
fn template() -> Value {
    json!({"spec": {"containers": [{"name": "trainer", "resources": {"requests": {"cpu": "100m"}}}]}})
}

impl Clusters {
    /// Creates a job in the manager cluster, and waits until attempt 1 of its copy runs in the worker cluster.
    fn dispatch(&self, name: &str, queue: &str, changes: Value) {
        let mut object = json!({"spec": {"managedBy": "kueue.x-k8s.io/multikueue", "template": template()}});
        merge(&mut object, changes);
        self.manager.create(name, queue, object);
        self.wait_copy(name);
    }

    /// Waits until attempt 1 of a copy runs, and until the manager cluster knows.
    fn wait_copy(&self, name: &str) {
        self.wait_attempt(name, |_, attempt| attempt == 1);
    }

    /// Waits until an attempt of a copy runs whose copy and number pass `is_wanted`, and until the manager cluster knows.
    fn wait_attempt(&self, name: &str, is_wanted: impl Fn(&Value, u64) -> bool) {
        let [of_manager, of_worker] = [&self.manager, &self.worker].map(|queues| &queues.cluster);
        let attempt = |job: &Value| {
            let number = job["status"]["attempt"]["number"].as_u64();
            number.filter(|_| job["status"]["phase"] == "Running")
        };
        let wanted = || {
            let copy = of_worker.job(name)?;
            attempt(&copy).filter(|number| is_wanted(&copy["metadata"]["uid"], *number))
        };
        let number = until_or_tell(&format!("a copy of {name} to run"), wanted, || self.details(name));
        of_manager.wait(name, "running elsewhere", |job| attempt(job) == Some(number));
    }

    /// What both clusters know of a job.
    fn details(&self, name: &str) -> String {
        let clusters = [&self.manager, &self.worker];
        let jobs = clusters.map(|queues| queues.cluster.job(name).map(|job| job["status"].clone()));
        let [workloads, of_worker] = clusters.map(|queues| queues.workloads(name));
        let [log, log_of_worker] = clusters.map(|queues| queues.kueue.log_tail(40));
        format!(": {jobs:#?}\n{workloads:#?}\n{of_worker:#?}\nmanager: {log}\nworker: {log_of_worker}")
    }

    /// Waits until nothing of a job is left in the worker cluster.
    fn wait_gone(&self, name: &str) {
        let cluster = &self.worker.cluster;
        until(&format!("the copy of {name} to go"), || cluster.job(name).is_none().then_some(()));
        until(&format!("the Workload of the copy of {name} to go"), || {
            self.worker.workloads(name).is_empty().then_some(())
        });
        until(&format!("the pods of the copy of {name} to go"), || cluster.pods(name).is_empty().then_some(()));
    }

    /// Asserts that the manager cluster has nothing of a job but its Workload, and no status that its operator wrote.
    fn assert_left_alone(&self, name: &str) {
        let client = self.manager.cluster.plane.client();
        for collection in [
            "/api/v1/namespaces/default/pods",
            "/api/v1/namespaces/default/services",
            "/api/v1/namespaces/default/configmaps",
            "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
        ] {
            let found = client.list(&format!("{collection}?labelSelector=stagecoach.dev/job={name}"));
            assert!(found.is_empty(), "{found:#?}");
        }
        let job = self.manager.cluster.job(name).unwrap();
        let fields = job["metadata"]["managedFields"].as_array().unwrap();
        let of_status = fields.iter().filter(|entry| entry["subresource"] == "status");
        let writers: Vec<&str> = of_status.map(|entry| entry["manager"].as_str().unwrap()).collect();
        assert!(writers.iter().all(|writer| writer.contains("kueue")), "{writers:?}");
    }
}

#[test]
fn a_job_of_the_manager_runs_in_the_worker() {
    let clusters = clusters();
    let Clusters { manager, worker } = clusters;
    clusters.dispatch("away", "team-a", json!({}));
    let copy = worker.cluster.job("away").unwrap();
    assert_eq!(copy["spec"]["managedBy"], "stagecoach.dev/operator");
    let workload = worker.workload("away").unwrap();
    assert_eq!(workload["metadata"]["ownerReferences"][0]["uid"], copy["metadata"]["uid"]);
    assert_eq!(worker.cluster.pods("away").len(), 2);
    let job = manager.cluster.wait("away", "whole", |job| job["status"]["readyStages"] == 2);
    assert!(has_condition(&job, "Admitted", "True", "Admitted"), "{:#}", job["status"]);
    let workload = manager.wait_workload("away", "PodsReady", "True");
    assert_eq!(workload["status"]["clusterName"], "east");
    assert_eq!(workload["metadata"]["ownerReferences"][0]["uid"], job["metadata"]["uid"]);
    clusters.assert_left_alone("away");

    worker.cluster.finish("away", 1, 2);
    let job = manager.cluster.wait_phase("away", "Complete");
    assert!(has_condition(&job, "Complete", "True", "Complete"), "{:#}", job["status"]);
    until("the Workload to be finished", || {
        has_condition(manager.workloads("away").first()?, "Finished", "True", "Succeeded").then_some(())
    });
    clusters.wait_gone("away");
    assert_eq!(manager.workloads("away").len(), 1, "the job is not queued again");
    clusters.assert_left_alone("away");
}

#[test]
fn a_job_that_is_deleted_at_the_manager_leaves_the_worker() {
    let clusters = clusters();
    clusters.dispatch("recalled", "team-a", json!({}));
    clusters.manager.cluster.plane.client().delete(&path("recalled"));
    clusters.wait_gone("recalled");
    until("its Workload to go", || clusters.manager.workloads("recalled").is_empty().then_some(()));
}

/// The copy must not delete itself: MultiKueue would send the job again.
#[test]
fn a_time_to_live_counts_at_the_manager() {
    let clusters = clusters();
    clusters.dispatch("fleeting", "team-a", json!({"spec": {"ttlSecondsAfterFinished": 0}}));
    clusters.worker.cluster.finish("fleeting", 1, 2);
    until("the job to go", || clusters.manager.cluster.job("fleeting").is_none().then_some(()));
    clusters.wait_gone("fleeting");
}

#[test]
fn a_suspended_or_changed_job_saves_in_the_worker_and_is_sent_again() {
    let clusters = clusters();
    let manager = &clusters.manager;
    clusters.dispatch("paused", "team-a", json!({}));
    manager.cluster.edit("paused", json!({"suspend": true}));
    clusters.wait_gone("paused");
    until("its Workload to go", || manager.workloads("paused").is_empty().then_some(()));
    let events = || clusters.worker.cluster.events("paused");
    let drains = |count| (events().iter().filter(|event| *event == "Draining").count() == count).then_some(());
    until_or_tell("the event of the drain", || drains(1), || format!(": {:?}", events()));
    assert_eq!(manager.cluster.job("paused").unwrap()["status"]["phase"], "Pending");

    manager.cluster.edit("paused", json!({"suspend": false}));
    clusters.wait_copy("paused");
    manager.cluster.edit("paused", json!({"stages": 3}));
    until("a copy with three stages", || (clusters.worker.cluster.job("paused")?["spec"]["stages"] == 3).then_some(()));
    clusters.wait_copy("paused");
    assert_eq!(clusters.worker.cluster.pods("paused").len(), 3);
    until_or_tell("the event of the second drain", || drains(2), || format!(": {:?}", events()));
    clusters.assert_left_alone("paused");
}

#[test]
fn a_refusal_of_the_workload_is_an_event() {
    let clusters = clusters();
    let class = json!({"kueue.x-k8s.io/priority-class": "none"});
    let object = json!({"metadata": {"labels": class}, "spec": {"managedBy": "kueue.x-k8s.io/multikueue"}});
    clusters.manager.create("refused", "team-a", object);
    let note = until("the event", || {
        let notes = clusters.manager.cluster.event_notes("refused");
        notes.into_iter().find(|note| note.contains("PriorityClassMissing"))
    });
    assert!(note.contains("the WorkloadPriorityClass none does not exist"), "{note}");
    let path = format!("{}/refused", jobs("default"));
    assert_eq!(clusters.manager.cluster.plane.get(&path).unwrap()["status"], Value::Null);
}

#[test]
fn an_evicted_copy_returns_to_the_queue() {
    let clusters = clusters();
    let Clusters { manager, worker } = clusters;
    let quota = |milli_cpus: u32| json!({ "cpu": format!("{milli_cpus}m") });
    let preemption = json!({"preemption": {"withinClusterQueue": "LowerPriority"}});
    let check = json!({"admissionChecksStrategy": {"admissionChecks": [{"name": "workers"}]}});
    kueue::create(
        worker.cluster.plane.client(),
        &[cluster_queue("narrow", &[("default", quota(200))], preemption), local_queue("narrow", "narrow")],
    );
    kueue::create(
        manager.cluster.plane.client(),
        &[cluster_queue("narrow", &[("default", quota(800))], check), local_queue("narrow", "narrow")],
    );
    clusters.dispatch("evicted", "narrow", json!({}));
    let first = worker.cluster.job("evicted").unwrap()["metadata"]["uid"].clone();
    // a job of the worker cluster itself takes the quota
    let labels = json!({"kueue.x-k8s.io/priority-class": "high"});
    worker.create("local", "narrow", json!({"metadata": {"labels": labels}, "spec": {"template": template()}}));
    worker.cluster.wait_running("local", 1);
    assert!(worker.cluster.pods("evicted").is_empty(), "the quota is free only after the pods");
    let events = until("the event of the drain", || {
        Some(worker.cluster.events("evicted")).filter(|events| events.iter().any(|event| event == "Draining"))
    });
    assert!(events.iter().any(|event| event == "AdmissionLost"), "{events:?}");
    until_or_tell(
        "the manager to give the reservation back",
        || {
            let workload = manager.workload("evicted")?;
            (!has_condition(&workload, "Admitted", "True", "Admitted")
                && !has_condition(&workload, "Evicted", "True", "AdmissionCheck"))
            .then_some(())
        },
        || clusters.details("evicted"),
    );
    worker.cluster.finish("local", 1, 2);
    // MultiKueue removes the copy if it sees the manager's Workload between two reservations. Else, the copy keeps its
    // place in the worker's queue.
    clusters.wait_attempt("evicted", |uid, attempt| attempt == 1 + u64::from(*uid == first));

    // the manager stops its queue
    let stop = |policy: &str| {
        let path = format!("{}/narrow", collection("ClusterQueue", ""));
        manager.cluster.plane.client().patch(&path, &json!({"spec": {"stopPolicy": policy}})).unwrap();
    };
    stop("HoldAndDrain");
    clusters.wait_gone("evicted");
    let workload = manager.wait_workload("evicted", "QuotaReserved", "False");
    assert_eq!(condition_of(&workload, "Evicted").unwrap()["reason"], "ClusterQueueStopped");
    stop("None");
    clusters.wait_copy("evicted");
}
