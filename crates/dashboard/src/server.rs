//! Serves a page on the loopback interface of this machine, from threads of low priority. Limits apply to the number of
//! connections, the time in which the head of a request must arrive, the time after which a client that accepts no data
//! loses its connection, and the number of threads that compute answers. A panic in one of these threads ends only one
//! connection.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{MethodRouter, get};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use stagecoach_pipeline::timeline_css;
use tokio::sync::Semaphore;

use super::token::PageToken;

/// The name of the threads that serve the page.
pub const THREAD: &str = "page";
/// The nice value of the threads that serve the page. A nice value above 0 gives these threads a lower priority than
/// training has.
const NICE: i32 = 10;
/// The delay after a failure to accept a connection.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);
/// The size of a connection's buffer, which limits the size of a request's head.
const CONNECTION_BUFFER_BYTES: usize = 64 << 10;

/// The limits of the resources that all clients together may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerLimits {
    /// The largest number of concurrent connections. Further connections wait in the kernel.
    pub(super) connections: usize,
    /// The time in which the head of each request on a connection must arrive.
    pub(super) head_timeout: Duration,
    /// The time after which the kernel closes the connection of a client that accepts no data.
    pub(super) stalled_reader: Duration,
    /// The number of threads that compute answers. These threads may wait for the volume.
    pub(super) workers: usize,
}

pub(super) const LIMITS: ServerLimits = ServerLimits {
    connections: 64,
    head_timeout: Duration::from_secs(10),
    stalled_reader: Duration::from_secs(30),
    workers: 1,
};

const SECURITY_HEADERS: [(HeaderName, &str); 5] = [
    (HeaderName::from_static("x-content-type-options"), "nosniff"),
    (HeaderName::from_static("referrer-policy"), "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (CACHE_CONTROL, "no-store"),
];

/// The content that the server serves at paths that begin with the token.
pub(super) struct Site {
    /// The routes of the site, each below `/{token}/`. The server adds the style sheet and the icon, which all sites
    /// share.
    pub(super) router: Router,
    /// The addresses to which the site's forms may be sent, as the value of `form-action` in a content security policy.
    pub(super) form_action: &'static str,
}

impl Site {
    fn content_security_policy(&self) -> String {
        format!(
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; \
             form-action {}; frame-ancestors 'none'",
            self.form_action
        )
    }
}

/// Returns a handler that serves `content` with the content type `kind`.
pub(super) fn file<S: Clone + Send + Sync + 'static>(
    kind: &'static str,
    content: impl Into<String>,
) -> MethodRouter<S> {
    let content = content.into();
    get(move || async move { ([(CONTENT_TYPE, kind)], content) })
}

/// Serves a site at a port of 127.0.0.1 until the process exits. Port 0 selects any free port. Returns the address,
/// with the token.
///
/// # Errors
/// Fails if the port is taken, or if the system can't start a thread or provide random bytes.
pub(super) fn serve_site(site: Site, port: u16, limits: ServerLimits) -> io::Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    let (address, token) = (listener.local_addr()?, PageToken::draw()?);
    let url = format!("http://{address}/{}/", token.reveal());
    start(listener, router(site, token)?, limits)?;
    Ok(url)
}

fn start(listener: TcpListener, router: Router, limits: ServerLimits) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(limits.workers)
        .thread_name(THREAD)
        .build()?;
    let serve = move || {
        lower_priority();
        runtime.block_on(async {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => accept(listener, router, limits).await,
                Err(error) => tracing::warn!("the page can't be served: {error}"),
            }
        });
    };
    std::thread::Builder::new().name(THREAD.into()).spawn(serve)?;
    Ok(())
}

/// Lowers the priority of the calling thread, and of the threads that it starts. If the system refuses the change, the
/// priority stays the same.
fn lower_priority() {
    let _ = rustix::process::nice(NICE);
}

async fn accept(listener: tokio::net::TcpListener, router: Router, limits: ServerLimits) {
    let connections = Arc::new(Semaphore::new(limits.connections));
    loop {
        // this can't fail, because the semaphore is never closed
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // the usual cause is that the process has no free file descriptor
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, limits.stalled_reader.as_millis() as u32);
        let service = TowerToHyperService::new(router.clone());
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(limits.head_timeout).max_buf_size(CONNECTION_BUFFER_BYTES);
        tokio::spawn(async move {
            // the server ignores errors of connections
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
            drop(permit);
        });
    }
}

/// Returns the router for requests: `site` below the token, and the health check without a token.
fn router(site: Site, token: PageToken) -> io::Result<Router> {
    let css = format!("{}\n.timeline {{{}.paper{{fill:none}}}}\n", include_str!("page.css"), timeline_css());
    let policy = HeaderValue::from_str(&site.content_security_policy()).map_err(io::Error::other)?;
    let with_token = site
        .router
        .route("/{token}/page.css", file("text/css; charset=utf-8", css))
        .route("/{token}/icon.svg", file("image/svg+xml", include_str!("icon.svg")))
        .route("/{token}", get(to_page))
        .layer(from_fn_with_state(token, check_token));
    Ok(Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .merge(with_token)
        .fallback(unknown)
        .layer(from_fn_with_state(policy, add_headers)))
}

/// Accepts only requests whose path begins with the token.
async fn check_token(State(token): State<PageToken>, request: Request, next: Next) -> Response {
    let guess = request.uri().path().split('/').nth(1).unwrap_or_default();
    match token.is(guess) {
        true => next.run(request).await,
        false => unknown().await.into_response(),
    }
}

/// Redirects the page's address without the final `/` to the address with the final `/`. The relative addresses in the
/// page need the final `/`.
async fn to_page(Path(token): Path<String>) -> Redirect {
    Redirect::permanent(&format!("/{token}/"))
}

async fn unknown() -> impl IntoResponse {
    (StatusCode::NOT_FOUND, "not found: open the complete address, with its token, as the command printed it\n")
}

async fn add_headers(State(policy): State<HeaderValue>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    for (name, value) in SECURITY_HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests;
