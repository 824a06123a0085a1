//! The life of a pod: pending, running, ended, deleted. The kubelet writes the terminal state before it deletes the
//! object.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::select_all;
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::Value;
use stagecoach_api::contract::{CONTAINER_NAME, HTTP_PORT, env};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::address::Address;
use super::container::TestContainer;
use super::handle::{ContainerExit, PodResponses, Started, identity};
use super::http::{get_succeeds, serve};
use super::status::{ContainerState, now, patch};
use super::{Behaviour, KubeletState, PodView, environment};

/// Runs a pod, waits for a request to delete it, and deletes its object. If the object is deleted earlier, the caller
/// drops this future, in any phase of the pod.
pub(super) async fn run_pod(shared: Arc<KubeletState>, object: watch::Receiver<Pod>) {
    let name = object.borrow().metadata.name.clone().unwrap_or_default();
    let namespace = object.borrow().metadata.namespace.clone().unwrap_or_default();
    let node = object.borrow().spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let api = Api::namespaced(shared.client.clone(), &namespace);
    let mut life =
        PodRunner { shared, api, object, namespace, name, node, started: now(), grace_seconds: Arc::default() };
    life.run().await;
    life.deletion().await;
    life.delete().await;
}

/// The containers of a pod that has started.
struct Running {
    /// The index of the container with the behaviour: the container `trainer`, or the first container if none has that
    /// name.
    main: usize,
    /// The number of containers that are not init containers.
    count: usize,
    address: String,
    /// The containers, with the init containers last.
    containers: Vec<TestContainer>,
    /// The state of the init containers.
    init: Vec<ContainerState>,
    /// The HTTP server of the main container. The server ends with the container.
    server: JoinSet<()>,
    /// The readiness probe of the main container.
    probe: Option<Probe>,
}

struct PodRunner {
    shared: Arc<KubeletState>,
    api: Api<Pod>,
    object: watch::Receiver<Pod>,
    namespace: String,
    name: String,
    node: String,
    started: Value,
    /// The grace period in seconds of the first request to delete the pod.
    grace_seconds: Arc<Mutex<Option<i64>>>,
}

impl PodRunner {
    /// Runs the pod until its containers have ended. Returns earlier if the containers can't start, or if a client
    /// requests the pod's deletion before they start.
    async fn run(&mut self) {
        let pod = self.object.borrow().clone();
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        if matches!(phase, "Succeeded" | "Failed") {
            return;
        }
        let spec = pod.spec.as_ref().unwrap();
        let count = spec.containers.len();
        self.publish(None, &vec![ContainerState::Waiting("ContainerCreating"); count]).await;
        let client = self.shared.client.clone();
        let maps = tokio::select! {
            maps = environment::config_maps(&client, &pod) => maps,
            () = self.deletion() => return,
        };
        environment::mount(&self.shared.folder, &pod, &maps);
        let address = tokio::select! {
            address = Address::of(&pod) => address,
            () = self.deletion() => return,
        };
        let main = spec.containers.iter().position(|container| container.name == CONTAINER_NAME).unwrap_or(0);
        let Some(secrets) = self.secrets(&spec.containers[main], count).await else { return };
        let variables = environment::variables(&pod, &spec.containers[main], &address.ip, &maps, secrets);
        let (mut view, behaviour) = self.view(&pod, &address.ip, main, variables);
        if behaviour == Behaviour::ImagePullError {
            self.publish(Some(&address.ip), &vec![ContainerState::Waiting("ImagePullBackOff"); count]).await;
            return;
        }
        if matches!(behaviour, Behaviour::Command(_)) {
            self.publish(Some(&address.ip), &vec![ContainerState::Waiting("ContainerCreating"); count]).await;
            let shared = self.shared.clone();
            tokio::select! {
                () = map_environment_to_host(&shared, &pod, main, &mut view) => {}
                () = self.deletion() => return,
            }
        }
        let init = spec.init_containers.as_deref().unwrap_or_default();
        let Some((sidecars, sidecar_states)) = self.initialise(init, &view.uid, count, &address.ip).await else {
            return;
        };
        let (exits, mut ordered) = mpsc::unbounded_channel();
        let responses = PodResponses { hangs: behaviour == Behaviour::Hang, status: identity(&view) };
        let file = |suffix: &str| self.shared.folder.join(&view.uid).with_extension(suffix);
        let (log, termination_message_path, variables) = (file("log"), file("termination"), view.env.clone());
        let started = Arc::new(Started {
            view,
            responses: Mutex::new(responses),
            ready: watch::Sender::new(behaviour != Behaviour::NeverReady),
            revision: watch::Sender::new(0),
            exits,
            log: log.clone(),
            log_times: Mutex::default(),
            grace_seconds: self.grace_seconds.clone(),
        });
        let mut server = JoinSet::new();
        if !matches!(behaviour, Behaviour::Command(_)) {
            let bound = TcpListener::bind((address.ip.as_str(), HTTP_PORT)).await;
            let listener =
                bound.unwrap_or_else(|e| panic!("port {HTTP_PORT} of {}, as on all addresses: {e}", address.ip));
            server.spawn(serve(listener, self.shared.clone(), started.clone()));
        }
        let mut containers: Vec<TestContainer> = (0..count).map(|_| TestContainer::sidecar()).collect();
        containers[main] = TestContainer::start(&behaviour, variables, &log, termination_message_path);
        let probe = Probe::of(&pod, main, &started);
        self.shared.pods.lock().unwrap().push(started);
        containers.extend(sidecars);
        let mut running =
            Running { main, count, address: address.ip.clone(), containers, init: sidecar_states, server, probe };
        self.watch_containers(&mut running, &mut ordered).await;
    }

