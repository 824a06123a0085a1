//! Tests the client with a test hub on this machine.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
mod cache;
mod copies;
mod listings;
mod patience;
mod python;
mod streams;

use std::io::Read;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stagecoach_hub::{Environment, HUB_RETRY_POLICY, HubClient, HubError, HubFile, HubToken, HubUri, Repo};
use stagecoach_remote::{RetryPolicy, Waiter};
use stagecoach_test_hub::{File, Hub, Request};

const REPO: &str = "datasets/org/plays";

/// A client, and the log of its waits.
struct Reader {
    client: HubClient,
    log: Arc<Mutex<Log>>,
}

#[derive(Default)]
struct Log {
    notices: Vec<String>,
    waits: Vec<Duration>,
}

/// The configuration of a client.
#[derive(Default)]
struct Setup {
    token: Option<&'static str>,
    cache: Option<PathBuf>,
    offline: bool,
    policy: Option<RetryPolicy>,
}

impl Setup {
    fn client(self, endpoint: &str) -> Reader {
        let token = self.token.and_then(|token| HubToken::parse(token, "HF_TOKEN").unwrap());
        let environment = Environment { endpoint: endpoint.into(), token, cache: self.cache, offline: self.offline };
        let log = Arc::new(Mutex::new(Log::default()));
        let (waits, notices) = (log.clone(), log.clone());
        let pause = Arc::new(move |wait| waits.lock().unwrap().waits.push(wait));
        let notice = Arc::new(move |text: &str| notices.lock().unwrap().notices.push(text.to_owned()));
        Reader {
            client: HubClient::new(environment, self.policy.unwrap_or(HUB_RETRY_POLICY), Waiter { pause, notice })
                .unwrap(),
            log,
        }
    }
}

impl Reader {
    fn new(hub: &Hub) -> Reader {
        Setup::default().client(&hub.endpoint())
    }

    fn with_token(hub: &Hub, token: &'static str) -> Reader {
        Setup { token: Some(token), ..Setup::default() }.client(&hub.endpoint())
    }

    /// Returns all bytes of the first file of the branch main that matches the pattern `path`.
    fn text(&self, path: &str) -> Result<Vec<u8>, HubError> {
        let (commit, file) = self.file(path)?;
        self.bytes(&commit, &file, 0..file.size)
    }

    fn file(&self, path: &str) -> Result<(String, HubFile), HubError> {
        let commit = self.client.commit(&repo(), "main")?;
        let file = self.client.files(&repo(), &commit, path)?.remove(0);
        Ok((commit, file))
    }

    fn bytes(&self, commit: &str, file: &HubFile, range: Range<u64>) -> Result<Vec<u8>, HubError> {
        let mut bytes = Vec::new();
        match self.client.open(&repo(), commit, file, range).read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(error) => Err(HubError::within(&error).expect("an error of the hub").clone()),
        }
    }

    fn notices(&self) -> Vec<String> {
        self.log.lock().unwrap().notices.clone()
    }

    fn waits(&self) -> Vec<u64> {
        self.log.lock().unwrap().waits.iter().map(Duration::as_secs).collect()
    }
}

fn repo() -> Repo {
    named(REPO)
}

/// Returns the repository `name` on the hub of a test.
fn named(name: &str) -> Repo {
    format!("hf://{name}").parse::<HubUri>().unwrap().repo
}

/// Returns `count` bytes that look random. A position has the same byte in every result.
fn noise(count: usize) -> Vec<u8> {
    (0..count as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Returns a hub with one large file `data/a.bin`.
fn hub_with(bytes: &[u8]) -> Hub {
    let hub = Hub::start();
    hub.put(REPO, "main", [("data/a.bin", File::large(bytes))]);
    hub
}

/// Returns the byte ranges of the wanted requests, in the order of the requests.
fn ranges(requests: &[Request], is_wanted: impl Fn(&Request) -> bool) -> Vec<&str> {
    let wanted = requests.iter().filter(|request| is_wanted(request));
    wanted.filter_map(|request| request.range.as_deref()).collect()
}
