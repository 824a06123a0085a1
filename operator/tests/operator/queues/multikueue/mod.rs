//! Tests of jobs that MultiKueue sends from a manager cluster to a worker cluster. Each cluster has a Kueue and an
//! operator. The manager's Kueue has the rights that docs/KUEUE.md lists, and the rights that Kueue's documentation
//! lists for Pods and Jobs.

mod faults;
mod jobs;

use std::sync::OnceLock;

use k8s_openapi::ByteString;
use serde_json::{Value, json};
use stagecoach_cluster::kueue::{self, cluster_queue, collection, local_queue};
use stagecoach_cluster::{merge, until, until_or_tell};

use super::{ALL_NAMESPACES, QueuedCluster, start_in, start_with};
use crate::support::has_condition;

const PAGE: &str = include_str!("../../../../../docs/KUEUE.md");
const SECRETS: &str = "/api/v1/namespaces/kueue-system/secrets";

struct Clusters {
    manager: QueuedCluster,
    worker: QueuedCluster,
}

/// Returns the manager cluster and its only worker cluster. All tests share both, and they are never dropped.
fn clusters() -> &'static Clusters {
    static CLUSTERS: OnceLock<Clusters> = OnceLock::new();
    CLUSTERS.get_or_init(|| {
        let (_, section) = PAGE.split_once("## MultiKueue").unwrap();
        let blocks = section.split("\n```yaml\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0));
        let [configuration, rights, account, queues] = blocks.collect::<Vec<_>>()[..] else { panic!("{section}") };

        let worker = start_in(ALL_NAMESPACES, json!({}));
        worker.cluster.plane.apply(account);
        worker.cluster.plane.apply(&rights_of_kueues_own_kinds().to_string());
        let worker_queues = PAGE.split("   ```yaml\n").nth(1).and_then(|rest| Some(rest.split_once("   ```")?.0));
        worker.cluster.plane.apply(&worker_queues.unwrap().replace("\n   ", "\n").replacen("   ", "", 1));
        let node = json!({"metadata": {"labels": {"gpu": "h200"}}});
        worker.cluster.plane.client().patch("/api/v1/nodes/node-0", &node).unwrap();

        let mut configuration: Value = serde_saphyr::from_str(configuration).unwrap();
        // a test disconnects a worker cluster and waits for this timeout
        merge(&mut configuration, json!({"multiKueue": {"workerLostTimeout": "20s"}}));
        let manager = start_with(configuration);
        manager.cluster.plane.apply(rights);
        let clusters = Clusters { manager, worker };
        clusters.add_kubeconfig("east");
        clusters.manager.cluster.plane.apply(queues);
        clusters.wait_connected("east");
        clusters
    })
}

/// Returns RBAC objects for the worker cluster that let the manager's Kueue read Pods and Jobs. Kueue's documentation
/// asks for these rights, because Kueue itself manages these kinds.
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

/// Returns a kubeconfig of the manager's account in the worker cluster. The kubeconfig contains the certificate of the
/// certificate authority itself, because Kueue rejects a kubeconfig that refers to another file.
fn kubeconfig(worker: &QueuedCluster) -> ByteString {
    let file = worker.cluster.plane.service_account_kubeconfig("kueue-system", "multikueue");
    let mut config: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let cluster = config["clusters"][0]["cluster"].as_object_mut().unwrap();
    let authority = std::fs::read(cluster.remove("certificate-authority").unwrap().as_str().unwrap()).unwrap();
    cluster.insert("certificate-authority-data".into(), json!(ByteString(authority)));
    ByteString(config.to_string().into_bytes())
}

/// Returns a pod template that requests CPUs. Kueue skips the admission check of pods that request none of the queue's
/// resources.
fn template() -> Value {
    json!({"spec": {"containers": [{"name": "trainer", "resources": {"requests": {"cpu": "100m"}}}]}})
}

/// Returns a job that MultiKueue sends to the worker cluster, with `changes` merged into the object.
fn sent(changes: Value) -> Value {
    let mut object = json!({"spec": {"managedBy": "kueue.x-k8s.io/multikueue", "template": template()}});
    merge(&mut object, changes);
    object
}

