//! Runs Kueue's controller beside a control plane, as a process of the test and without root.

mod install;
mod objects;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

pub use crate::kueue_cluster::KueueCluster;

pub use self::objects::{
    API, cluster_queue, collection, create, local_queue, priority_class, resource_flavor, topology,
};
use crate::kubelet::address::Address;
use crate::object::merge;
use crate::plane::{ControlPlane, tail};
use crate::process::Process;
use crate::tools::tool;
use crate::until;

/// The ports at the controller's address. No two controllers share an address.
const WEBHOOKS: u16 = 9443;
const HEALTH: u16 = 8081;

/// The number of log lines that a failed test prints.
const TAIL: usize = 30;

/// Kueue's controller and its webhooks. Any number of controllers may run at the same time, one for each control plane.
/// The process ends when this value is dropped, or when the test's process ends.
///
/// The webhooks are the same as after an installation by `kubectl apply`. The webhook on pods fails closed: while the
/// controller is down, the API server refuses new pods outside `kube-system` and `kueue-system`.
#[derive(Debug)]
pub struct Kueue {
    process: Mutex<Option<Process>>,
    program: PathBuf,
    /// The folder with configuration, certificates and log.
    folder: PathBuf,
    /// The kubeconfig of the controller's account.
    kubeconfig: PathBuf,
    address: Address,
}

impl Kueue {
    /// Installs Kueue's CRDs and webhooks, starts the controller, and waits until the API server calls the webhooks.
    /// The environment variable `STAGECOACH_TEST_KUEUE` can name the program of another version of Kueue, such as
    /// `kueue-0.18`. This function merges `changes`, such as `{"featureGates": {"PriorityBoost": true}}`, into the
    /// controller's configuration.
    ///
    /// # Panics
    /// If the controller does not start. The test's output has the last lines of the controller's log.
    pub fn start(plane: &ControlPlane, changes: Value) -> Kueue {
        let tool = std::env::var("STAGECOACH_TEST_KUEUE").unwrap_or_else(|_| "kueue".into());
        Kueue::start_version(&tool, plane, changes)
    }

    /// Like [`Kueue::start`], but `name` is the program of a version of Kueue, such as `kueue-0.18`.
    ///
    /// # Panics
    /// If the controller does not start.
    pub fn start_version(name: &str, plane: &ControlPlane, changes: Value) -> Kueue {
        Kueue::start_in(&plane.kueue_cluster(), name, changes)
    }

    /// Like [`Kueue::start_version`], in any cluster whose API server is a process of this machine.
    ///
    /// # Panics
    /// If the controller does not start.
    pub fn start_in(kueue_cluster: &KueueCluster<'_>, name: &str, changes: Value) -> Kueue {
        // if several API servers stored Kueue's CRDs at the same time, they would answer too late
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let program = tool(name).canonicalize().unwrap();
        let address = Address::claim();
        install::install(kueue_cluster, &program, &address.ip);
        let kubeconfig = kueue_cluster.service_account_kubeconfig(install::NAMESPACE, install::ACCOUNT);
        let folder = kueue_cluster.folder.join("kueue");
        std::fs::create_dir_all(folder.join("certificates")).unwrap();
        let kueue = Kueue { process: Mutex::default(), program, folder, kubeconfig, address };
        let mut configuration = kueue.configuration();
        merge(&mut configuration, changes);
        // JSON is also YAML
        std::fs::write(kueue.folder.join("configuration.yaml"), configuration.to_string()).unwrap();

        kueue.spawn();
        // the controller writes its certificates to a Secret, which a kubelet would mount: here the test writes the
        // files
        let certificates = kueue.wait_for("certificates", || install::certificates(kueue_cluster));
        for (file, content) in certificates {
            // the controller reads a file as soon as it exists
            let (new, file) = (kueue.folder.join("new"), kueue.folder.join("certificates").join(file));
            std::fs::write(&new, content).unwrap();
            std::fs::rename(new, file).unwrap();
        }
        kueue.wait_until_ready();
        kueue.wait_for("the API server to ask the webhooks", || install::webhooks_are_asked(kueue_cluster));
        kueue
    }

    /// Removes the webhooks, so that the cluster works without the controller, and then ends the controller. Kueue's
    /// objects stay.
    pub fn end(self, kueue_cluster: &KueueCluster<'_>) {
        install::detach(kueue_cluster);
    }

    /// Kills the controller. Kueue's objects and webhooks stay.
    pub fn kill(&self) {
        drop(self.process.lock().unwrap().take());
    }

    /// Starts the controller again after [`Kueue::kill`], with the same configuration, and waits until its webhooks
    /// answer.
    ///
    /// # Panics
    /// If the controller does not start.
    pub fn run(&self) {
        self.spawn();
        self.wait_until_ready();
    }

    /// Returns the last `lines` lines of the controller's log.
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.folder.join("kueue.log"), lines)
    }

    fn configuration(&self) -> Value {
        let ip = &self.address.ip;
        json!({
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": format!("{ip}:{HEALTH}")},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": ip, "port": WEBHOOKS, "certDir": self.folder.join("certificates")},
            "leaderElection": {"leaderElect": false},
            // if Kueue did not manage its certificates itself, the controller would also read certificates in
            // /etc/kueue
            "internalCertManagement": {"enable": true},
            // the server of this feature writes to a folder in /, which needs root
            "featureGates": {"VisibilityOnDemand": false},
            "integrations": {"frameworks": ["batch/job", "pod"]},
        })
    }

    fn spawn(&self) {
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(self.folder.join("configuration.yaml"));
        command.args(["--zap-log-level=2", "--zap-encoder=console"]);
        command.env("KUBECONFIG", &self.kubeconfig).current_dir(&self.folder);
        let process = Process::start(command, &self.folder.join("kueue.log"));
        *self.process.lock().unwrap() = Some(process.unwrap_or_else(|e| panic!("{}: {e}", self.program.display())));
    }

    fn wait_until_ready(&self) {
        self.wait_for("the controller to be ready", || {
            let mut stream = TcpStream::connect((self.address.ip.as_str(), HEALTH)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).ok()?;
            answer.starts_with("HTTP/1.0 200").then_some(())
        });
    }

    /// Waits for a condition. Panics as soon as the process ends.
    fn wait_for<T>(&self, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
        until(&format!("Kueue: {what}"), || {
            if let Some(status) = self.process.lock().unwrap().as_mut().and_then(Process::ended) {
                panic!("Kueue ended ({status}), waiting for {what}");
            }
            condition()
        })
    }
}

impl Drop for Kueue {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {} ends with\n{}", self.program.display(), self.log_tail(TAIL));
        }
    }
}
