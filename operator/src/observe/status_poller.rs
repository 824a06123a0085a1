//! Polls `/status` of each job's stage 0, in the background: a pod that does not answer delays no reconcile. Stage 0 holds an
//! answer until it has news, and that triggers a reconcile. The operator pulls, so that pods need no API permissions.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use stagecoach_api::contract::{HTTP_PORT, StagePhase, StageStatus, StatusQuery};
use stagecoach_lifecycle::UnixMillis;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::{ObservedPod, now};
use crate::build::JobReference;
use crate::sync::PerJob;
use crate::triggers::Triggers;

/// Limits of one request: the time beyond what stage 0 may wait for news, and the bytes of the body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_BODY_BYTES: usize = 1 << 16;
/// Pauses before the next request: after news, and after the first of several without an answer; each later one is twice as
/// long, up to the poll interval.
const PAUSE_AFTER_NEWS: Duration = Duration::from_millis(20);
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(100);

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

/// The polls of a job's stage 0. They end when this is dropped.
#[derive(Debug)]
struct Polls {
    /// UID of the polled pod.
    pod: String,
    polled: Option<PolledStatus>,
    _task: AbortOnDrop,
}

/// The polls, by job UID. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct StatusPoller {
    interval: Duration,
    jobs: Arc<PerJob<Polls>>,
    triggers: Arc<Triggers>,
}

impl StatusPoller {
    /// Stage 0 without news is polled once per `interval`.
    pub(crate) fn new(interval: Duration, triggers: Arc<Triggers>) -> StatusPoller {
        StatusPoller { interval, jobs: Arc::default(), triggers }
    }

    /// The poll interval.
    pub(crate) const fn interval(&self) -> Duration {
        self.interval
    }

    /// The last response of `pod`, which is stage 0 of `job`'s attempt. From the first call on it is polled.
    pub(crate) fn status(&self, job: &JobReference, pod: &ObservedPod) -> Option<PolledStatus> {
        let address = pod.address?;
        let start = || Polls {
            pod: pod.uid.clone(),
            polled: None,
            _task: AbortOnDrop(tokio::spawn(self.clone().poll(job.clone(), pod.clone(), address)).abort_handle()),
        };
        let mut jobs = self.jobs.lock();
        let polls = jobs.entry(job.uid.clone()).or_insert_with(start);
        if polls.pod != pod.uid {
            *polls = start();
        }
        polls.polled.clone()
    }

    /// Ends the polls of the job with this UID: it has no stage 0 that may answer.
    pub(crate) fn stop(&self, uid: &str) {
        self.jobs.lock().remove(uid);
    }

    /// Removes the entries of jobs that no longer exist.
    pub(crate) fn retain(&self, is_live: &dyn Fn(&str) -> bool) {
        self.jobs.retain(is_live);
    }

    /// Polls `pod` as long as its job has it as stage 0.
    async fn poll(self, job: JobReference, pod: ObservedPod, address: IpAddr) {
        let mut revision = None;
        let mut retry_pause = FIRST_RETRY_PAUSE;
        loop {
            let asked_at = Instant::now();
            let query = StatusQuery { revision, timeout_seconds: self.interval.as_secs_f64() };
            let response = fetch(address, query).await.filter(|status| is_from_pod(status, &job.uid, &pod));
            let is_answered = response.is_some();
            revision = response.as_ref().map(|status| status.revision);
            let is_news = {
                let mut jobs = self.jobs.lock();
                let polls = jobs.get_mut(&job.uid).filter(|polls| polls.pod == pod.uid);
                let Some(polls) = polls else { return };
                polls.receive(response)
            };
            if is_news {
                self.triggers.trigger(&job);
            }
            let pause = match (is_answered, is_news) {
                (true, true) => PAUSE_AFTER_NEWS,
                // nothing is left of the interval if stage 0 has held its answer
                (true, false) => self.interval.saturating_sub(asked_at.elapsed()),
                (false, _) => retry_pause,
            };
            retry_pause = if is_answered { FIRST_RETRY_PAUSE } else { self.interval.min(2 * retry_pause) };
            tokio::time::sleep(pause.min(self.interval)).await;
        }
    }
}

impl Polls {
    /// Stores a response; None if there was none. Returns whether it is news.
    fn receive(&mut self, response: Option<StageStatus>) -> bool {
        let before = self.polled.take();
        let is_news = match (&before, &response) {
            (None, response) => response.is_some(),
            (Some(before), None) => before.is_reachable,
            (Some(before), Some(status)) => !before.is_reachable || status.is_news_after(&before.status),
        };
        self.polled = match response {
            None => before.map(|before| PolledStatus { is_reachable: false, ..before }),
            Some(status) => {
                let same = before.filter(|before| before.status == status);
                let changed_at = same.map_or_else(now, |before| before.changed_at);
                Some(PolledStatus { status, changed_at, polled_at: now(), is_reachable: true })
            }
        };
        is_news
    }
}

/// Whether the response comes from this pod: an IP address may have been reassigned.
fn is_from_pod(status: &StageStatus, job: &str, pod: &ObservedPod) -> bool {
    status.job_uid == job && status.attempt == pod.instance.attempt && status.pod_uid == pod.uid
}

async fn fetch(ip: IpAddr, query: StatusQuery) -> Option<StageStatus> {
    let connect = tokio::time::timeout(REQUEST_TIMEOUT, TcpStream::connect((ip, HTTP_PORT)));
    let stream = connect.await.ok()?.ok()?;
    let request = async {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        let _connection = AbortOnDrop(tokio::spawn(connection).abort_handle());
        let request = http::Request::get(query.path()).header("Host", "stage").body(Empty::<Bytes>::new()).ok()?;
        let response = sender.send_request(request).await.ok()?;
        let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await.ok()?.to_bytes();
        serde_json::from_slice(&body).ok()
    };
    tokio::time::timeout(query.timeout() + REQUEST_TIMEOUT, request).await.ok().flatten()
}

/// A task that ends with its owner.
#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
