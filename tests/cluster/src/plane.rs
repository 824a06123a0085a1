//! Starts, disturbs and ends a control plane.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Mutex;

use http::Method;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use crate::certificates::control_plane;
use crate::client::Client;
use crate::components::{Component, ControlPlaneSettings, ControlPlaneSite, command};
use crate::kubectl::Kubectl;
use crate::kueue_cluster::KueueCluster;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::{condition_of, until};

/// The number of lines of each log that a failed test prints.
const TAIL: usize = 15;

/// A running control plane: etcd, API server, controller manager and scheduler. Any number of control planes may run at
/// the same time. The processes end and the files are removed when this value is dropped, or when the test's process
/// ends.
#[derive(Debug)]
pub struct ControlPlane {
    // fields are dropped in this order: processes before their folder
    processes: Mutex<Vec<(Component, Process)>>,
    admin: Client,
    settings: ControlPlaneSettings,
    server: SocketAddrV4,
    url: String,
    kubectl: Kubectl,
    _held: Socket,
    scratch: Scratch,
}

impl ControlPlane {
    /// Starts a control plane and waits until it accepts pods.
    ///
    /// # Panics
    /// If a component does not start. The test's output has the last lines of the logs.
    pub fn start() -> ControlPlane {
        ControlPlane::start_with(ControlPlaneSettings::default())
    }

    /// Like [`ControlPlane::start`], with `settings`.
    ///
    /// # Panics
    /// If a component does not start.
    pub fn start_with(settings: ControlPlaneSettings) -> ControlPlane {
        let scratch = Scratch::new();
        let (held, server) = hold_port();
        let url = format!("https://{server}");
        control_plane(scratch.path(), server);
        let kubectl = Kubectl::admin(scratch.path());
        let admin = Client::new(&kubectl.kubeconfig);
        let processes = Mutex::new(Vec::new());
        let plane = ControlPlane { processes, admin, settings, server, url, kubectl, _held: held, scratch };
        plane.run(Component::Etcd);
        let socket = plane.scratch.path().join("etcd.sock");
        plane.wait_for("etcd", || std::os::unix::net::UnixStream::connect(&socket).ok().map(drop));
        plane.run(Component::ApiServer);
        plane.wait_until_served();
        plane.run(Component::ControllerManager);
        plane.run(Component::Scheduler);
        plane.wait_for_account("default");
        plane
    }

