//! Polls `/status` of each job's stage 0 and of its spares, in the background: a pod that does not answer delays no reconcile. A
//! pod holds an answer until it has news, and that triggers a reconcile, as progress alone does now and then. The operator pulls,
//! so that pods need no API permissions.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use stagecoach_api::contract::{HTTP_PORT, StagePhase, StageStatus, StatusQuery};
use stagecoach_api::job::ProgressStatus;
use stagecoach_lifecycle::{InstanceId, UnixMillis};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::{ObservedPod, now};
use crate::build::JobReference;
use crate::requeue::PROGRESS_INTERVAL_SECONDS;
use crate::sync::PerJob;
use crate::triggers::Triggers;

/// Limits of one request: the time beyond what a pod may wait for news, and the bytes of the body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_BODY_BYTES: usize = 1 << 16;
/// Pauses before the next request: after news, and after the first of several without an answer; each later one is twice as
/// long, up to the poll interval.
const PAUSE_AFTER_NEWS: Duration = Duration::from_millis(20);
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// How long a spare that its node says is ready, and that does not answer an operator that has started since, may be what it is
/// unknown.
const FIRST_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The last response of a pod.
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

    /// Whether a reconcile is to be told of it, although it is no news after the response that was told last: of the first
    /// progress at once, of other changes now and then.
    fn is_due(&self, told: &PolledStatus) -> bool {
        let has_progress = |polled: &PolledStatus| polled.status.progress != ProgressStatus::default();
        let is_time = told.polled_at.plus_seconds(PROGRESS_INTERVAL_SECONDS) <= self.polled_at;
        let is_first = !has_progress(told) && has_progress(self);
        self.is_reachable && self.status != told.status && (is_time || is_first)
    }

    /// Whether it trains.
    pub(crate) fn is_training(&self) -> bool {
        self.status.phase == StagePhase::Training
    }
}

/// What is known of a pod by its own words.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodReport {
    /// Its last response; None before the first one.
    pub polled: Option<PolledStatus>,
    /// The stage that it was when it first had one, and when that was heard. Only a spare begins without, and none has another
    /// one later.
    pub instance: Option<(InstanceId, UnixMillis)>,
    /// Since when it is asked.
    pub(super) polled_since: Option<Instant>,
    /// Whether a request was answered, or has failed.
    pub(super) was_asked: bool,
}

impl PodReport {
    /// Whether it may soon be known what the pod is, which is ready or not.
    pub(crate) fn is_awaited(&self, is_ready: bool) -> bool {
        let may_answer = |since: Instant| !self.was_asked || is_ready && since.elapsed() < FIRST_RESPONSE_TIMEOUT;
        self.polled.is_none() && self.polled_since.is_some_and(may_answer)
    }
}

/// The polls of a pod. They end when the task is dropped; what was heard stays as long as the pod.
#[derive(Debug, Default)]
struct Polls {
    report: PodReport,
    /// The last response that triggered a reconcile.
    last_triggering: Option<PolledStatus>,
    task: Option<AbortOnDrop>,
}

impl Polls {
    /// Stores a response; None if there was none. Returns whether it is news, and whether a reconcile is to be told of it.
    fn receive(&mut self, response: Option<StageStatus>) -> (bool, bool) {
        let is_news = self.report.receive(response);
        let is_due = self
            .report
            .polled
            .as_ref()
            .zip(self.last_triggering.as_ref())
            .is_some_and(|(polled, told)| polled.is_due(told));
        let triggers_reconcile = is_news || is_due;
        if triggers_reconcile {
            self.last_triggering.clone_from(&self.report.polled);
        }
        (is_news, triggers_reconcile)
    }
}

/// The polls, by the UIDs of the job and of the pod. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct StatusPoller {
    interval: Duration,
    jobs: Arc<PerJob<HashMap<String, Polls>>>,
    triggers: Arc<Triggers>,
}

impl StatusPoller {
    /// A pod without news is polled once per `interval`.
    pub(crate) fn new(interval: Duration, triggers: Arc<Triggers>) -> StatusPoller {
        StatusPoller { interval, jobs: Arc::default(), triggers }
    }

