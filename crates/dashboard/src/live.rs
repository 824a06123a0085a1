//! Serves the live page, and the event streams that keep the page up to date.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use futures::Stream;
use stagecoach_launcher::JobFolder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::html::{fragments, page};
use super::job_reader::{JobReader, StatusSource};
use super::model::PageModel;
use super::server::{LIMITS, Site, file, serve_site};
use super::view::{View, ViewQuery};

/// The interval at which a stream polls the job.
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);
/// The largest number of concurrent event streams. This limit is below the limit of connections, so that the server can
/// still answer requests for pages.
const MAX_STREAMS: usize = 32;

/// Serves the page of the job in `folder` at a port of 127.0.0.1 until the process exits. Port 0 selects any free port.
/// Returns the address, with the token.
///
/// # Errors
/// Fails if the port is taken, or if the system can't start a thread or provide random bytes.
pub fn serve(folder: JobFolder, status: StatusSource, port: u16) -> io::Result<String> {
    serve_site(site(folder, status, MAX_STREAMS), port, LIMITS)
}

/// Returns the live page, with at most `streams` concurrent event streams.
pub(super) fn site(folder: JobFolder, status: StatusSource, streams: usize) -> Site {
    let page =
        PageState { reader: Mutex::new(JobReader::new(folder, status)), streams: Arc::new(Semaphore::new(streams)) };
    let router = Router::new()
        .route("/{token}/", get(show))
        .route("/{token}/events", get(events))
        .route("/{token}/page.js", file("text/javascript; charset=utf-8", include_str!("page.js")))
        .with_state(Arc::new(page));
    Site { router, form_action: "'none'" }
}

/// The state that all requests share.
struct PageState {
    reader: Mutex<JobReader>,
    streams: Arc<Semaphore>,
}

impl PageState {
    /// Returns the current model of the job; `None` if the read panicked. A worker thread reads the model, because the
    /// read may wait for the volume.
    async fn model(self: &Arc<PageState>) -> Option<Arc<PageModel>> {
        let page = self.clone();
        let read = move || page.reader.lock().unwrap_or_else(PoisonError::into_inner).current();
        tokio::task::spawn_blocking(read).await.ok()
    }
}

async fn show(State(served): State<Arc<PageState>>, Query(query): Query<ViewQuery>) -> Response {
    match served.model().await {
        Some(model) => Html(page(&model, &View::from(&query))).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn events(State(page): State<Arc<PageState>>, Query(query): Query<ViewQuery>) -> Response {
    let Ok(permit) = page.streams.clone().try_acquire_owned() else {
        let reported = "the limit of concurrent readers is reached\n";
        return (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "10")], reported).into_response();
    };
    let updates =
        Updates { page, view: View::from(&query), sent: HashMap::new(), waiting: VecDeque::new(), _permit: permit };
    Sse::new(updates.stream()).keep_alive(KeepAlive::default()).into_response()
}

/// The event stream for one browser. The stream makes an update only after the browser has accepted the previous
/// updates. A slow browser therefore gets fewer updates.
struct Updates {
    page: Arc<PageState>,
    view: View,
    /// The hash of each fragment as it was last sent.
    sent: HashMap<&'static str, blake3::Hash>,
    /// The events that are not sent yet.
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
