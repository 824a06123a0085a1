//! Blocking requests to the API server. A request starts no process such as kubectl, and the test needs no async code.

use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use http::Method;
use kube::api::WatchEvent;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::Runtime;

/// The time limit of a request. It suffices on a machine that many tests keep busy, and lets a test that has lost a
/// connection send its request again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A client for the API server that sends and receives JSON, for tests that are not async. Its methods take paths of
/// the API, such as `/api/v1/namespaces/default/pods/a`.
pub struct Client {
    runtime: Runtime,
    client: kube::Client,
}

/// The API server's reason for a refusal, or the failure to reach the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiRefusal {
    /// The HTTP status, or 0 if the API server did not answer.
    pub code: u16,
    /// The reason in one word, such as `NotFound`.
    pub reason: String,
    /// The API server's message.
    pub message: String,
}

impl std::fmt::Display for ApiRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl From<kube::Error> for ApiRefusal {
    fn from(error: kube::Error) -> ApiRefusal {
        match error {
            kube::Error::Api(status) => {
                ApiRefusal { code: status.code, reason: status.reason, message: status.message }
            }
            other => ApiRefusal { code: 0, reason: "NoAnswer".into(), message: other.to_string() },
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Client {
    /// Returns a client with the rights of `kubeconfig`.
    pub fn new(kubeconfig: &Path) -> Client {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(connect(kubeconfig));
        Client { runtime, client }
    }

    /// Sends one request, and waits at most a minute for the answer.
    ///
    /// # Errors
    /// If the API server refuses the request or does not answer.
    pub fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, ApiRefusal> {
        let kind = match (&method, body) {
            (&Method::PATCH, Some(Value::Array(_))) => "application/json-patch+json",
            (&Method::PATCH, _) => "application/merge-patch+json",
            _ => "application/json",
        };
        self.send(method, path, kind, body)
    }

    /// Reads the object or list at `path`. Returns `None` if the API server answers 404.
    ///
    /// # Panics
    /// If the API server refuses for any other reason.
    #[track_caller]
    pub fn get(&self, path: &str) -> Option<Value> {
        match self.request(Method::GET, path, None) {
            Ok(object) => Some(object),
            Err(refusal) if refusal.code == 404 => None,
            Err(refusal) => panic!("GET {path}: {refusal}"),
        }
    }

    /// Returns the items of a list.
    ///
    /// # Panics
    /// If the API server refuses.
    #[track_caller]
    pub fn list(&self, path: &str) -> Vec<Value> {
        let list = self.get(path).unwrap_or_else(|| panic!("{path} is not served"));
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Creates an object in the collection at `path`. The API server refuses unknown and duplicate fields.
    ///
    /// # Errors
    /// If the API server refuses.
    pub fn create(&self, path: &str, object: &Value) -> Result<Value, ApiRefusal> {
        self.request(Method::POST, &strict(path), Some(object))
    }

    /// Replaces the object at `path`.
    ///
    /// # Errors
    /// If the API server refuses.
    pub fn replace(&self, path: &str, object: &Value) -> Result<Value, ApiRefusal> {
        self.request(Method::PUT, &strict(path), Some(object))
    }

    /// Patches the object at `path`. An object as `patch` is a merge patch, and a list is a JSON patch.
    ///
    /// # Errors
    /// If the API server refuses.
    pub fn patch(&self, path: &str, patch: &Value) -> Result<Value, ApiRefusal> {
        self.request(Method::PATCH, &strict(path), Some(patch))
    }

    /// Requests the deletion of the object at `path`, with the object's own grace period. Does not wait until the
    /// object is gone. An absent object is not an error.
    ///
    /// # Panics
    /// If the API server refuses for any other reason.
    #[track_caller]
    pub fn delete(&self, path: &str) {
        match self.request(Method::DELETE, path, None) {
            Ok(_) => {}
            Err(refusal) if refusal.code == 404 => {}
            Err(refusal) => panic!("DELETE {path}: {refusal}"),
        }
    }

    /// Watches the collection at `path` in the background for as long as the client lives. Calls `seen` with each
    /// object that exists when the watch begins, and later with each object that is added or changes. If the API server
    /// ends the watch, `seen` is not called again.
    pub fn watch<T>(&self, path: &str, mut seen: impl FnMut(T) + Send + 'static)
    where
        T: DeserializeOwned + Clone + Send + 'static,
    {
        let (client, uri) = (self.client.clone(), format!("{path}?watch=true"));
        self.runtime.spawn(async move {
            let request = http::Request::get(uri).body(Vec::new()).unwrap();
            let mut events = std::pin::pin!(client.request_events::<T>(request).await.unwrap());
            while let Some(event) = events.next().await {
                if let Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) = event {
                    seen(object);
                }
            }
        });
    }

    fn send(&self, method: Method, path: &str, kind: &str, body: Option<&Value>) -> Result<Value, ApiRefusal> {
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request =
            http::Request::builder().method(method).uri(path).header("Content-Type", kind).body(body).unwrap();
        self.runtime.block_on(async {
            match tokio::time::timeout(ANSWER_TIMEOUT, self.client.request_text(request)).await {
                // some answers are text, such as a log or the "ok" of a healthy server
                Ok(answer) => Ok(answer.map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text)))?),
                Err(_) => {
                    let message = format!("the API server did not answer within {ANSWER_TIMEOUT:?}");
                    Err(ApiRefusal { code: 0, reason: "NoAnswer".into(), message })
                }
            }
        })
    }
}

fn strict(path: &str) -> String {
    format!("{path}{}fieldValidation=Strict", if path.contains('?') { '&' } else { '?' })
}

/// Returns an async client with the rights of `kubeconfig`. The caller must run within a Tokio runtime, which drives
/// the client's connections.
pub async fn connect(kubeconfig: &Path) -> kube::Client {
    let file = Kubeconfig::read_from(kubeconfig).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    config.proxy_url = None; // the server is on this machine, so a proxy of the environment does not apply
    kube::Client::try_from(config).unwrap()
}