    /// Runs the init containers, one after the other. Sidecars among them continue to run. Returns all init containers
    /// and their states, or `None` if an init container failed or a client requested the pod's deletion. An init
    /// container's command is its behaviour in the form of [`Behaviour::parse`]. Without a command, an init container
    /// ends at once, and a sidecar runs until the kubelet stops it.
    async fn initialise(
        &mut self,
        init: &[Container],
        uid: &str,
        count: usize,
        address: &str,
    ) -> Option<(Vec<TestContainer>, Vec<ContainerState>)> {
        let (mut containers, mut states) = (Vec::new(), Vec::new());
        let waiting = vec![ContainerState::Waiting("PodInitializing"); count];
        for container in init {
            let is_sidecar = container.restart_policy.as_deref() == Some("Always");
            let command = container.command.clone().unwrap_or_default().join(" ");
            let otherwise = if is_sidecar { "run" } else { "exit 0" };
            let behaviour = Behaviour::parse(if command.is_empty() { otherwise } else { &command });
            let log = self.shared.folder.join(format!("{uid}-{}", container.name));
            let termination = log.with_extension("termination");
            let mut started = TestContainer::start(&behaviour, BTreeMap::new(), &log, termination);
            let since = now();
            if is_sidecar {
                states.push(ContainerState::Running { since, ready: true });
                containers.push(started);
                continue;
            }
            let exit = tokio::select! {
                exit = started.ended() => exit,
                () = self.deletion() => return None,
            };
            let failed = exit.code != 0;
            states.push(ContainerState::Terminated { since, at: now(), exit });
            containers.push(started);
            if failed {
                for (state, sidecar) in states.iter_mut().zip(&mut containers) {
                    if let ContainerState::Running { since, .. } = state {
                        sidecar.terminate();
                        let exit = sidecar.ended().await;
                        *state = ContainerState::Terminated { since: since.clone(), at: now(), exit };
                    }
                }
                self.publish(Some(address), &[waiting, states].concat()).await;
                return None;
            }
        }
        Some((containers, states))
    }

