//! The state that both servers share, and their answers.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use percent_encoding::percent_decode_str;

use crate::faults::Faults;
use crate::port::Port;
use crate::store::{HubContents, HubRefusal};

/// The state that both servers share.
#[derive(Debug, Default)]
pub(crate) struct ServerState {
    pub(crate) store: HubContents,
    pub(crate) faults: Faults,
    pub(crate) requests: Vec<Request>,
    /// The address of the CDN, HOST:PORT.
    pub(crate) cdn: String,
}

/// A request in the log of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The port that received the request.
    pub port: Port,
    /// The method.
    pub method: String,
    /// The path, decoded, without the query.
    pub path: String,
    /// The value of the header `Range`.
    pub range: Option<String>,
    /// Whether the request had the header `Authorization`.
    pub has_authorization: bool,
    /// The address of the client.
    pub peer: SocketAddr,
}

/// A request in the form that the servers use.
#[derive(Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: Method,
    /// The path as received, not decoded.
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    /// The hub's address as the client's request names it, with the scheme.
    pub(crate) endpoint: String,
}

impl ReceivedRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn token(&self) -> Option<&str> {
        self.header(AUTHORIZATION.as_str())?.strip_prefix("Bearer ")
    }

    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, it)| it)
    }
}

/// Returns an answer without a body.
pub(crate) fn status(status: u16, headers: &[(&str, &str)]) -> Response {
    let mut answer = Response::builder().status(status);
    for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
        answer = answer.header(*name, *value);
    }
    answer.body(Body::empty()).expect("an answer")
}

/// Returns the redirect for a request with the old name of a renamed repository.
pub(crate) fn redirect(shared: &ServerState, request: &ReceivedRequest, old: &str, new: &str) -> Response {
    // outside of the API, the path of a model does not begin with `models/`
    let written = |name: &str| match request.path.starts_with("/api/") {
        true => name.to_owned(),
        false => name.trim_start_matches("models/").to_owned(),
    };
    let path = request.path.replacen(&written(old), &written(new), 1);
    let host = if shared.faults.absolute_redirects { request.endpoint.as_str() } else { "" };
    let query = if request.query.is_empty() { String::new() } else { format!("?{}", request.query) };
    status(307, &[("location", &format!("{host}{path}{query}"))])
}

pub(crate) fn not_found() -> HubRefusal {
    (404, "EntryNotFound", "Entry not found")
}

pub(crate) fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

pub(crate) fn lock(shared: &Mutex<ServerState>) -> MutexGuard<'_, ServerState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
