//! Starts a node: first the control plane at the bridge's address, and then the agents that make this machine its node.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use rustix::process::geteuid;
use serde_json::json;

use super::daemon::Daemon;
use super::place::{ADDRESS, CLAIM, NAME, NodeFolder, SERVER, claimed};
use super::{agents, cgroups, ctr, dns, down, machine};
use stagecoach_cluster::{
    Client, Component, ControlPlaneSettings, ControlPlaneSite, attempt, command, condition_of, control_plane, tools,
};

/// The programs that `make cluster-tools` must have built.
const TOOLS: [&str; 11] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "kube-proxy",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "coredns",
];
/// The programs that must be installed, each with its possible paths.
const INSTALLED: [&[&str]; 3] =
    [&["/usr/sbin/runc", "/usr/bin/runc"], &["/usr/lib/cni/ptp"], &["/usr/lib/cni/host-local"]];
/// The time limit for the start of a part. A busy machine is slow.
const READY: Duration = Duration::from_secs(90);

/// Starts a node in `folder`, which must be empty except for `logs`. Returns when the node is ready and resolves names.
/// `pause` is the OCI archive of `localhost/pause:1`, and `images` are archives of other images for the node. If the
/// start fails, or if `interrupted` becomes true, this function removes all that it has started.
///
/// # Errors
/// If this machine has a node already, a requirement is missing, or a part does not start.
pub fn up(folder: &Path, pause: &Path, images: &[PathBuf], interrupted: &AtomicBool) -> Result<()> {
    check_machine(pause, images)?;
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let place = NodeFolder::new(folder)?;
    let _lock = place.lock()?;
    claim(&place)?;
    let undo = Undo(Some(&place));
    prepare(&place)?;
    Starting { place: &place, client: Client::new(&place.at("admin.kubeconfig")), interrupted }.all(pause, images)?;
    undo.disarm();
    Ok(())
}

fn check_machine(pause: &Path, images: &[PathBuf]) -> Result<()> {
    ensure!(geteuid().is_root(), "a node with real containers needs root on Linux: run this with sudo");
    for places in INSTALLED {
        let there = places.iter().any(|file| Path::new(file).exists());
        ensure!(there, "{} is missing: run tests/node/packages.sh", places.join(" or "));
    }
    TOOLS.iter().try_for_each(|tool| tools::find(tool).map(drop))?;
    for archive in std::iter::once(pause).chain(images.iter().map(PathBuf::as_path)) {
        ensure!(archive.is_file(), "{} is no image archive: images/build.sh makes one", archive.display());
    }
    Ok(())
}

/// Claims the machine for the node in this folder.
fn claim(place: &NodeFolder) -> Result<()> {
    if let Some(other) = claimed() {
        let other = other.display();
        bail!("a node is on this machine already, in {other}: end it with `stagecoach-node down {other}`");
    }
    let entries = std::fs::read_dir(place.path())?.flatten();
    if let Some(entry) = entries.map(|entry| entry.file_name()).find(|name| name != "logs") {
        let folder = place.path().display();
        if place.marker().exists() {
            bail!("{folder} holds a node that was not ended: run `stagecoach-node down {folder}` first");
        }
        bail!("{folder} contains {entry:?}: use a new or empty folder, because `down` deletes all its content");
    }
    machine::expect_unused()?;
    symlink(place.path(), CLAIM).with_context(|| format!("{CLAIM}: another node is being started"))
}

/// Ends the node when dropped, unless [`Undo::disarm`] was called.
struct Undo<'a>(Option<&'a NodeFolder>);

impl Undo<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.0
            && let Err(error) = down::remove(place)
        {
            eprintln!("the clean-up after the failed start is incomplete: {error:#}");
        }
    }
}

