//! Serves the page on this machine's loopback, from a thread of low priority. What its readers can take is bounded: so many
//! connections and event streams, so long for a request's head and for a reader that takes nothing, and one thread that reads
//! the folder. A panic in it ends a connection, no more.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::Stream;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use stagecoach_pipeline::timeline_css;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::html::{fragments, page};
use super::model::PageModel;
use super::source::{Source, Teller};
use super::token::Token;
use super::view::{View, ViewQuery};
use crate::folder::JobFolder;

/// The name of the threads that serve the page.
pub(crate) const THREAD: &str = "page";
/// How much lower than that of training their priority is.
const NICE: i32 = 10;
/// Between two looks at the job, for a stream.
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes that are buffered for a connection, and the most that a request's head has.
const BUFFER: usize = 64 << 10;

/// What all readers together can take.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Connections at a time; more of them wait in the kernel.
    connections: usize,
    /// Event streams at a time: fewer, so that pages are still served.
    streams: usize,
    /// For the head of a request, also of the next one on a connection.
    head_timeout: Duration,
    /// After so long a reader that takes nothing has its connection closed by the kernel.
    stalled_reader: Duration,
}

const LIMITS: Limits = Limits {
    connections: 64,
    streams: 32,
    head_timeout: Duration::from_secs(10),
    stalled_reader: Duration::from_secs(30),
};

const SECURITY_HEADERS: [(HeaderName, &str); 6] = [
    (
        HeaderName::from_static("content-security-policy"),
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (HeaderName::from_static("x-content-type-options"), "nosniff"),
    (HeaderName::from_static("referrer-policy"), "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (CACHE_CONTROL, "no-store"),
];

/// Serves the page of the job in `folder` at a port of 127.0.0.1, any free one if it is 0, until the process exits. Returns the
/// address, with the token.
///
/// # Errors
/// If the port is taken, or the system has no thread or no randomness.
pub(crate) fn serve(folder: JobFolder, teller: Teller, port: u16) -> io::Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    let (address, token) = (listener.local_addr()?, Token::draw()?);
    let url = format!("http://{address}/{}/", token.reveal());
    start(listener, Page::new(folder, teller, token, LIMITS), LIMITS)?;
    Ok(url)
}

/// What requests share.
struct Page {
    token: Token,
    source: Mutex<Source>,
    streams: Arc<Semaphore>,
}

impl Page {
    fn new(folder: JobFolder, teller: Teller, token: Token, limits: Limits) -> Page {
        let streams = Arc::new(Semaphore::new(limits.streams));
        Page { token, source: Mutex::new(Source::new(folder, teller)), streams }
    }

    /// The job as it is. Read by the one thread that may wait for the volume; None if that panicked.
    async fn model(self: &Arc<Page>) -> Option<Arc<PageModel>> {
        let page = self.clone();
        let read = move || page.source.lock().unwrap_or_else(PoisonError::into_inner).current();
        tokio::task::spawn_blocking(read).await.ok()
    }
}

fn start(listener: TcpListener, page: Page, limits: Limits) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .thread_name(THREAD)
        .build()?;
    let serve = move || {
        lower_priority();
        runtime.block_on(async {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => accept(listener, router(Arc::new(page)), limits).await,
                Err(error) => tracing::warn!("the page can't be served: {error}"),
            }
        });
    };
    std::thread::Builder::new().name(THREAD.into()).spawn(serve)?;
    Ok(())
}

/// Of the calling thread, and so of those that it starts. It may fail, and then priorities are equal.
fn lower_priority() {
    let _ = rustix::process::nice(NICE);
}

async fn accept(listener: tokio::net::TcpListener, router: Router, limits: Limits) {
    let connections = Arc::new(Semaphore::new(limits.connections));
    loop {
        // never closed
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // no file descriptor is left, as a rule
                tokio::time::sleep(UPDATE_INTERVAL).await;
                continue;
            }
        };
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, limits.stalled_reader.as_millis() as u32);
        let service = TowerToHyperService::new(router.clone());
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(limits.head_timeout).max_buf_size(BUFFER);
        tokio::spawn(async move {
            // how a connection ends is its reader's business
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
            drop(permit);
        });
    }
}

fn router(page: Arc<Page>) -> Router {
    let css = format!("{}\n.timeline {{{}.paper{{fill:none}}}}\n", include_str!("page.css"), timeline_css());
    let file = |kind: &'static str, content: String| get(move || async move { ([(CONTENT_TYPE, kind)], content) });
    let with_token = Router::new()
        .route("/{token}/", get(show))
        .route("/{token}/events", get(events))
        .route("/{token}/page.css", file("text/css; charset=utf-8", css))
        .route("/{token}/page.js", file("text/javascript; charset=utf-8", include_str!("page.js").into()))
        .route("/{token}/icon.svg", file("image/svg+xml", include_str!("icon.svg").into()))
        .layer(from_fn_with_state(page.clone(), check_token))
        .with_state(page);
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .merge(with_token)
        .fallback(unknown)
        .layer(from_fn(add_headers))
}

/// Lets those pass whose path begins with the token.
async fn check_token(State(page): State<Arc<Page>>, request: Request, next: Next) -> Response {
    let guess = request.uri().path().split('/').nth(1).unwrap_or_default();
    match page.token.is(guess) {
        true => next.run(request).await,
        false => unknown().await.into_response(),
    }
}

async fn unknown() -> impl IntoResponse {
    (StatusCode::NOT_FOUND, "nothing is shown without the whole address, which was printed with its token\n")
}

async fn add_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in SECURITY_HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn show(State(served): State<Arc<Page>>, Query(query): Query<ViewQuery>) -> Response {
    match served.model().await {
        Some(model) => {
            ([(CONTENT_TYPE, "text/html; charset=utf-8")], page(&model, &View::from(&query))).into_response()
        }
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn events(State(page): State<Arc<Page>>, Query(query): Query<ViewQuery>) -> Response {
    let Ok(permit) = page.streams.clone().try_acquire_owned() else {
        let told = "as many readers as can follow this job do so already\n";
        return (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "10")], told).into_response();
    };
    let updates =
        Updates { page, view: View::from(&query), sent: HashMap::new(), waiting: VecDeque::new(), _permit: permit };
    Sse::new(updates.stream()).keep_alive(KeepAlive::default()).into_response()
}

/// The updates of one reader. They are made when it has taken those before: one that is slow gets fewer.
struct Updates {
    page: Arc<Page>,
    view: View,
    /// The hash of each fragment as it was sent last.
    sent: HashMap<&'static str, blake3::Hash>,
    /// What is to be sent.
    waiting: VecDeque<Event>,
    _permit: OwnedSemaphorePermit,
}

impl Updates {
    fn stream(self) -> impl Stream<Item = Result<Event, Infallible>> {
        futures::stream::unfold(self, |mut updates| async move {
            while updates.waiting.is_empty() {
                if !updates.sent.is_empty() {
                    tokio::time::sleep(UPDATE_INTERVAL).await;
                }
                let model = updates.page.model().await?;
                updates.add_changes(&model);
            }
            let event = updates.waiting.pop_front()?;
            Some((Ok(event), updates))
        })
    }

    fn add_changes(&mut self, model: &PageModel) {
        for (id, content) in fragments(model, &self.view) {
            let hash = blake3::hash(content.as_bytes());
            if self.sent.insert(id, hash) != Some(hash) {
                self.waiting.push_back(Event::default().event(id).data(content));
            }
        }
    }
}

#[cfg(test)]
mod tests;