    /// What `pod` of `job` has said. From the first call on it is polled.
    pub(crate) fn poll(&self, job: &JobReference, pod: &ObservedPod) -> PodReport {
        let mut jobs = self.jobs.lock();
        let polls = jobs.entry(job.uid.clone()).or_default().entry(pod.uid.clone()).or_default();
        if let (Some(address), None) = (pod.address, &polls.task) {
            let task = tokio::spawn(self.clone().keep_polling(job.clone(), pod.clone(), address));
            polls.task = Some(AbortOnDrop(task.abort_handle()));
            polls.report.polled_since.get_or_insert_with(Instant::now);
        }
        polls.report.clone()
    }

    /// What `pod` of `job` has said so far.
    pub(crate) fn heard(&self, job: &JobReference, pod: &ObservedPod) -> PodReport {
        let jobs = self.jobs.lock();
        jobs.get(&job.uid).and_then(|pods| pods.get(&pod.uid)).map(|polls| polls.report.clone()).unwrap_or_default()
    }

    /// Ends the polls of all pods of `job` but those with these UIDs, and forgets what was heard of pods that no longer exist;
    /// `pods` are all that do.
    pub(crate) fn end_others(&self, job: &JobReference, pods: &[ObservedPod], polled: &[String]) {
        let mut jobs = self.jobs.lock();
        let Some(all) = jobs.get_mut(&job.uid) else { return };
        all.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
        all.iter_mut().filter(|(uid, _)| !polled.contains(uid)).for_each(|(_, polls)| polls.task = None);
    }

    /// Removes the entries of jobs that no longer exist.
    pub(crate) fn retain(&self, is_live: &dyn Fn(&str) -> bool) {
        self.jobs.retain(is_live);
    }

    /// Polls `pod` as long as its polls are wanted.
    async fn keep_polling(self, job: JobReference, pod: ObservedPod, address: IpAddr) {
        let mut client = StatusClient::new(address);
        let mut revision = None;
        let mut retry_pause = FIRST_RETRY_PAUSE;
        loop {
            let asked_at = Instant::now();
            let query = StatusQuery { revision, timeout_seconds: self.interval.as_secs_f64() };
            let response = client.fetch(query).await.filter(|status| is_from_pod(status, &job.uid, &pod));
            let is_answered = response.is_some();
            revision = response.as_ref().map(|status| status.revision);
            let (is_news, triggers_reconcile) = {
                let mut jobs = self.jobs.lock();
                let polls = jobs.get_mut(&job.uid).and_then(|pods| pods.get_mut(&pod.uid));
                let Some(polls) = polls else { return };
                polls.receive(response)
            };
            if triggers_reconcile {
                self.triggers.trigger(&job);
            }
            let pause = match (is_answered, is_news) {
                (true, true) => PAUSE_AFTER_NEWS,
                // nothing is left of the interval if the pod has held its answer
                (true, false) => self.interval.saturating_sub(asked_at.elapsed()),
                (false, _) => retry_pause,
            };
            retry_pause = if is_answered { FIRST_RETRY_PAUSE } else { self.interval.min(2 * retry_pause) };
            tokio::time::sleep(pause.min(self.interval)).await;
        }
    }
}

impl PodReport {
    /// Stores a response; None if there was none. Returns whether it is news: of the first request that too.
    fn receive(&mut self, response: Option<StageStatus>) -> bool {
        let is_first = !std::mem::replace(&mut self.was_asked, true);
        if let Some(&StageStatus { spare: None, stage, incarnation, .. }) = response.as_ref() {
            self.instance.get_or_insert_with(|| (InstanceId { rank: stage, incarnation }, now()));
        }
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
        is_news || is_first
    }
}

/// Whether the response comes from this pod: an IP address may have been reassigned.
fn is_from_pod(status: &StageStatus, job: &str, pod: &ObservedPod) -> bool {
    status.job_uid == job && status.attempt == pod.attempt && status.pod_uid == pod.uid
}

/// Asks a pod, over one connection as long as that lasts: most of what a poll costs would be to open it.
struct StatusClient {
    address: IpAddr,
    connection: Option<Connection>,
}

struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    _task: AbortOnDrop,
}

impl StatusClient {
    fn new(address: IpAddr) -> StatusClient {
        StatusClient { address, connection: None }
    }

