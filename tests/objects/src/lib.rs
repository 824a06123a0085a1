//! An S3 store for tests: one bucket, on a port of this machine. The store lists objects in pages, and serves objects
//! and ranges of objects. A test can make the store fail in many ways, see [`StoreFault`]. The store checks no
//! signatures.
#![deny(unsafe_code)]

mod answers;

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use percent_encoding::percent_decode_str;
use tokio::runtime::Runtime;

/// The name of the bucket.
pub const BUCKET: &str = "bucket";

/// A running object store. Dropping this value ends its server.
#[derive(Debug)]
pub struct TestStore {
    runtime: Option<Runtime>,
    address: SocketAddr,
    shared: Arc<Mutex<StoreState>>,
}

/// A fault that the store applies to one request.
#[derive(Clone, Debug)]
pub enum StoreFault {
    /// Answers with a status, headers and a body.
    Answer(u16, Vec<(&'static str, String)>, String),
    /// Breaks the connection after this number of bytes of the body.
    Break(usize),
    /// Answers as if the request did not have this header.
    Ignore(&'static str),
}

impl StoreFault {
    /// Returns the fault that answers with an error of S3.
    pub fn error(status: u16, code: &str) -> StoreFault {
        StoreFault::Answer(status, Vec::new(), answers::error(code, ""))
    }
}

/// A request that the store received.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The path, decoded.
    pub path: String,
    /// The query, decoded.
    pub query: BTreeMap<String, String>,
    /// The headers.
    pub headers: HeaderMap,
}

impl Request {
    /// Returns a header as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

#[derive(Debug, Default)]
struct StoreState {
    objects: BTreeMap<String, StoredObject>,
    faults: VecDeque<StoreFault>,
    requests: Vec<Request>,
    page_size: Option<usize>,
    has_no_tags: bool,
}

#[derive(Clone, Debug)]
struct StoredObject {
    bytes: bytes::Bytes,
    etag: String,
}

impl TestStore {
    /// Starts a store with an empty bucket.
    ///
    /// # Panics
    /// If no port is free.
    pub fn start() -> TestStore {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        listener.set_nonblocking(true).expect("a non-blocking socket");
        let shared = Arc::new(Mutex::new(StoreState::default()));
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            axum::serve(listener, router).await
        });
        TestStore { runtime: Some(runtime), address, shared }
    }

    /// Returns the value for `AWS_ENDPOINT_URL`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes an object, or replaces the object of this key.
    pub fn put(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        let bytes = bytes::Bytes::from(bytes.into());
        let object = StoredObject { etag: answers::etag(&bytes), bytes };
        self.lock().objects.insert(key.to_owned(), object);
    }

    /// Removes an object.
    pub fn remove(&self, key: &str) {
        self.lock().objects.remove(key);
    }

    /// Adds faults for the next requests, in order.
    pub fn faults(&self, faults: impl IntoIterator<Item = StoreFault>) {
        self.lock().faults.extend(faults);
    }

    /// Sets the number of keys on a page of a listing.
    pub fn page_size(&self, keys: usize) {
        self.lock().page_size = Some(keys);
    }

    /// Omits the ETags from all answers.
    pub fn without_tags(&self) {
        self.lock().has_no_tags = true;
    }

    /// Returns the log of requests, and empties it.
    pub fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.lock().requests)
    }

    fn lock(&self) -> MutexGuard<'_, StoreState> {
        lock(&self.shared)
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn lock(shared: &Mutex<StoreState>) -> MutexGuard<'_, StoreState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer(State(shared): State<Arc<Mutex<StoreState>>>, request: axum::extract::Request) -> Response {
    let (parts, _) = request.into_parts();
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let pairs = parts.uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let query = pairs.map(|(name, value)| (decode(name), decode(&value.replace('+', " ")))).collect();
    let request = Request { method: parts.method, path: decode(parts.uri.path()), query, headers: parts.headers };
    let mut shared = lock(&shared);
    shared.requests.push(request.clone());
    let fault = shared.faults.pop_front();
    answers::answer(&shared, request, fault)
}
