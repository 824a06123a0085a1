//! Polls `/status` of each job's stage 0, in the background: a pod that does not answer delays no reconcile. The operator
//! pulls, so that pods need no API permissions.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use stagecoach_api::contract::{HTTP_PORT, StagePhase, StageStatus};
use stagecoach_lifecycle::UnixMillis;
use tokio::net::TcpStream;

use super::{ObservedPod, now};
use crate::build::JobReference;
use crate::sync::PerJob;
use crate::triggers::Triggers;

/// Limits of one request: time, and bytes of the body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_BODY_BYTES: usize = 1 << 16;

/// The last response of a stage 0.
#[derive(Clone, Debug)]
pub(crate) struct PolledStatus {
    /// The response.
    pub status: StageStatus,
    /// When the response last differed from the one before.
    pub changed_at: UnixMillis,
    /// When it was received.
    pub polled_at: UnixMillis,
    /// Whether the last request was answered.
    pub is_reachable: bool,
}

/// The polls of a job's stage 0.
#[derive(Debug)]
struct Polls {
    /// UID of the polled pod.
    pod: String,
    /// When the last request was sent.
    asked_at: Option<Instant>,
    is_in_flight: bool,
    polled: Option<PolledStatus>,
}

impl PolledStatus {
    /// Whether it prepares data or waits for its peers.
    pub(crate) fn is_preparing(&self) -> bool {
        matches!(self.status.phase, StagePhase::Preparing | StagePhase::Forming)
    }

    /// Whether it trains.
    pub(crate) fn is_training(&self) -> bool {
        self.status.phase == StagePhase::Training
    }
}

/// The polls, by job UID.
#[derive(Debug)]
pub(crate) struct StatusPoller {
    interval: Duration,
    jobs: Arc<PerJob<Polls>>,
    triggers: Arc<Triggers>,
}

impl StatusPoller {
    /// Polls each job's stage 0 at most once per `interval`.
    pub(crate) fn new(interval: Duration, triggers: Arc<Triggers>) -> StatusPoller {
        StatusPoller { interval, jobs: Arc::default(), triggers }
    }

    /// The poll interval.
    pub(crate) const fn interval(&self) -> Duration {
        self.interval
    }

    /// The last response of `pod`, which is stage 0 of `job`'s attempt. If a poll is due, it is sent, and what it changes
    /// triggers a reconcile.
    pub(crate) fn poll(&self, job: &JobReference, pod: &ObservedPod) -> Option<PolledStatus> {
        let mut jobs = self.jobs.lock();
        let polls = jobs.entry(job.uid.clone()).or_insert_with(|| Polls::of(pod));
        if polls.pod != pod.uid {
            *polls = Polls::of(pod);
        }
        let is_due = polls.asked_at.is_none_or(|at| at.elapsed() >= self.interval) && !polls.is_in_flight;
        if let (Some(address), true) = (pod.address, is_due) {
            (polls.asked_at, polls.is_in_flight) = (Some(Instant::now()), true);
            let (jobs, triggers, job, pod) =
                (Arc::clone(&self.jobs), Arc::clone(&self.triggers), job.clone(), pod.clone());
            tokio::spawn(async move {
                let response = fetch(address).await.filter(|status| is_from_pod(status, &job.uid, &pod));
                let mut jobs = jobs.lock();
                let polls = jobs.get_mut(&job.uid).filter(|polls| polls.pod == pod.uid);
                if polls.is_some_and(|polls| polls.receive(response)) {
                    triggers.trigger(&job);
                }
            });
        }
        polls.polled.clone()
    }

    /// Removes the entries of jobs that no longer exist.
    pub(crate) fn retain(&self, is_live: &dyn Fn(&str) -> bool) {
        self.jobs.retain(is_live);
    }
}

impl Polls {
    fn of(pod: &ObservedPod) -> Polls {
        Polls { pod: pod.uid.clone(), asked_at: None, is_in_flight: false, polled: None }
    }

    /// Stores a response; None if there was none. Returns whether it changes more than the progress, which the next reconcile
    /// is early enough for.
    fn receive(&mut self, response: Option<StageStatus>) -> bool {
        self.is_in_flight = false;
        let before = self.polled.take();
        let urgent = |polled: &PolledStatus| {
            let StageStatus { phase, group, checkpoint, save_failure, environment_differences, .. } =
                polled.status.clone();
            (polled.is_reachable, phase, group, checkpoint, save_failure, environment_differences.unwrap_or_default())
        };
        let urgent_before = before.as_ref().map(urgent);
        self.polled = match response {
            None => before.map(|before| PolledStatus { is_reachable: false, ..before }),
            Some(status) => {
                let same = before.filter(|before| before.status == status);
                let changed_at = same.map_or_else(now, |before| before.changed_at);
                Some(PolledStatus { status, changed_at, polled_at: now(), is_reachable: true })
            }
        };
        self.polled.as_ref().map(urgent) != urgent_before
    }
}

/// Whether the response comes from this pod: an IP address may have been reassigned.
fn is_from_pod(status: &StageStatus, job: &str, pod: &ObservedPod) -> bool {
    status.job_uid == job && status.attempt == pod.instance.attempt && status.pod_uid == pod.uid
}

async fn fetch(ip: IpAddr) -> Option<StageStatus> {
    let request = async {
        let stream = TcpStream::connect((ip, HTTP_PORT)).await.ok()?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        let connection = tokio::spawn(connection);
        let request = http::Request::get("/status").header("Host", "stage").body(Empty::<Bytes>::new()).ok()?;
        let response = sender.send_request(request).await.ok()?;
        let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await.ok()?.to_bytes();
        connection.abort();
        serde_json::from_slice(&body).ok()
    };
    tokio::time::timeout(REQUEST_TIMEOUT, request).await.ok().flatten()
}
