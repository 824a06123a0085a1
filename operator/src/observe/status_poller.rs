//! Polls `/status` of each job's stage 0, in the background: a pod that does not answer delays no reconcile. Stage 0 holds an
//! answer until it has news, and that triggers a reconcile. The operator pulls, so that pods need no API permissions.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{HOST, HeaderValue};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use stagecoach_api::contract::{HTTP_PORT, StagePhase, StageStatus, StatusQuery};
use stagecoach_lifecycle::{LostInstance, UnixMillis};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::{ObservedPod, now};
use crate::build::JobReference;
use crate::sync::PerJob;
use crate::triggers::Triggers;

/// Limits of one request: the time beyond what stage 0 may wait for news, and the bytes of the body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_BODY_BYTES: usize = 1 << 16;
/// Pauses before the next request: after news or a closed connection, and after the first of several requests without an answer;
/// each later one is twice as long, up to the poll interval.
const SHORT_PAUSE: Duration = Duration::from_millis(20);
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
    /// Itself, once its process has ended for sure.
    pub ended: Option<LostInstance>,
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
    task: AbortHandle,
}

impl Drop for Polls {
    fn drop(&mut self) {
        self.task.abort();
    }
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
            task: tokio::spawn(self.clone().poll(job.clone(), pod.clone(), address)).abort_handle(),
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
        let mut was_closed = false;
        loop {
            let asked_at = Instant::now();
            let query = StatusQuery { revision, timeout_seconds: self.interval.as_secs_f64() };
            let response = match fetch(address, query).await {
                Response::Status(status) if !is_from_pod(&status, &job.uid, &pod) => Response::None,
                response => response,
            };
            // who closes a connection without an answer, and then listens no more, has ended
            let has_ended = was_closed && response == Response::Refused;
            was_closed = response == Response::Closed;
            let (status, mut pause) = match response {
                // nothing is left of the interval if stage 0 has held its answer
                Response::Status(status) => (Some(*status), self.interval.saturating_sub(asked_at.elapsed())),
                Response::Closed => (None, SHORT_PAUSE),
                Response::Refused | Response::None => (None, retry_pause),
            };
            let is_answered = status.is_some();
            revision = status.as_ref().map(|status| status.revision);
            retry_pause = if is_answered { FIRST_RETRY_PAUSE } else { self.interval.min(2 * retry_pause) };
            let ended = has_ended.then(|| ended(&pod));
            let is_news = {
                let mut jobs = self.jobs.lock();
                let polls = jobs.get_mut(&job.uid).filter(|polls| polls.pod == pod.uid);
                let Some(polls) = polls else { return };
                polls.receive(status, ended)
            };
            if is_news {
                self.triggers.trigger(&job);
            }
            if is_answered && is_news {
                pause = SHORT_PAUSE;
            }
            tokio::time::sleep(pause.min(self.interval)).await;
        }
    }
}

impl Polls {
    /// Stores a response; None if there was none, maybe because the process has `ended`. Returns whether it is news.
    fn receive(&mut self, response: Option<StageStatus>, ended: Option<LostInstance>) -> bool {
        let before = self.polled.take();
        let is_news = match (&before, &response) {
            (None, response) => response.is_some(),
            (Some(before), None) => before.is_reachable || ended.is_some(),
            (Some(before), Some(status)) => !before.is_reachable || status.is_news_after(&before.status),
        };
        self.polled = match response {
            None => before.map(|before| {
                let ended = before.ended.or(ended);
                PolledStatus { is_reachable: false, ended, ..before }
            }),
            Some(status) => {
                let same = before.filter(|before| before.status == status);
                let changed_at = same.map_or_else(now, |before| before.changed_at);
                Some(PolledStatus { status, changed_at, polled_at: now(), is_reachable: true, ended: None })
            }
        };
        is_news
    }
}

/// Whether the response comes from this pod: an IP address may have been reassigned.
fn is_from_pod(status: &StageStatus, job: &str, pod: &ObservedPod) -> bool {
    status.job_uid == job && status.attempt == pod.instance.attempt && status.pod_uid == pod.uid
}

/// The stage 0 that `pod` was.
fn ended(pod: &ObservedPod) -> LostInstance {
    let instance = &pod.instance;
    LostInstance { stage: instance.stage, incarnation: instance.incarnation, since: now(), has_ended: true }
}

/// What came of a request.
#[derive(Debug, PartialEq)]
enum Response {
    Status(Box<StageStatus>),
    /// The connection was closed before an answer.
    Closed,
    /// Nobody listens.
    Refused,
    /// Nothing in time, or nothing that is a status.
    None,
}

async fn fetch(ip: IpAddr, query: StatusQuery) -> Response {
    let stream = match tokio::time::timeout(REQUEST_TIMEOUT, TcpStream::connect((ip, HTTP_PORT))).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => return Response::Refused,
        Ok(Err(_)) | Err(_) => return Response::None,
    };
    let request = async {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let _connection = AbortOnDrop(tokio::spawn(connection).abort_handle());
        let mut request = http::Request::new(Empty::<Bytes>::new());
        request.headers_mut().insert(HOST, HeaderValue::from_static("stage"));
        *request.uri_mut() = query.path().parse().unwrap_or_default();
        sender.send_request(request).await
    };
    let deadline = tokio::time::Instant::now() + query.timeout() + REQUEST_TIMEOUT;
    let response = match tokio::time::timeout_at(deadline, request).await {
        Ok(Ok(response)) => response,
        Ok(Err(_)) => return Response::Closed,
        Err(_) => return Response::None,
    };
    let body = tokio::time::timeout_at(deadline, Limited::new(response.into_body(), MAX_BODY_BYTES).collect()).await;
    let status = body.ok().and_then(|body| serde_json::from_slice(&body.ok()?.to_bytes()).ok());
    status.map_or(Response::None, |status| Response::Status(Box::new(status)))
}

/// A task that ends with the scope that it belongs to.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
