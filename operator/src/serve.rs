//! `/healthz /readyz /metrics`, and `/log-level` to change what is logged at run time.

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::{get, put};
use tokio::net::TcpListener;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::telemetry::Telemetry;

/// Changes the log filter at run time.
pub(crate) type LogFilterHandle = reload::Handle<EnvFilter, Registry>;

/// Serves until the process ends. `/readyz` always succeeds: a standby replica is ready too.
///
/// # Errors
/// The socket's.
pub(crate) async fn serve(
    listener: TcpListener,
    telemetry: Telemetry,
    log_filter: LogFilterHandle,
) -> std::io::Result<()> {
    let metrics = async move || {
        ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], telemetry.encode())
    };
    let set = async move |wanted: String| {
        let filter: EnvFilter = match wanted.trim().parse() {
            Ok(filter) => filter,
            Err(e) => return (StatusCode::BAD_REQUEST, format!("no log level: {e}\n")),
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
    axum::serve(listener, router).await
}
