//! Serves `/healthz`, `/readyz` and `/metrics`. Clients inside the pod can also use `/log-level`, which changes the log
//! filter at run time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::{get, put};
use tokio::net::TcpListener;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::telemetry::Telemetry;

/// The handle that changes the log filter at run time.
pub(crate) type LogFilterHandle = reload::Handle<EnvFilter, Registry>;

/// Listens at `address`. `[::]` includes IPv4. On a node without IPv6, `[::]` means only IPv4.
///
/// # Errors
/// Returns the error of the socket.
pub(crate) async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(_)
            if address.ip() == Ipv6Addr::UNSPECIFIED && TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.is_err() =>
        {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        result => result,
    }
}

/// Serves until the process ends. `/readyz` always succeeds, because a standby replica is ready too.
///
/// # Errors
/// Returns the error of the socket.
pub(crate) async fn serve(
    listener: TcpListener,
    telemetry: Telemetry,
    log_filter: LogFilterHandle,
) -> std::io::Result<()> {
    let metrics = async move || {
        ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], telemetry.encode())
    };
    let set = async move |ConnectInfo(peer): ConnectInfo<SocketAddr>, wanted: String| {
        if !is_from_this_pod(peer.ip()) {
            return (StatusCode::FORBIDDEN, "only from within the pod: use kubectl port-forward\n".to_owned());
        }
        let filter: EnvFilter = match wanted.trim().parse() {
            Ok(filter) => filter,
            Err(e) => return (StatusCode::BAD_REQUEST, format!("not a log filter: {e}\n")),
        };
        match log_filter.reload(filter) {
            Ok(()) => (StatusCode::OK, format!("{}\n", wanted.trim())),
            Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{e}\n")),
        }
    };
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(|| async { "ready\n" }))
        .route("/metrics", get(metrics))
        .route("/log-level", put(set));
    axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await
}

/// Whether a request comes from inside the pod. Requests through `kubectl port-forward` also come from inside the pod.
fn is_from_this_pod(peer: IpAddr) -> bool {
    peer.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn it_listens_to_ipv6_and_ipv4() {
        let listener = listen((Ipv6Addr::UNSPECIFIED, 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())).await.unwrap();
        if address.is_ipv6() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, address.port())).await.unwrap();
        }
        assert!(listen(address).await.is_err(), "in use");
    }

    #[test]
    fn only_the_pod_itself_changes_the_log_level() {
        let from = |peer: &str| is_from_this_pod(peer.parse().unwrap());
        assert!(["127.0.0.1", "::1", "::ffff:127.0.0.1"].into_iter().all(from));
        assert!(!["10.1.2.3", "fd00::2", "::ffff:10.1.2.3", "0.0.0.0"].into_iter().any(from));
    }
}
