//! Polls `/status` of each job's stage 0. The operator pulls, so that pods need no API permissions.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use stagecoach_api::contract::{HTTP_PORT, StagePhase, StageStatus};
use stagecoach_lifecycle::UnixMillis;
use tokio::net::TcpStream;

use super::{ObservedPod, now};
use crate::sync::PerJob;

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

/// The last request to a job's stage 0.
#[derive(Clone, Debug)]
struct LastPoll {
    /// UID of the polled pod.
    pod: String,
    at: Instant,
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

/// The last requests, by job UID.
#[derive(Debug)]
pub(crate) struct StatusPoller {
    interval: Duration,
    last_polls: PerJob<LastPoll>,
}

impl StatusPoller {
    /// Polls each job's stage 0 at most once per `interval`.
    pub(crate) fn new(interval: Duration) -> StatusPoller {
        StatusPoller { interval, last_polls: PerJob::default() }
    }

    /// The poll interval.
    pub(crate) const fn interval(&self) -> Duration {
        self.interval
    }

    /// The last response of `pod`, which is stage 0 of `job`'s attempt; polls it if that is due.
    pub(crate) async fn poll(&self, job: &str, pod: &ObservedPod) -> Option<PolledStatus> {
        let last = self.last_polls.lock().get(job).filter(|last| last.pod == pod.uid).cloned();
        let before = match last {
            Some(last) if last.at.elapsed() < self.interval => return last.polled,
            last => last.and_then(|last| last.polled),
        };
        let response = match pod.address {
            Some(address) => fetch(address).await.filter(|status| is_from_pod(status, job, pod)),
            None => None,
        };
        let polled = match (response, before) {
            (None, before) => before.map(|before| PolledStatus { is_reachable: false, ..before }),
            (Some(status), before) => {
                let same = before.filter(|before| before.status == status);
                let changed_at = same.map_or_else(now, |before| before.changed_at);
                Some(PolledStatus { status, changed_at, polled_at: now(), is_reachable: true })
            }
        };
        let poll = LastPoll { pod: pod.uid.clone(), at: Instant::now(), polled: polled.clone() };
        self.last_polls.lock().insert(job.to_owned(), poll);
        polled
    }

    /// Removes the entries of jobs that no longer exist.
    pub(crate) fn retain(&self, is_live: &dyn Fn(&str) -> bool) {
        self.last_polls.retain(is_live);
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