/// Creates the files, control groups and network links that the processes need.
fn prepare(place: &NodeFolder) -> Result<()> {
    std::fs::write(place.marker(), json!({"settings": machine::settings()}).to_string())?;
    let _ = std::fs::remove_dir_all(place.logs());
    for folder in ["logs/pods", "processes", "shims", "tmp", "volumes", "kubelet"] {
        std::fs::create_dir_all(place.at(folder))?;
    }
    let authority = control_plane(place.path(), SERVER);
    let url = format!("https://{SERVER}");
    authority.kubeconfig("kube-proxy", "system:kube-proxy", None, &url);
    authority.kubeconfig("kubelet", &format!("system:node:{NAME}"), Some("system:nodes"), &url);
    authority.server("kubelet-server", &[NAME], &[ADDRESS]);
    cgroups::make()?;
    machine::make_bridge()
}

struct Starting<'a> {
    place: &'a NodeFolder,
    client: Client,
    interrupted: &'a AtomicBool,
}

impl Starting<'_> {
    fn all(&self, pause: &Path, images: &[PathBuf]) -> Result<()> {
        self.component(Component::Etcd)?;
        self.agent(agents::CONTAINERD, agents::containerd(self.place)?)?;
        self.wait("etcd", || std::os::unix::net::UnixStream::connect(self.place.at("etcd.sock")).is_ok())?;
        self.component(Component::ApiServer)?;
        self.wait("containerd", || ctr::answers(self.place))?;
        ctr::import(self.place, pause)?;
        let names = ctr::call(self.place, &["images", "list", "--quiet"])?;
        let named = names.lines().any(|name| name == agents::PAUSE);
        ensure!(named, "the archive {} does not contain the image {}", pause.display(), agents::PAUSE);
        images.iter().try_for_each(|archive| ctr::import(self.place, archive))?;
        self.wait("the API server", || self.client.request(Method::GET, "/readyz", None).is_ok())?;
        self.component(Component::ControllerManager)?;
        self.component(Component::Scheduler)?;
        self.agent(agents::KUBELET, agents::kubelet(self.place)?)?;
        self.agent(agents::KUBE_PROXY, agents::kube_proxy(self.place)?)?;
        self.agent(agents::COREDNS, agents::coredns(self.place)?)?;
        for (collection, object) in agents::dns_service() {
            self.client.create(collection, &object).map_err(|refusal| anyhow::anyhow!("{collection}: {refusal}"))?;
        }
        let account = "/api/v1/namespaces/default/serviceaccounts/default";
        self.wait("the default account", || self.client.request(Method::GET, account, None).is_ok())?;
        self.wait("the node to be ready", || is_ready(&self.client))?;
        let name = "kubernetes.default.svc.cluster.local";
        self.wait("the name server", || dns::resolves(agents::DNS, name).unwrap_or(false))
    }

    fn component(&self, component: Component) -> Result<()> {
        let site = ControlPlaneSite { folder: self.place.path(), server: SERVER, real_nodes: true };
        // the controller manager counts a node as lost after 30 s instead of 50 s, because a test waits for it
        let grace_period = (Component::ControllerManager, "--node-monitor-grace-period=30s".to_owned());
        let settings = ControlPlaneSettings { flags: vec![grace_period] };
        self.agent(component.program(), words(&command(component, site, &settings)))
    }

    fn agent(&self, name: &str, command: Vec<String>) -> Result<()> {
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", tools::folder()?.display());
        Daemon::start(self.place, name, command, &path).map(drop)
    }

    /// Waits for a condition. Fails if a process ends or the user interrupts the start.
    fn wait(&self, what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
        attempt(what, READY, || {
            ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
            for daemon in Daemon::all(self.place) {
                ensure!(daemon.is_running(), "{} ended while the start waited for {what}", daemon.name());
            }
            Ok(condition().then_some(()))
        })
        .with_context(|| format!("starting the node; its logs are in {}", self.place.logs().display()))
    }
}

/// Whether the node reports that it is ready.
pub(crate) fn is_ready(client: &Client) -> bool {
    let Ok(node) = client.request(Method::GET, &format!("/api/v1/nodes/{NAME}"), None) else { return false };
    condition_of(&node, "Ready").is_some_and(|ready| ready["status"] == "True")
}

fn words(command: &Command) -> Vec<String> {
    let all = std::iter::once(command.get_program()).chain(command.get_args());
    all.map(|word| word.to_string_lossy().into_owned()).collect()
}
