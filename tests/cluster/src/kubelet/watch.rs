//! Watches the pods that are bound to the kubelet's nodes. Each pod has a task for as long as its object exists.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher::{Config, Event, watcher};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{KubeletState, pod};

/// A pod's task, and the channel over which the task receives changes of the pod's object.
pub(super) struct PodTask {
    namespace: String,
    object: watch::Sender<Pod>,
    abort: tokio::task::AbortHandle,
}

impl KubeletState {
    /// Ends the tasks of a namespace's pods.
    pub(super) fn end_tasks(&self, namespace: &str) {
        let tasks = self.tasks.lock().unwrap();
        tasks.values().filter(|task| task.namespace == namespace).for_each(|task| task.abort.abort());
    }
}

/// Watches all pods for as long as the kubelet exists. When a pod's object is deleted, the pod's task and processes end
/// at once.
pub(super) async fn pods(shared: Arc<KubeletState>) {
    let api: Api<Pod> = Api::all(shared.client.clone());
    let mut events = Box::pin(watcher(api, Config::default().fields("spec.nodeName!=")));
    let mut join = JoinSet::new();
    let mut listed = Vec::new();
    loop {
        match events.try_next().await {
            Ok(Some(Event::Apply(pod))) => seen(&shared, &mut join, pod),
            Ok(Some(Event::Delete(pod))) => end(&shared, &uid(&pod)),
            Ok(Some(Event::Init)) => listed.clear(),
            Ok(Some(Event::InitApply(pod))) => {
                listed.push(uid(&pod));
                seen(&shared, &mut join, pod);
            }
            Ok(Some(Event::InitDone)) => {
                let tasks: Vec<String> = shared.tasks.lock().unwrap().keys().cloned().collect();
                tasks.iter().filter(|uid| !listed.contains(uid)).for_each(|uid| end(&shared, uid));
            }
            Ok(None) => return,
            // the API server restarts or does not answer: the next call resumes the watch at the same resource version
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

/// Handles a change of a pod's object. The watch also reports pods on nodes of other kubelets, which this function
/// ignores.
fn seen(shared: &Arc<KubeletState>, join: &mut JoinSet<()>, object: Pod) {
    let node = object.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    if !shared.nodes.contains_key(node) {
        return;
    }
    let mut tasks = shared.tasks.lock().unwrap();
    match tasks.get(&uid(&object)) {
        Some(task) => drop(task.object.send_replace(object)),
        None => {
            let uid = uid(&object);
            let namespace = object.metadata.namespace.clone().unwrap_or_default();
            let (sender, receiver) = watch::channel(object);
            let abort = join.spawn(pod::run_pod(shared.clone(), receiver));
            tasks.insert(uid, PodTask { namespace, object: sender, abort });
        }
    }
}

fn end(shared: &KubeletState, uid: &str) {
    if let Some(task) = shared.tasks.lock().unwrap().remove(uid) {
        task.abort.abort();
    }
}
