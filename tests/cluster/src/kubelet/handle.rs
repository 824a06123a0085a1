//! A test's handle on a pod.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use stagecoach_api::contract::{StagePhase, StageStatus, env};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use super::{KubeletState, PodView};
use crate::until;

/// The exit of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ContainerExit {
    pub(super) code: i32,
    /// `Completed`, `Error`, `OOMKilled` or `StartError`.
    pub(super) reason: String,
    pub(super) message: String,
    /// Whether the kubelet evicted the pod.
    pub(super) evicted: bool,
}

impl ContainerExit {
    pub(super) fn new(code: i32, message: &str) -> ContainerExit {
        let reason = if code == 0 { "Completed" } else { "Error" };
        ContainerExit { code, reason: reason.into(), message: message.into(), evicted: false }
    }
}

/// The answers of a pod's HTTP server. `status` is the answer of `/status`.
#[derive(Debug, Default)]
pub(super) struct PodResponses {
    /// Whether the pod accepts connections and never answers.
    pub(super) hangs: bool,
    pub(super) status: StageStatus,
}

/// A pod whose container has started.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) view: PodView,
    pub(super) responses: Mutex<PodResponses>,
    /// Whether `/readyz` answers 200.
    pub(super) ready: watch::Sender<bool>,
    /// The revision of the pod's status, for requests that wait for a newer status.
    pub(super) revision: watch::Sender<u64>,
    pub(super) exits: UnboundedSender<ContainerExit>,
    /// The file of the container's output.
    pub(super) log: PathBuf,
    /// The times of the lines that the test wrote to the log.
    pub(super) log_times: Mutex<Vec<Timestamp>>,
    /// The grace period in seconds of the first request to delete the pod.
    pub(super) grace_seconds: Arc<Mutex<Option<i64>>>,
}

/// A handle on the pod of a given name. Each method waits until a pod of this name has started, and acts on the newest
/// such pod.
pub struct PodHandle {
    shared: Arc<KubeletState>,
    namespace: String,
    name: String,
}

impl PodHandle {
    pub(super) fn new(shared: Arc<KubeletState>, namespace: &str, name: &str) -> PodHandle {
        PodHandle { shared, namespace: namespace.into(), name: name.into() }
    }

    /// Returns the pod's attributes at its start.
    ///
    /// # Panics
    /// If no such pod starts before the deadline of `until`. Every method of this type panics in that case.
    #[track_caller]
    pub fn view(&self) -> PodView {
        self.started().view.clone()
    }

    /// Ends the pod's container with this exit code and termination message.
    #[track_caller]
    pub fn exit(&self, code: i32, message: &str) {
        self.end(ContainerExit::new(code, message));
    }

    /// Ends the pod's container as the kernel does when memory runs out: exit code 137, reason `OOMKilled`.
    #[track_caller]
    pub fn oom(&self) {
        self.end(ContainerExit { reason: "OOMKilled".into(), ..ContainerExit::new(137, "") });
    }

    /// Evicts the pod as a kubelet under resource pressure does: phase `Failed`, reason `Evicted`, condition
    /// `DisruptionTarget`.
    #[track_caller]
    pub fn evict(&self) {
        self.end(ContainerExit { evicted: true, ..ContainerExit::new(137, "") });
    }

    /// Sets the answer of `/readyz`. The call has no effect on a pod that runs a real command, which answers by itself.
    #[track_caller]
    pub fn set_ready(&self, ready: bool) {
        self.started().ready.send_replace(ready);
    }

    /// Sets the answer of `/status`. If the job, attempt, pod or stage of `status` is empty or 0, the answer has the
    /// value of the pod itself.
    #[track_caller]
    pub fn set_status(&self, status: StageStatus) {
        let started = self.started();
        let own = identity(&started.view);
        let text = |given: String, own: String| if given.is_empty() { own } else { given };
        let number = |given: u64, own: u64| if given == 0 { own } else { given };
        let mut responses = started.responses.lock().unwrap();
        let mut new = StageStatus {
            job_uid: text(status.job_uid, own.job_uid),
            pod_uid: text(status.pod_uid, own.pod_uid),
            attempt: number(status.attempt, own.attempt),
            stage: number(status.stage.into(), own.stage.into()) as u32,
            ..status
        };
        new.revision = responses.status.revision + u64::from(new.is_news_after(&responses.status));
        started.revision.send_replace(new.revision);
        responses.status = new;
    }

    /// Adds a line to the pod's log.
    #[track_caller]
    pub fn log(&self, line: &str) {
        let started = self.started();
        let mut times = started.log_times.lock().unwrap();
        let mut file = std::fs::File::options().create(true).append(true).open(&started.log).unwrap();
        writeln!(file, "{line}").unwrap();
        times.push(Timestamp::now());
    }

    /// Returns the grace period in seconds of the first request to delete the pod, or `None` before that request.
    #[track_caller]
    pub fn grace_seconds(&self) -> Option<i64> {
        *self.started().grace_seconds.lock().unwrap()
    }

    #[track_caller]
    fn end(&self, exit: ContainerExit) {
        let _ = self.started().exits.send(exit);
    }

    #[track_caller]
    fn started(&self) -> Arc<Started> {
        until(&format!("pod {}/{} to start", self.namespace, self.name), || {
            self.shared.started(&self.namespace, &self.name)
        })
    }
}

/// Returns the first status of a stage or a spare. The status contains the job, attempt, stage and incarnation from the
/// container's environment, the pod's UID, and the phase: `StandingBy` for a spare, otherwise `Training`.
pub(super) fn identity(view: &PodView) -> StageStatus {
    let text = |name: &str| view.env.get(name).cloned().unwrap_or_default();
    let spare = text(env::SPARE).parse().ok();
    StageStatus {
        job_uid: text(env::JOB_UID),
        attempt: text(env::ATTEMPT).parse().unwrap_or_default(),
        pod_uid: view.uid.clone(),
        stage: text(env::STAGE).parse().unwrap_or_default(),
        incarnation: text(env::INCARNATION).parse().unwrap_or_default(),
        spare,
        phase: if spare.is_some() { StagePhase::StandingBy } else { StagePhase::Training },
        ..StageStatus::default()
    }
}
