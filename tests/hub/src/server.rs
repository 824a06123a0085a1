//! The two HTTP servers of the fake hub, each on its own port: the hub with its API, and the CDN with large files.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{ConnectInfo, State};
use axum::response::Response;
use tokio::runtime::Runtime;

use crate::port::Port;
use crate::shared::{ReceivedRequest, Request, ServerState, decode, lock, status};
use crate::{api, resolve};

/// The largest accepted body of a request, in bytes.
const LARGEST_BODY: usize = 1 << 20;

/// The running servers. Dropping this value ends them.
#[derive(Debug)]
pub(crate) struct Servers {
    runtime: Option<Runtime>,
    hub: SocketAddr,
    cdn: SocketAddr,
}

impl Servers {
    pub(crate) fn start(shared: &Arc<Mutex<ServerState>>) -> Servers {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let serve = |port| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
            let address = listener.local_addr().expect("an address");
            listener.set_nonblocking(true).expect("a non-blocking socket");
            let router = Router::new().fallback(answer).with_state((port, shared.clone()));
            runtime.spawn(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
                axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await
            });
            address
        };
        let (hub, cdn) = (serve(Port::Hub), serve(Port::Cdn));
        lock(shared).cdn = cdn.to_string();
        Servers { runtime: Some(runtime), hub, cdn }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.hub)
    }

    pub(crate) fn cdn(&self) -> String {
        self.cdn.to_string()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // responses whose bodies stall never end by themselves, so the shutdown does not wait for them
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

type Served = (Port, Arc<Mutex<ServerState>>);

async fn answer(
    State((port, shared)): State<Served>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: axum::extract::Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, LARGEST_BODY).await.unwrap_or_default();
    let host = parts.headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
    let request = ReceivedRequest {
        endpoint: format!("http://{host}"),
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: parts.headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    };
    let mut shared = lock(&shared);
    shared.requests.push(Request {
        port,
        method: request.method.to_string(),
        path: decode(&request.path),
        range: request.header("range").map(str::to_owned),
        has_authorization: request.header("authorization").is_some(),
        peer,
    });
    if let Some(answer) = shared.faults.take_answer(port) {
        let headers: Vec<_> = answer.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        return status(answer.status, &headers);
    }
    let answer = match port {
        Port::Cdn => resolve::cdn(&mut shared, &request),
        Port::Hub if request.path.starts_with(resolve::SMALL_FILES) => resolve::small(&mut shared, &request),
        Port::Hub if request.path.starts_with("/api/") => api::answer(&shared, &request),
        Port::Hub => resolve::hub(&mut shared, &request),
    };
    answer.unwrap_or_else(|(number, code, message)| {
        status(number, &[("x-error-code", code), ("x-error-message", message)])
    })
}