impl Clusters {
    /// Creates the Secret `NAME-kubeconfig` in the manager cluster, with a kubeconfig of the worker cluster.
    fn add_kubeconfig(&self, name: &str) {
        let content = json!({"kubeconfig": kubeconfig(&self.worker)});
        let secret = json!({"metadata": {"name": format!("{name}-kubeconfig")}, "data": content});
        self.manager.cluster.plane.client().create(SECRETS, &secret).unwrap();
    }

    /// Waits until the manager is connected with the MultiKueueCluster `name`.
    fn wait_connected(&self, name: &str) {
        let path = format!("{}/{name}", collection("MultiKueueCluster", ""));
        let cluster = || self.manager.cluster.plane.get(&path).unwrap_or_default();
        until_or_tell(
            &format!("the worker cluster {name} to be connected"),
            || has_condition(&cluster(), "Active", "True", "Active").then_some(()),
            || format!(": {:#}\n{}", cluster()["status"], self.manager.kueue.log_tail(20)),
        );
    }

    /// Creates a LocalQueue of the same name in both clusters, and a ClusterQueue for each. `milli_cpus` contains the
    /// quotas in the manager and in the worker cluster, in thousandths of a CPU. `of_worker` is merged into the
    /// worker's ClusterQueue. The admission check `check` sends the jobs of the manager's queue to a worker cluster.
    fn add_queues(&self, namespace: &str, name: &str, check: &str, milli_cpus: [u32; 2], of_worker: Value) {
        let sent = json!({"admissionChecksStrategy": {"admissionChecks": [{"name": check}]}});
        for ((queues, spec), milli_cpus) in
            [(&self.manager, sent), (&self.worker, of_worker)].into_iter().zip(milli_cpus)
        {
            let whole = format!("{namespace}-{name}");
            let mut local = local_queue(name, &whole);
            local["metadata"]["namespace"] = namespace.into();
            let quota = json!({"cpu": format!("{milli_cpus}m")});
            let queue = cluster_queue(&whole, &[("default", quota)], spec);
            kueue::create(queues.cluster.plane.client(), &[queue, local]);
        }
    }

    /// Creates a job in the manager cluster, and waits until attempt 1 of its copy runs in the worker cluster.
    fn dispatch(&self, name: &str, queue: &str, changes: Value) {
        self.manager.create(name, queue, sent(changes));
        self.wait_copy(name);
    }

    /// Waits until attempt 1 of a copy runs, and until the job's status in the manager cluster shows this attempt.
    fn wait_copy(&self, name: &str) {
        self.wait_attempt(name, |_, attempt| attempt == 1);
    }

    /// Waits until a copy runs an attempt for which `is_wanted` returns true, and until the job's status in the manager
    /// cluster shows this attempt. The arguments of `is_wanted` are the copy's UID and the attempt's number.
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

    /// Returns the status and the Workloads of a job in both clusters, and the last lines of both Kueue logs, for the
    /// message of a failed wait.
    fn details(&self, name: &str) -> String {
        let clusters = [&self.manager, &self.worker];
        let jobs = clusters.map(|queues| queues.cluster.job(name).map(|job| job["status"].clone()));
        let [workloads, of_worker] = clusters.map(|queues| queues.workloads(name));
        let [log, log_of_worker] = clusters.map(|queues| queues.kueue.log_tail(40));
        format!(": {jobs:#?}\n{workloads:#?}\n{of_worker:#?}\nmanager: {log}\nworker: {log_of_worker}")
    }

    /// Waits until the worker cluster has no copy of a job, no Workload of the copy and no pods of the copy.
    fn wait_gone(&self, name: &str) {
        let cluster = &self.worker.cluster;
        until(&format!("the copy of {name} to go"), || cluster.job(name).is_none().then_some(()));
        until(&format!("the Workload of the copy of {name} to go"), || {
            self.worker.workloads(name).is_empty().then_some(())
        });
        until(&format!("the pods of the copy of {name} to go"), || cluster.pods(name).is_empty().then_some(()));
    }

    /// Asserts that the operator of the manager cluster has created no object for a job and has not written the job's
    /// status.
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
