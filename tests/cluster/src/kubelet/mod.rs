//! A kubelet without real containers. It registers nodes, gives each pod on them an address, usually within
//! 127.0.0.0/8, and writes pod status in the order in which a real kubelet writes it. The [`Behaviour`] of a pod's
//! container is a script or a real command.

pub(crate) mod address;
mod behaviour;
mod container;
mod environment;
mod handle;
mod http;
mod logs;
mod node;
mod pod;
mod status;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::runtime::Runtime;

pub use behaviour::{Behaviour, PodView};
pub use handle::PodHandle;

use crate::client::connect;
use crate::{ControlPlane, until};

/// A rule that decides a pod's behaviour. If a rule returns `None`, the next rule decides.
type Rule = Box<dyn Fn(&PodView) -> Option<Behaviour> + Send>;

/// The kubelet of all nodes of a test. Dropping this value ends all its pods. The pods' objects stay in the API
/// server.
///
/// This kubelet does not support images, restarts (it treats every pod as `restartPolicy: Never`), probes other than
/// `httpGet` readiness, or events.
pub struct TestKubelet {
    shared: Arc<KubeletState>,
    runtime: Option<Runtime>,
}

/// The state that the tasks of a kubelet share.
struct KubeletState {
    client: kube::Client,
    /// The folder with the pods' files.
    folder: PathBuf,
    /// Nodes by name. The value is true while a node is silent.
    nodes: BTreeMap<String, tokio::sync::watch::Sender<bool>>,
    rules: Mutex<Vec<Rule>>,
    /// Pods that have started, the newest last.
    pods: Mutex<Vec<Arc<handle::Started>>>,
    /// The tasks of the pods that exist, by UID.
    tasks: Mutex<HashMap<String, watch::PodTask>>,
}

impl TestKubelet {
    /// Registers `nodes` nodes with the names `node-0` and so on, each with `gpus` of `nvidia.com/gpu`. Waits until the
    /// scheduler can bind pods to them.
    pub fn start(plane: &ControlPlane, nodes: usize, gpus: u32) -> TestKubelet {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let names: Vec<String> = (0..nodes).map(|n| format!("node-{n}")).collect();
        let shared = runtime.block_on(async {
            let client = connect(plane.kubeconfig()).await;
            let silent = |name: &String| (name.clone(), tokio::sync::watch::channel(false).0);
            let nodes = names.iter().map(silent).collect();
            let folder = plane.folder().join("pods");
            std::fs::create_dir_all(&folder).unwrap();
            Arc::new(KubeletState {
                client,
                folder,
                nodes,
                rules: Mutex::default(),
                pods: Mutex::default(),
                tasks: Mutex::default(),
            })
        });
        let port = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            tokio::spawn(logs::serve(listener, logs::acceptor(), shared.clone()));
            port
        });
        runtime.block_on(node::register(&shared, gpus, port));
        runtime.spawn(node::heartbeats(shared.clone()));
        runtime.spawn(watch::pods(shared.clone()));
        for name in &names {
            let path = format!("/api/v1/nodes/{name}");
            until(&format!("{name} to be schedulable"), || {
                let node = plane.get(&path)?;
                node["spec"]["taints"].as_array().is_none_or(Vec::is_empty).then_some(())
            });
        }
        TestKubelet { shared, runtime: Some(runtime) }
    }

    /// Adds a rule for pods that start after this call. The newest rule that returns a behaviour decides. If no rule
    /// does, the annotation `stagecoach.test/behaviour` decides (see [`Behaviour::parse`]). Without the annotation, a
    /// pod runs until the kubelet stops it.
    pub fn behave(&self, rule: impl Fn(&PodView) -> Option<Behaviour> + Send + 'static) {
        self.shared.rules.lock().unwrap().push(Box::new(rule));
    }

    /// Returns the handle of the pod `name` or `namespace/name`. The default namespace is `default`. The pod need not
    /// exist yet.
    pub fn pod(&self, name: &str) -> PodHandle {
        let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
        PodHandle::new(self.shared.clone(), namespace, name)
    }

    /// Returns all pods that were ever started, oldest first.
    pub fn pods(&self) -> Vec<PodView> {
        self.shared.pods.lock().unwrap().iter().map(|pod| pod.view.clone()).collect()
    }

    /// Ends the pods of a namespace, without a report to the API server. A test calls this function when it no longer
    /// needs the pods, because their probes take time from other tests.
    pub fn forget_pods(&self, namespace: &str) {
        self.shared.end_tasks(namespace);
    }

    /// Silences a node: its containers continue, but the node reports nothing to the API server, and its pods answer no
    /// requests.
    ///
    /// # Panics
    /// If the node does not exist.
    pub fn stop_node(&self, name: &str) {
        self.shared.nodes[name].send_replace(true);
    }

    /// Ends a node's silence. The node then reports what happened during the silence.
    ///
    /// # Panics
    /// If the node does not exist.
    pub fn resume_node(&self, name: &str) {
        self.shared.nodes[name].send_replace(false);
    }
}

impl Drop for TestKubelet {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // the runtime drops each task at the task's next await; the drop closes the task's sockets and ends its
            // processes
            runtime.shutdown_timeout(std::time::Duration::from_secs(5));
        }
    }
}

impl KubeletState {
    /// Waits until `node` is not silent.
    async fn reachable(&self, node: &str) {
        if let Some(silent) = self.nodes.get(node) {
            let _ = silent.subscribe().wait_for(|silent| !silent).await;
        }
    }

    /// Returns the newest pod of this name that was started.
    fn started(&self, namespace: &str, name: &str) -> Option<Arc<handle::Started>> {
        let pods = self.pods.lock().unwrap();
        pods.iter().rev().find(|pod| pod.view.namespace == namespace && pod.view.name == name).cloned()
    }

    /// Returns the behaviour of `pod`. The newest rule that returns a behaviour decides, then the annotation, then the
    /// default.
    fn behaviour(&self, pod: &PodView) -> Behaviour {
        let rules = self.rules.lock().unwrap();
        let by_rule = rules.iter().rev().find_map(|rule| rule(pod));
        by_rule
            .or_else(|| pod.annotations.get(behaviour::ANNOTATION).map(|text| Behaviour::parse(text)))
            .unwrap_or_default()
    }
}
