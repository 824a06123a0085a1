//! The state of both servers, and their answers.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use percent_encoding::percent_decode_str;

use crate::faults::Faults;
use crate::port::Port;
use crate::store::{Refusal, Store};

/// The state of both servers.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) faults: Faults,
    pub(crate) requests: Vec<Request>,
    /// The CDN, HOST:PORT.
    pub(crate) cdn: String,
}

/// A request in the log.
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
    /// The client's end of the connection.
    pub peer: SocketAddr,
}

/// A request, as the servers use it.
#[derive(Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: Method,
    /// The path as it came.
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    /// The hub's address in the client's request.
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

/// An answer without a body.
pub(crate) fn status(status: u16, headers: &[(&str, &str)]) -> Response {
    let mut answer = Response::builder().status(status);
    for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
        answer = answer.header(*name, *value);
    }
    answer.body(Body::empty()).expect("an answer")
}

/// The redirect of a request for a repository that has another name now.
pub(crate) fn redirect(shared: &Shared, request: &ReceivedRequest, old: &str, new: &str) -> Response {
    // models have no folder of their own outside of the API
    let written = |name: &str| match request.path.starts_with("/api/") {
        true => name.to_owned(),
        false => name.trim_start_matches("models/").to_owned(),
    };
    let path = request.path.replacen(&written(old), &written(new), 1);
    let host = if shared.faults.absolute_redirects { request.endpoint.as_str() } else { "" };
    let query = if request.query.is_empty() { String::new() } else { format!("?{}", request.query) };
    status(307, &[("location", &format!("{host}{path}{query}"))])
}

pub(crate) fn not_found() -> Refusal {
    (404, "EntryNotFound", "Entry not found")
}

pub(crate) fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

pub(crate) fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
