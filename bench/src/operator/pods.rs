//! Follows the states of pods with one watch. Repeated list requests would cause most of the measured load.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde::Deserialize;
use stagecoach_api::contract::JOB_UID_LABEL;
use stagecoach_cluster::Client;

use super::answers::StatusServer;
use super::system::LabelKeys;

/// The path of the collection of pods.
pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";
/// The longest time to wait for pods.
const WAIT_TIMEOUT: Duration = Duration::from_secs(300);

/// The fields of a pod that this program reads.
#[derive(Clone, Debug, Deserialize)]
struct PodEvent {
    metadata: PodMetadata,
    #[serde(default)]
    status: PodState,
}

#[derive(Clone, Debug, Deserialize)]
struct PodMetadata {
    name: String,
    uid: String,
    #[serde(default)]
    labels: HashMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct PodState {
    #[serde(rename = "podIP")]
    pod_ip: Option<IpAddr>,
    #[serde(default)]
    conditions: Vec<PodCondition>,
}

#[derive(Clone, Debug, Deserialize)]
struct PodCondition {
    r#type: String,
    status: String,
}

impl PodEvent {
    fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|condition| condition.r#type == "Ready" && condition.status == "True")
    }
}

/// The key of an attempt: the job's name and the attempt's number.
type Attempt = (String, u64);
/// A pod that has appeared.
struct SeenPod {
    at: Instant,
    /// Whether the pod was ever ready.
    ready: bool,
}

/// The pods that have appeared, by attempt and name.
type Seen = HashMap<Attempt, BTreeMap<String, SeenPod>>;

/// All pods that have appeared, shared with the thread of the watch.
pub(super) struct Pods(Arc<(Mutex<Seen>, Condvar)>);

impl Pods {
    /// Follows the pods with `labels`. For the pods of Stagecoach's jobs, the server `answers` responds to the
    /// operator's `/status` requests.
    pub(super) fn follow(client: &Client, labels: LabelKeys, answers: StatusServer) -> Pods {
        let all: Arc<(Mutex<Seen>, Condvar)> = Arc::default();
        let shared = Arc::clone(&all);
        client.watch(PODS, move |pod: PodEvent| {
            let label = |name: &str| pod.metadata.labels.get(name);
            let Some(attempt) = label(labels.attempt).and_then(|number| number.parse().ok()) else { return };
            let Some(job) = label(labels.job).cloned() else { return };
            if let (Some(address), Some(job_uid)) = (pod.status.pod_ip, label(JOB_UID_LABEL)) {
                answers.insert(address, job_uid, attempt, &pod.metadata.uid);
            }
            let (seen, changed) = &*shared;
            let mut seen = seen.lock().unwrap();
            let pods = seen.entry((job, attempt)).or_default();
            let came =
                pods.entry(pod.metadata.name.clone()).or_insert_with(|| SeenPod { at: Instant::now(), ready: false });
            came.ready |= pod.is_ready();
            changed.notify_all();
        });
        Pods(all)
    }

    /// Waits until `count` pods of the attempt have appeared. Returns the time at which the last pod appeared.
    pub(super) fn wait(&self, job: &str, attempt: u64, count: usize) -> Instant {
        self.until(job, attempt, |pods| pods.len() >= count)
    }

    /// Waits until `count` pods of the attempt have been ready, not necessarily at the same time.
    pub(super) fn wait_ready(&self, job: &str, attempt: u64, count: usize) {
        self.until(job, attempt, |pods| pods.values().filter(|pod| pod.ready).count() >= count);
    }

    /// Returns the name of the attempt's second pod, in the order of names.
    pub(super) fn second(&self, job: &str, attempt: u64) -> String {
        let seen = self.0.0.lock().unwrap();
        seen[&(job.to_owned(), attempt)].keys().nth(1).unwrap().clone()
    }

    fn until(&self, job: &str, attempt: u64, is_so: impl Fn(&BTreeMap<String, SeenPod>) -> bool) -> Instant {
        let (key, deadline) = ((job.to_owned(), attempt), Instant::now() + WAIT_TIMEOUT);
        let (seen, changed) = &*self.0;
        let mut seen = seen.lock().unwrap();
        while !seen.get(&key).is_some_and(&is_so) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{job}, attempt {attempt}: pods did not come within {} s", WAIT_TIMEOUT.as_secs());
            seen = changed.wait_timeout(seen, left).unwrap().0;
        }
        seen[&key].values().map(|pod| pod.at).max().unwrap()
    }
}