    /// Runs the containers until all have ended. The `main` container ends with an exit that a test sends over
    /// `ordered`. All containers end if a client requests the pod's deletion. Sidecars among the init containers end
    /// after the pod's containers.
    async fn watch_containers(&mut self, pod_runs: &mut Running, ordered: &mut mpsc::UnboundedReceiver<ContainerExit>) {
        let Running { main, count, address, containers, init, server, probe } = pod_runs;
        let (main, count, address) = (*main, *count, address.as_str());
        let since = now();
        let running = |ready| ContainerState::Running { since: since.clone(), ready };
        let mut states: Vec<ContainerState> = (0..count).map(|n| running(n != main || probe.is_none())).collect();
        states.append(init);
        let mut sidecars_end = false;
        let mut killing: Option<Instant> = None;
        self.publish(Some(address), &states).await;
        while states.iter().any(|state| matches!(state, ContainerState::Running { .. })) {
            let alive =
                containers.iter_mut().enumerate().filter(|(n, _)| matches!(states[*n], ContainerState::Running { .. }));
            let mut changed = true;
            tokio::select! {
                (n, exit) = first(alive) => {
                    states[n] = ContainerState::Terminated { since: since.clone(), at: now(), exit };
                    if n == main {
                        server.shutdown().await;
                    }
                    if !sidecars_end && states[..count].iter().all(|state| matches!(state, ContainerState::Terminated { .. })) {
                        containers[count..].iter_mut().for_each(TestContainer::terminate);
                        sidecars_end = true;
                    }
                }
                Some(exit) = ordered.recv() => {
                    changed = false;
                    if exit.evicted {
                        containers.iter_mut().enumerate().filter(|(n, _)| *n != main).for_each(|(_, other)| other.kill());
                    }
                    containers[main].end(exit);
                }
                ready = answer(probe, address), if matches!(states[main], ContainerState::Running { .. }) => {
                    changed = states[main] != running(ready);
                    states[main] = running(ready);
                }
                deadline = self.deadline(killing) => {
                    changed = false;
                    if killing.is_none() {
                        containers.iter_mut().for_each(TestContainer::terminate);
                    }
                    killing = Some(deadline);
                }
                () = sleep_until(killing.unwrap_or_else(Instant::now)), if killing.is_some() => {
                    changed = false;
                    containers.iter_mut().for_each(TestContainer::kill);
                    killing = Some(Instant::now() + Duration::from_secs(1));
                }
            }
            if changed {
                self.publish(Some(address), &states).await;
            }
        }
    }

