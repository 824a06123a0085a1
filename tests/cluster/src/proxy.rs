//! A proxy to the API server that simulates failures. For each request, a rule decides whether the proxy forwards,
//! refuses or delays the request, or forwards it and never answers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::certificates::write_kubeconfig;
use crate::client::connect;

/// The treatment of a request by the proxy.
#[derive(Clone, Debug)]
pub enum Fate {
    /// Forwards the request, and returns its answer.
    Pass,
    /// Does not forward the request, and answers with this code.
    Refuse(u16),
    /// Forwards the request, and never answers.
    LoseAnswer,
    /// Forwards the request after this time, and returns its answer.
    Delay(Duration),
    /// Waits until the value is true or its sender is dropped. Then forwards the request, and returns its answer.
    Hold(watch::Receiver<bool>),
}

/// The attributes of a request that a rule can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// GET, POST and so on.
    pub method: Method,
    /// The path without the query.
    pub path: String,
    /// Whether the request opens a watch, with `watch=true` in the query.
    pub watch: bool,
}

impl Seen {
    /// Whether the request changes an object that is neither an event nor a Lease.
    pub fn is_write(&self) -> bool {
        !matches!(self.method, Method::GET) && !["/events", "/leases"].iter().any(|kind| self.path.contains(kind))
    }
}

type Rule = Box<dyn FnMut(&Seen) -> Fate + Send>;

/// A proxy in front of the API server, with the rights of one kubeconfig. Dropping this value ends the proxy.
pub struct Proxy {
    shared: Arc<ProxyState>,
    kubeconfig: PathBuf,
    runtime: Option<Runtime>,
}

struct ProxyState {
    client: kube::Client,
    rule: Mutex<Rule>,
    writes: Mutex<Vec<String>>,
    answered: AtomicUsize,
}

impl Proxy {
    /// Starts the proxy with the server and the rights of `kubeconfig`. Writes the kubeconfig for the proxy's clients
    /// to `folder`.
    pub fn start(kubeconfig: &Path, folder: &Path) -> Proxy {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(connect(kubeconfig));
        let pass: Rule = Box::new(|_| Fate::Pass);
        let shared = Arc::new(ProxyState {
            client,
            rule: Mutex::new(pass),
            writes: Mutex::default(),
            answered: AtomicUsize::new(0),
        });
        let router = Router::new().fallback(forward).with_state(shared.clone());
        let address: SocketAddr = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(async { axum::serve(listener, router).await });
            address
        });
        let server = json!({"server": format!("http://{address}")});
        let kubeconfig = folder.join(format!("proxy-{}.kubeconfig", address.port()));
        write_kubeconfig(&kubeconfig, server, &json!({}));
        Proxy { shared, kubeconfig, runtime: Some(runtime) }
    }

    /// Returns the kubeconfig for clients of the proxy.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Sets the rule for requests that arrive after this call.
    pub fn rule(&self, rule: impl FnMut(&Seen) -> Fate + Send + 'static) {
        *self.shared.rule.lock().unwrap() = Box::new(rule);
    }

    /// Returns the number of writes that the API server has answered, refused writes included.
    pub fn answered_writes(&self) -> usize {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// Returns the writes that the API server accepted, in the order of their answers, as method and path.
    pub fn writes(&self) -> Vec<String> {
        self.shared.writes.lock().unwrap().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn forward(State(shared): State<Arc<ProxyState>>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let watch = parts.uri.query().is_some_and(|query| query.contains("watch=true"));
    let seen = Seen { method: parts.method.clone(), path: parts.uri.path().to_owned(), watch };
    let fate = (shared.rule.lock().unwrap())(&seen);
    match &fate {
        Fate::Refuse(code) => return refusal(*code),
        Fate::Delay(time) => tokio::time::sleep(*time).await,
        Fate::Hold(is_released) => drop(is_released.clone().wait_for(|is_released| *is_released).await),
        Fate::Pass | Fate::LoseAnswer => {}
    }
    let Ok(body) = axum::body::to_bytes(body, 8 << 20).await else { return refusal(400) };
    // the proxy's client sets the host and the credentials
    parts.headers.remove(http::header::HOST);
    parts.uri = parts.uri.path_and_query().map_or("/", |path| path.as_str()).parse().unwrap();
    let request = http::Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
    // a client that closes its connection ends this handler, but not the task that sends the request
    let Ok(answer) = tokio::spawn(send(Arc::clone(&shared), seen, request)).await else { return refusal(500) };
    if matches!(fate, Fate::LoseAnswer) {
        return std::future::pending().await;
    }
    match answer {
        Ok(answer) => answer.map(Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

/// Sends a request to the API server, and counts it if it is a write.
async fn send(
    shared: Arc<ProxyState>,
    seen: Seen,
    request: http::Request<kube::client::Body>,
) -> kube::Result<http::Response<kube::client::Body>> {
    let answer = shared.client.send(request).await;
    if seen.is_write() {
        if answer.as_ref().is_ok_and(|answer| answer.status().is_success()) {
            shared.writes.lock().unwrap().push(format!("{} {}", seen.method, seen.path));
        }
        shared.answered.fetch_add(1, Ordering::Relaxed);
    }
    answer
}

/// Returns a refusal in the API server's form.
fn refusal(code: u16) -> Response {
    let reason = match code {
        409 => "Conflict",
        429 => "TooManyRequests",
        504 => "Timeout",
        _ => "InternalError",
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": "made up by the test"});
    (StatusCode::from_u16(code).unwrap(), axum::Json(status)).into_response()
}
