//! The release on the node: images, namespaces, the volume with the corpus, and the chart.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock};

use serde_json::{Value, json};
use stagecoach_cluster::{chart, printed, until};
use stagecoach_node::{Container, TestNode};

/// The namespace of the jobs, which enforces the restricted Pod Security Standard.
pub const NAMESPACE: &str = "e2e";
/// The namespace of the operator, which enforces the same standard as the jobs' namespace.
pub const SYSTEM: &str = "stagecoach-system";
/// The label selector of the operator's pods.
const OPERATOR_PODS: &str = "app.kubernetes.io/name=stagecoach,app.kubernetes.io/component=operator";
/// The plays on which jobs train.
const PLAYS: [&str; 3] = ["hamlet.txt", "macbeth.txt", "othello.txt"];

/// Stagecoach, as the chart installs it on the test's node.
pub struct Product {
    /// The node.
    pub node: TestNode,
    /// The shared volume's path on the machine.
    pub volume: PathBuf,
}

impl Product {
    /// Locks the installation for one test, and returns it. The first call installs Stagecoach.
    pub fn take() -> MutexGuard<'static, Product> {
        static PRODUCT: OnceLock<Mutex<Product>> = OnceLock::new();
        let product = PRODUCT.get_or_init(|| Mutex::new(Product::install()));
        product.lock().unwrap_or_else(|failed| {
            // the failed test may have changed the release in any way, so install the release again
            product.clear_poison();
            let product = failed.into_inner();
            product.helm_install(&json!({}));
            product
        })
    }

    fn install() -> Product {
        let node = TestNode::from_environment();
        node.create_restricted_namespace(SYSTEM);
        node.create_restricted_namespace(NAMESPACE);
        let volume = node.shared_folder(NAMESPACE);
        write_corpus(&volume);
        node.claim(NAMESPACE, "training", &volume);
        let product = Product { node, volume };
        product.helm_install(&json!({}));
        product
    }

    /// Installs or upgrades the release with additional values. Returns when the operator's replicas are ready.
    #[track_caller]
    pub fn helm_install(&self, more: &Value) {
        let image = |name: &str| json!({"repository": format!("localhost/stagecoach-{name}"), "tag": "e2e"});
        let mut values = json!({
            "image": image("operator"),
            "trainerImage": image("trainer"),
            "logFormat": "text",
            // the cluster has one node, so no other node can run an evicted replica
            "podDisruptionBudget": {"enabled": false},
            "networkPolicy": {"apiServer": {"ports": [443, 6443, 16443]}},
        });
        values.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        self.helm(
            &["upgrade", "--install", "--values", "-", chart::RELEASE, &chart::folder().display().to_string()],
            &values,
        );
        self.kubectl_in(SYSTEM, &["rollout", "status", "deployment/stagecoach-operator", "--timeout=180s"]);
    }

    /// Removes the release and waits until the operator's pods have ended.
    #[track_caller]
    pub fn helm_uninstall(&self) {
        self.helm(&["uninstall", "--wait", chart::RELEASE], &Value::Null);
        until("the operator's pods to go", || self.operator_pods().is_empty().then_some(()));
    }

    #[track_caller]
    fn helm(&self, arguments: &[&str], values: &Value) {
        let kubeconfig = self.node.kubeconfig().display().to_string();
        let all = [&["--kubeconfig", &kubeconfig, "--namespace", SYSTEM], arguments].concat();
        printed(&format!("helm {arguments:?}"), chart::helm(&all, &values.to_string()));
    }

    /// Kills all replicas of the operator at once (SIGKILL), as a node that runs out of memory does, and lets new pods
    /// replace them. If the containers restarted within their pods, the kubelet would delay each restart longer than
    /// the previous one, and the job might end before an operator runs. For the same reason, this function deletes the
    /// Lease: otherwise, the new replicas would wait until the Lease of the dead leader expires. Other tests cover that
    /// wait.
    #[track_caller]
    pub fn kill_operators(&self) {
        let running = self.operators();
        assert!(!running.is_empty(), "no operator runs");
        // a frozen replica can't release the Lease, and the kubelet does not restart its container; a restarted
        // container would take the Lease and then end with its pod
        running.iter().for_each(Container::freeze);
        self.kubectl_in(SYSTEM, &["delete", "pods", "--selector", OPERATOR_PODS, "--force", "--grace-period=0"]);
        running.iter().for_each(Container::kill);
        self.kubectl_in(SYSTEM, &["delete", "lease", "stagecoach-operator", "--ignore-not-found"]);
    }

    /// Returns the operator's running containers.
    pub fn operators(&self) -> Vec<Container> {
        let running = |pod: &&Value| !pod["status"]["containerStatuses"][0]["state"]["running"].is_null();
        let pods = self.operator_pods();
        let containers = pods.iter().filter(running);
        containers.map(|pod| self.node.container(pod["metadata"]["uid"].as_str().unwrap(), "operator")).collect()
    }

    fn operator_pods(&self) -> Vec<Value> {
        self.node.client().list(&format!("/api/v1/namespaces/{SYSTEM}/pods?labelSelector={OPERATOR_PODS}"))
    }

    /// Returns the output of kubectl in the jobs' namespace.
    #[track_caller]
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.kubectl_in(NAMESPACE, arguments)
    }

    #[track_caller]
    fn kubectl_in(&self, namespace: &str, arguments: &[&str]) -> String {
        let output = self.node.kubectl(&[&["--namespace", namespace], arguments].concat(), "");
        printed(&format!("kubectl {}", arguments.join(" ")), output)
    }
}

/// Returns the folder of plays, which `make texts` fetches.
pub fn texts() -> PathBuf {
    let workspace = std::env::var_os("WORKSPACE").map_or_else(|| "workspace".into(), PathBuf::from);
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(workspace).join("corpus/shakespeare")
}

/// Copies the plays that the jobs read into a workspace or volume.
///
/// # Panics
/// If `make texts` has not fetched them.
pub(crate) fn write_corpus(volume: &Path) {
    let texts = texts();
    let corpus = volume.join("corpus/shakespeare");
    std::fs::create_dir_all(&corpus).unwrap();
    for play in PLAYS {
        let from = texts.join(play);
        let text = std::fs::read(&from).unwrap_or_else(|e| panic!("{}: {e}; run `make e2e`", from.display()));
        std::fs::write(corpus.join(play), text).unwrap();
        std::fs::set_permissions(corpus.join(play), Permissions::from_mode(0o644)).unwrap();
    }
}

/// A cordoned node, on which the scheduler places no pods. Dropping this value uncordons the node, so that the next
/// test can use the node even if this test fails.
pub struct Cordoned<'n>(&'n TestNode);

impl Cordoned<'_> {
    /// Cordons the node.
    pub fn new(node: &TestNode) -> Cordoned<'_> {
        printed("kubectl cordon", node.kubectl(&["cordon", node.name()], ""));
        Cordoned(node)
    }
}

impl Drop for Cordoned<'_> {
    fn drop(&mut self) {
        let _ = self.0.kubectl(&["uncordon", self.0.name()], "");
    }
}