    /// Returns the time at which the kubelet must kill the containers. `known` is the time that an earlier call
    /// returned. If `known` is `None`, waits until a client requests the deletion. Otherwise, waits until a client
    /// shortens the grace period so that the new time is before `known`.
    async fn deadline(&mut self, known: Option<Instant>) -> Instant {
        loop {
            let grace = {
                let object = self.object.borrow_and_update();
                let metadata = &object.metadata;
                metadata.deletion_timestamp.as_ref().map(|_| metadata.deletion_grace_period_seconds.unwrap_or(30))
            };
            if let (Some(grace), None) = (grace, known) {
                *self.grace_seconds.lock().unwrap() = Some(grace);
            }
            let deadline = grace.map(|grace| Instant::now() + Duration::from_secs(grace.max(0) as u64));
            match (deadline, known) {
                (Some(deadline), None) => return deadline,
                (Some(deadline), Some(known)) if deadline < known => return deadline,
                _ => {}
            }
            if self.object.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    async fn deletion(&mut self) {
        self.deadline(None).await;
    }

    /// Writes the status, and retries until the API server accepts it.
    async fn publish(&self, address: Option<&str>, states: &[ContainerState]) {
        loop {
            self.shared.reachable(&self.node).await;
            let patch = patch(&self.object.borrow(), address, &self.started, states);
            match self.api.patch_status(&self.name, &PatchParams::default(), &Patch::Strategic(&patch)).await {
                Ok(_) => return,
                // the object was deleted or replaced, which the watch will report
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return,
                Err(kube::Error::Api(status)) if status.code == 422 => panic!("status of {}: {status:?}", self.name),
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Deletes the object without a grace period, since all containers have ended.
    async fn delete(&self) {
        let preconditions = Preconditions { uid: self.object.borrow().metadata.uid.clone(), resource_version: None };
        let now = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default().grace_period(0) };
        loop {
            self.shared.reachable(&self.node).await;
            match self.api.delete(&self.name, &now).await {
                Ok(_) => return,
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return,
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Returns the variables that a container has from Secrets. Waits until the Secrets exist. Returns `None` if a
    /// client deletes the pod before they exist.
    async fn secrets(&mut self, container: &Container, count: usize) -> Option<BTreeMap<String, String>> {
        let (client, namespace) = (self.shared.client.clone(), self.namespace.clone());
        loop {
            if let Some(found) = environment::from_secrets(&client, &namespace, container).await {
                return Some(found);
            }
            self.publish(None, &vec![ContainerState::Waiting("CreateContainerConfigError"); count]).await;
            tokio::select! {
                () = sleep(Duration::from_millis(100)) => {}
                () = self.deletion() => return None,
            }
        }
    }

    /// Returns the attributes of the pod, with the environment of its container `main`, and the pod's behaviour.
    fn view(&self, pod: &Pod, address: &str, main: usize, env: BTreeMap<String, String>) -> (PodView, Behaviour) {
        let container = &pod.spec.as_ref().unwrap().containers[main];
        let view = PodView {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            node: self.node.clone(),
            address: address.to_owned(),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            annotations: pod.metadata.annotations.clone().unwrap_or_default(),
            image: container.image.clone().unwrap_or_default(),
            env,
        };
        let behaviour = self.shared.behaviour(&view);
        (view, behaviour)
    }
}

/// Adapts the environment of a real process, which shares this machine's files and DNS names. Paths of mounts become
/// the volumes' folders, and the name of the master's Service becomes the address of a pod that it selects.
async fn map_environment_to_host(shared: &KubeletState, pod: &Pod, main: usize, view: &mut PodView) {
    let container = &pod.spec.as_ref().unwrap().containers[main];
    let local = |value: &mut String| *value = environment::local(&shared.folder, pod, container, value);
    view.env.values_mut().for_each(local);
    if let Some(master) = view.env.get_mut(env::MASTER_ADDR) {
        let address = environment::behind_service(&shared.client, &view.namespace, master).await;
        *master = address.unwrap_or_else(|| master.clone());
    }
}

/// Waits until one of several containers ends. Returns its index and exit.
async fn first<'a>(containers: impl Iterator<Item = (usize, &'a mut TestContainer)>) -> (usize, ContainerExit) {
    let ends = containers.map(|(n, container)| Box::pin(async move { (n, container.ended().await) }));
    select_all(ends).await.0
}

/// The period of a readiness probe whose last request failed, or that has made no request yet.
const SHORT_PERIOD: Duration = Duration::from_millis(200);

/// A readiness probe over HTTP.
struct Probe {
    port: u16,
    path: String,
    timeout: Duration,
    period: Duration,
    /// Whether the last probe succeeded.
    succeeded: bool,
    /// The answer that the test has set, which may have changed since the last probe.
    ready: watch::Receiver<bool>,
}

impl Probe {
    /// Returns the container's probe, or `None` if the container has no readiness probe over HTTP.
    fn of(pod: &Pod, container: usize, started: &Started) -> Option<Probe> {
        let container = &pod.spec.as_ref()?.containers[container];
        let probe = container.readiness_probe.as_ref()?;
        let get = probe.http_get.as_ref()?;
        let port = match &get.port {
            IntOrString::Int(port) => *port,
            IntOrString::String(name) => {
                container.ports.iter().flatten().find(|port| port.name.as_ref() == Some(name))?.container_port
            }
        };
        Some(Probe {
            port: port.try_into().ok()?,
            path: get.path.clone().unwrap_or_else(|| "/".into()),
            timeout: Duration::from_secs(probe.timeout_seconds.unwrap_or(1).max(1) as u64),
            period: Duration::from_secs(probe.period_seconds.unwrap_or(10).max(1) as u64),
            succeeded: false,
            ready: started.ready.subscribe(),
        })
    }
}

/// Waits for the probe's next result. So that tests wait less, the kubelet probes earlier than the period says until a
/// request succeeds, and when a test changes the answer. Without a probe, this function never returns.
async fn answer(probe: &mut Option<Probe>, address: &str) -> bool {
    let Some(probe) = probe else { return std::future::pending().await };
    let period = if probe.succeeded { probe.period } else { SHORT_PERIOD };
    tokio::select! {
        () = sleep(period) => {}
        // if the caller drops this future during the request, the next call probes soon
        Ok(()) = probe.ready.changed() => probe.succeeded = false,
    }
    probe.succeeded = get_succeeds(address, probe.port, &probe.path, probe.timeout).await;
    probe.succeeded
}
