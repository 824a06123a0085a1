//! A real one-node Kubernetes cluster on this machine, as root. [`up`] starts the node, and [`down`] ends it. A test
//! attaches to the node as a [`TestNode`] and can disturb it. The node's processes outlive the command that started
//! them. Later commands find the processes by the node's folder.

mod agents;
mod cgroups;
mod container;
mod ctr;
mod daemon;
mod dns;
mod down;
mod firewall;
mod machine;
mod mounts;
mod place;
mod up;
mod volumes;

use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};

use self::daemon::Daemon;
use self::place::{NAME, NodeFolder, SERVER};
use stagecoach_cluster::kueue::KueueCluster;
use stagecoach_cluster::{Client, Component, Kubectl, until};

pub use self::container::{Container, MemoryLimit, Starvation};
pub use self::down::{down, down_any};
pub use self::up::up;
pub use self::volumes::SmallDisk;

/// The environment variable with the node's folder, for tests.
const FOLDER: &str = "STAGECOACH_NODE";
/// The environment variable with the folder of the images, for tests.
const IMAGES: &str = "STAGECOACH_IMAGES";

/// A running node. Dropping this value does not end the node.
#[derive(Debug)]
pub struct TestNode {
    place: NodeFolder,
    kubectl: Kubectl,
    client: Client,
}

impl TestNode {
    /// Returns the node that [`up`] started in `folder`.
    ///
    /// # Panics
    /// If the folder has no node.
    #[track_caller]
    pub fn attach(folder: &Path) -> TestNode {
        let place = NodeFolder::new(folder).unwrap_or_else(|error| panic!("no node: {error:#}"));
        assert!(place.marker().exists(), "no node is in {}: run `make cluster-up`", folder.display());
        let kubectl = Kubectl::admin(place.path());
        TestNode { client: Client::new(&kubectl.kubeconfig), kubectl, place }
    }

    /// Returns the node in the folder that the environment variable `STAGECOACH_NODE` names.
    ///
    /// # Panics
    /// If the variable is not set.
    #[track_caller]
    pub fn from_environment() -> TestNode {
        let folder = std::env::var_os(FOLDER);
        TestNode::attach(&PathBuf::from(folder.unwrap_or_else(|| panic!("{FOLDER} names no folder: run `make e2e`"))))
    }

    /// Returns the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubectl.kubeconfig
    }

    /// Returns the node's folder.
    pub fn folder(&self) -> &Path {
        self.place.path()
    }

    /// Returns the node's name in the cluster.
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// Returns the administrator's client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns this node's cluster in the form that `Kueue::start_in` takes.
    pub fn kueue_cluster(&self) -> KueueCluster<'_> {
        KueueCluster {
            client: &self.client,
            kubectl: &self.kubectl,
            folder: self.place.path(),
            url: format!("https://{SERVER}"),
        }
    }

    /// Runs kubectl as the administrator, with the standard input `input`.
    pub fn kubectl(&self, arguments: &[&str], input: &str) -> Output {
        self.kubectl.run(arguments, input)
    }

    /// Applies manifests with kubectl.
    ///
    /// # Panics
    /// If the API server refuses them.
    #[track_caller]
    pub fn apply(&self, yaml: &str) {
        self.kubectl.try_apply(yaml).unwrap_or_else(|message| panic!("kubectl apply: {message}\n{yaml}"));
    }

    /// Creates a namespace that enforces the restricted Pod Security Standard, and waits until it accepts pods.
    #[track_caller]
    pub fn create_restricted_namespace(&self, name: &str) {
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        let metadata = json!({"name": name, "labels": labels});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        self.client.create("/api/v1/namespaces", &namespace).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
        until(&format!("the default account of {name}"), || self.client.get(&account));
    }

    /// Imports the images of an OCI archive into the node's containerd, under the names that the archive contains.
    ///
    /// # Panics
    /// If the archive can't be imported.
    #[track_caller]
    pub fn import(&self, archive: &Path) {
        expect(ctr::import(&self.place, archive));
    }

    /// Returns the running container `name` of the pod with this UID. The method queries containerd, since the API
    /// server and the kubelet may be down.
    ///
    /// # Panics
    /// If no such container runs.
    #[track_caller]
    pub fn container(&self, pod_uid: &str, name: &str) -> Container {
        Container::of(expect(ctr::process(&self.place, pod_uid, name)))
    }

    /// Ends the kubelet. The containers continue.
    #[track_caller]
    pub fn stop_kubelet(&self) {
        expect(self.daemon(agents::KUBELET).stop());
    }

    /// Starts the stopped kubelet. Returns when the kubelet serves and the node is ready.
    #[track_caller]
    pub fn start_kubelet(&self) {
        expect(self.daemon(agents::KUBELET).start_again(&self.place));
        let health = format!("/api/v1/nodes/{NAME}/proxy/healthz");
        until("the kubelet", || self.client.request(Method::GET, &health, None).ok());
        until("the node to be ready", || up::is_ready(&self.client).then_some(()));
    }

    /// Ends containerd and starts it again. Returns when containerd answers. Containers continue.
    #[track_caller]
    pub fn restart_containerd(&self) {
        let daemon = self.daemon(agents::CONTAINERD);
        expect(daemon.stop());
        expect(daemon.start_again(&self.place));
        until("containerd", || ctr::answers(&self.place).then_some(()));
    }

    /// Kills the API server and starts it again. Returns when the API server answers.
    #[track_caller]
    pub fn restart_api_server(&self) {
        let daemon = self.daemon(Component::ApiServer.program());
        expect(daemon.kill());
        expect(daemon.start_again(&self.place));
        until("the API server", || self.client.request(Method::GET, "/readyz", None).ok());
    }

    /// Advertises `count` GPUs (`nvidia.com/gpu`) as a device plugin does. `None` withdraws the GPUs.
    ///
    /// # Panics
    /// If the API server refuses.
    #[track_caller]
    pub fn set_gpus(&self, count: Option<u32>) {
        let gpus = json!({"nvidia.com/gpu": count.map(|count| count.to_string())});
        let patch = json!({"status": {"capacity": gpus, "allocatable": gpus}});
        let answer = self.client.patch(&format!("/api/v1/nodes/{NAME}/status"), &patch);
        answer.unwrap_or_else(|refusal| panic!("{refusal}"));
    }

    /// Reads the object or list at a path of the API. Returns `None` if the API server answers 404.
    #[track_caller]
    pub fn get(&self, path: &str) -> Option<Value> {
        self.client.get(path)
    }

    #[track_caller]
    fn daemon(&self, name: &str) -> Daemon {
        expect(Daemon::read(&self.place, name))
    }
}

/// Returns the folder that the environment variable `STAGECOACH_IMAGES` names. `images/build.sh` writes `probe.tar` and
/// other archives into it.
///
/// # Panics
/// If the variable is not set.
#[track_caller]
pub fn images() -> PathBuf {
    PathBuf::from(std::env::var_os(IMAGES).unwrap_or_else(|| panic!("{IMAGES} names no folder: run `make e2e`")))
}

#[track_caller]
fn expect<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error:#}"))
}