    /// The pod's response; None if there is none in time.
    async fn fetch(&mut self, query: StatusQuery) -> Option<StageStatus> {
        let timeout = query.timeout() + REQUEST_TIMEOUT;
        if let Some(mut kept) = self.connection.take().filter(|kept| !kept.sender.is_closed()) {
            let response = tokio::time::timeout(timeout, kept.request(query)).await.ok()?;
            if response.is_some() {
                self.connection = Some(kept);
                return response;
            }
            // the pod has closed it meanwhile
        }
        let mut connection = tokio::time::timeout(REQUEST_TIMEOUT, Connection::open(self.address)).await.ok()??;
        let response = tokio::time::timeout(timeout, connection.request(query)).await.ok()??;
        self.connection = Some(connection);
        Some(response)
    }
}

impl Connection {
    async fn open(address: IpAddr) -> Option<Connection> {
        let stream = TcpStream::connect((address, HTTP_PORT)).await.ok()?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        Some(Connection { sender, _task: AbortOnDrop(tokio::spawn(connection).abort_handle()) })
    }

    /// None if the connection ends, or the response is not a status.
    async fn request(&mut self, query: StatusQuery) -> Option<StageStatus> {
        let request = http::Request::get(query.path()).header("Host", "stage").body(Empty::<Bytes>::new()).ok()?;
        self.sender.ready().await.ok()?;
        let response = self.sender.send_request(request).await.ok()?;
        let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await.ok()?.to_bytes();
        serde_json::from_slice(&body).ok()
    }
}

/// A task that ends with its owner.
#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(spare: Option<u32>, stage: u32, incarnation: u32) -> Option<StageStatus> {
        Some(StageStatus { spare, stage, incarnation, ..StageStatus::default() })
    }

    #[test]
    fn progress_alone_is_told_at_first_and_then_once_in_an_interval() {
        let mut polls = Polls::default();
        let mut told = |step: u64, seconds: u64| {
            let progress = ProgressStatus { step, ..ProgressStatus::default() };
            let (_, triggers_reconcile) = polls.receive(Some(StageStatus { progress, ..StageStatus::default() }));
            // as if it had come so many seconds after the one before
            if let Some(told) = polls.last_triggering.as_mut().filter(|_| !triggers_reconcile) {
                told.polled_at.0 -= seconds * 1000;
            }
            triggers_reconcile
        };
        assert!(told(0, 0), "the first answer");
        assert!(!told(0, 0), "nothing has changed");
        assert!(told(1, 0), "the first progress");
        assert!(!told(2, 14));
        assert!(!told(3, 1));
        assert!(told(4, 0), "15 s later");
        assert!(!told(4, 15));
        assert!(!told(4, 0), "it has not changed since it was told");
        assert!(told(5, 0));
    }

    #[test]
    fn the_place_of_a_spare_is_known_from_the_first_time_that_it_says_so() {
        let mut report = PodReport::default();
        assert!(report.receive(says(Some(0), 0, 0)), "the first answer is news");
        assert_eq!(report.instance, None);
        assert!(!report.receive(says(Some(0), 0, 0)));
        assert!(report.receive(says(None, 2, 1)));
        let (instance, since) = report.instance.unwrap();
        assert_eq!(instance, InstanceId { rank: 2, incarnation: 1 });
        report.receive(says(None, 2, 1).map(|status| StageStatus { phase: StagePhase::Training, ..status }));
        assert!(report.receive(None), "it does not answer any more");
        assert_eq!(report.instance, Some((instance, since)));
    }

    #[test]
    fn an_unheard_pod_is_awaited_until_it_was_asked_and_longer_if_it_is_ready() {
        let mut report = PodReport::default();
        assert!(!report.is_awaited(true), "nobody asks it");
        report.polled_since = Some(Instant::now());
        assert!(report.is_awaited(false));
        assert!(report.receive(None), "that it can't be asked is news once");
        assert!(!report.receive(None));
        assert!(!report.is_awaited(false));
        assert!(report.is_awaited(true));
        report.polled_since = Instant::now().checked_sub(2 * FIRST_RESPONSE_TIMEOUT);
        assert!(!report.is_awaited(true));
        report.polled_since = Some(Instant::now());
        report.receive(says(Some(0), 0, 0));
        assert!(!report.is_awaited(true));
    }
}