    /// Returns the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubectl.kubeconfig
    }

    /// Returns the administrator's client.
    pub fn client(&self) -> &Client {
        &self.admin
    }

    /// Returns a folder for files of the test. The folder is removed with the control plane.
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Returns the cluster in the form that [`crate::kueue::Kueue::start_in`] takes.
    pub fn kueue_cluster(&self) -> KueueCluster<'_> {
        KueueCluster { client: &self.admin, kubectl: &self.kubectl, folder: self.scratch.path(), url: self.url.clone() }
    }

    /// Runs kubectl as the administrator.
    pub fn kubectl(&self, arguments: &[&str]) -> Output {
        self.kubectl.run(arguments, "")
    }

    /// Applies manifests with kubectl.
    ///
    /// # Panics
    /// If the API server refuses them.
    #[track_caller]
    pub fn apply(&self, yaml: &str) {
        self.try_apply(yaml).unwrap_or_else(|message| panic!("kubectl apply: {message}\n{yaml}"));
    }

    /// Applies manifests with kubectl.
    ///
    /// # Errors
    /// If kubectl fails. The error is kubectl's standard error.
    pub fn try_apply(&self, yaml: &str) -> Result<(), String> {
        self.kubectl.try_apply(yaml)
    }

    /// Waits until the API server serves the CRD `name`.
    #[track_caller]
    pub fn wait_for_crd(&self, name: &str) {
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        until(&format!("{name} to be served"), || {
            condition_of(&self.get(&path)?, "Established").filter(|condition| condition["status"] == "True")
        });
    }

    /// Reads the object or list at a path of the API. Returns `None` if the API server answers 404.
    #[track_caller]
    pub fn get(&self, path: &str) -> Option<Value> {
        self.admin.get(path)
    }

    /// Creates a namespace and waits until it accepts pods.
    #[track_caller]
    pub fn create_namespace(&self, name: &str) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.admin.create("/api/v1/namespaces", &namespace).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        self.wait_for_account(name);
    }

    /// Writes a kubeconfig with the rights of a service account, and returns the file's path. The token in the
    /// kubeconfig is valid for an hour.
    ///
    /// # Panics
    /// If the account does not exist.
    #[track_caller]
    pub fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> PathBuf {
        self.kueue_cluster().service_account_kubeconfig(namespace, name)
    }

    /// Kills the API server, starts it again at the same address, and waits until it answers.
    pub fn restart_api_server(&self) {
        self.kill(Component::ApiServer);
        self.run(Component::ApiServer);
        self.wait_until_served();
    }

    /// Kills a component. [`ControlPlane::run`] starts it again.
    pub fn kill(&self, component: Component) {
        self.processes.lock().unwrap().retain(|(of, _)| *of != component);
    }

    /// Starts a component that was killed. Does not wait until the component serves.
    pub fn run(&self, component: Component) {
        let log = self.scratch.path().join(format!("{}.log", component.program()));
        let site = ControlPlaneSite { folder: self.scratch.path(), server: self.server, real_nodes: false };
        let command = command(component, site, &self.settings);
        let process = Process::start(command, &log).unwrap_or_else(|e| panic!("{}: {e}", component.program()));
        self.processes.lock().unwrap().push((component, process));
    }

    /// Suspends a component (SIGSTOP): its connections stay open, and it does not answer.
    pub fn stop(&self, component: Component) {
        self.signal(component, libc::SIGSTOP);
    }

    /// Lets a suspended component continue (SIGCONT).
    pub fn resume(&self, component: Component) {
        self.signal(component, libc::SIGCONT);
    }

    /// Returns the ids of the running components' processes.
    pub fn process_ids(&self) -> Vec<u32> {
        self.processes.lock().unwrap().iter().map(|(_, process)| process.id()).collect()
    }

    /// Returns the id of a component's process, or `None` if the component does not run.
    pub fn process_id(&self, component: Component) -> Option<u32> {
        let processes = self.processes.lock().unwrap();
        processes.iter().find(|(of, _)| *of == component).map(|(_, process)| process.id())
    }

    fn signal(&self, component: Component, signal: i32) {
        let processes = self.processes.lock().unwrap();
        processes.iter().filter(|(of, _)| *of == component).for_each(|(_, process)| process.signal(signal));
    }

    fn wait_until_served(&self) {
        self.wait_for("the API server", || self.admin.request(Method::GET, "/readyz", None).ok().map(drop));
    }

    /// Waits for the default service account of a namespace. The API server refuses pods until the controller manager
    /// has created the account.
    fn wait_for_account(&self, namespace: &str) {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default");
        self.wait_for(&format!("the default account of {namespace}"), || self.admin.get(&path).map(drop));
    }

    /// Waits for a condition. Panics as soon as a process ends.
    fn wait_for(&self, what: &str, mut condition: impl FnMut() -> Option<()>) {
        until(what, || {
            for (component, process) in self.processes.lock().unwrap().iter_mut() {
                if let Some(status) = process.ended() {
                    panic!("{} ended ({status}) before {what} was ready", component.program());
                }
            }
            condition()
        });
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for component in Component::ALL {
                let log = self.scratch.path().join(format!("{}.log", component.program()));
                eprintln!("--- {} ends with\n{}", component.program(), tail(&log, TAIL));
            }
        }
        // the components end in the reverse of the order in which they started
        while let Some(last) = self.processes.get_mut().unwrap_or_else(|e| e.into_inner()).pop() {
            drop(last);
        }
    }
}

/// Returns the last `lines` lines of a file.
pub(crate) fn tail(file: &Path, lines: usize) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Returns a free port of 127.0.0.1, and a socket that is bound to it, so that no other process gets the port. The
/// socket does not listen. The API server shares the port and can listen there, also after a restart.
fn hold_port() -> (Socket, SocketAddrV4) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket_ipv4().unwrap();
    (socket, address)
}
