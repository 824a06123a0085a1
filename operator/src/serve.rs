//! `/healthz /readyz /metrics`, and `/log-level` to change what is logged at run time.

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::{get, put};
use tokio::net::TcpListener;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::telemetry::Telemetry;

/// Changes what is logged.
pub(crate) type Level = reload::Handle<EnvFilter, Registry>;

/// Serves until the process ends. Ready from the first moment: a replica that waits for the Lease is as ready as can be.
///
/// # Errors
/// The socket's.
pub(crate) async fn serve(listener: TcpListener, telemetry: Telemetry, level: Level) -> std::io::Result<()> {
    let metrics = async move || {
        ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], telemetry.encode())
    };
    let set = async move |wanted: String| {
        let filter: EnvFilter = match wanted.trim().parse() {
            Ok(filter) => filter,
            Err(e) => return (StatusCode::BAD_REQUEST, format!("no log level: {e}\n")),
        };
        match level.reload(filter) {
            Ok(()) => (StatusCode::OK, format!("{}\n", wanted.trim())),
            Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{e}\n")),
        }
    };
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(|| async { "ready\n" }))
        .route("/metrics", get(metrics))
        .route("/log-level", put(set));
    axum::serve(listener, router).await
}
