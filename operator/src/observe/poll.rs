//! Asking stage 0 how far it is: a pull, so that pods need no right to anything.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use stagecoach_api::contract::{HTTP_PORT, StagePhase, StageStatus};
use stagecoach_lifecycle::UnixMillis;
use tokio::net::TcpStream;

use super::{Pod, now};

/// What an answer may take, and how long it may be.
const TIMEOUT: Duration = Duration::from_secs(2);
const MOST: usize = 1 << 16;

/// What stage 0 said last.
#[derive(Clone, Debug)]
pub(crate) struct Polled {
    /// Its words.
    pub status: StageStatus,
    /// When they last were others.
    pub changed: UnixMillis,
    /// When they were heard.
    pub at: UnixMillis,
    /// Whether it answered when it was last asked.
    pub answered: bool,
}

/// The last question to a job's stage 0.
#[derive(Clone, Debug)]
struct Asked {
    /// Whom, by UID.
    pod: String,
    at: Instant,
    polled: Option<Polled>,
}

impl Polled {
    /// Before training.
    pub(crate) fn is_preparing(&self) -> bool {
        matches!(self.status.phase, StagePhase::Preparing | StagePhase::Forming)
    }

    /// In training.
    pub(crate) fn is_training(&self) -> bool {
        self.status.phase == StagePhase::Training
    }
}

/// The last answers, by job UID.
#[derive(Debug)]
pub(crate) struct Polls {
    every: Duration,
    last: Mutex<HashMap<String, Asked>>,
}

impl Polls {
    /// Asks each job's stage 0 at most once in `every`.
    pub(crate) fn new(every: Duration) -> Polls {
        Polls { every, last: Mutex::default() }
    }

    /// How long between two questions.
    pub(crate) const fn every(&self) -> Duration {
        self.every
    }

    /// The newest answer of `pod`, which is stage 0 of `job`'s attempt; asks if that is due.
    pub(crate) async fn ask(&self, job: &str, pod: &Pod) -> Option<Polled> {
        let last = self.lock().get(job).filter(|last| last.pod == pod.uid).cloned();
        let before = match last {
            Some(last) if last.at.elapsed() < self.every => return last.polled,
            last => last.and_then(|last| last.polled),
        };
        let answer = match pod.address {
            Some(address) => fetch(address).await.filter(|status| is_its_own(status, job, pod)),
            None => None,
        };
        let polled = match (answer, before) {
            (None, before) => before.map(|before| Polled { answered: false, ..before }),
            (Some(status), before) => {
                let same = before.filter(|before| before.status == status);
                let changed = same.map_or_else(now, |before| before.changed);
                Some(Polled { status, changed, at: now(), answered: true })
            }
        };
        let asked = Asked { pod: pod.uid.clone(), at: Instant::now(), polled: polled.clone() };
        self.lock().insert(job.to_owned(), asked);
        polled
    }

    /// Forgets the jobs that are not among the living.
    pub(crate) fn retain(&self, living: &dyn Fn(&str) -> bool) {
        self.lock().retain(|uid, _| living(uid));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Asked>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the answer is this pod's: an address may have gone to another.
fn is_its_own(status: &StageStatus, job: &str, pod: &Pod) -> bool {
    status.job_uid == job && status.attempt == pod.instance.attempt && status.pod_uid == pod.uid
}

async fn fetch(ip: IpAddr) -> Option<StageStatus> {
    let asked = async {
        let stream = TcpStream::connect((ip, HTTP_PORT)).await.ok()?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        let connection = tokio::spawn(connection);
        let request = http::Request::get("/status").header("Host", "stage").body(Empty::<Bytes>::new()).ok()?;
        let answer = sender.send_request(request).await.ok()?;
        let body = Limited::new(answer.into_body(), MOST).collect().await.ok()?.to_bytes();
        connection.abort();
        serde_json::from_slice(&body).ok()
    };
    tokio::time::timeout(TIMEOUT, asked).await.ok().flatten()
}
