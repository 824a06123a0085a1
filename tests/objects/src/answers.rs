//! The HTTP answers of the store.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::http::Method;
use axum::response::Response;
use futures::stream::{self, StreamExt};

use crate::{BUCKET, Request, StoreFault, StoreState, StoredObject};

/// The time of the last change of every object, in the two formats of S3.
const MODIFIED: (&str, &str) = ("2026-01-02T03:04:05.678Z", "Fri, 02 Jan 2026 03:04:05 GMT");

pub(crate) fn etag(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

pub(crate) fn error(code: &str, more: &str) -> String {
    format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>No.</Message>{more}</Error>")
}

pub(crate) fn answer(shared: &StoreState, mut request: Request, fault: Option<StoreFault>) -> Response {
    let mut break_after = None;
    match fault {
        Some(StoreFault::Answer(status, headers, body)) => {
            // the answer to a HEAD has no body
            let body = if request.method == Method::HEAD { String::new() } else { body };
            let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            return status_with(status, &headers, Body::from(body));
        }
        Some(StoreFault::Ignore(name)) => {
            request.headers.remove(name);
        }
        Some(StoreFault::Break(after)) => break_after = Some(after),
        None => {}
    }
    let (bucket, key) = request.path.trim_start_matches('/').split_once('/').unwrap_or((&request.path[1..], ""));
    if bucket != BUCKET {
        return status_with(404, &[], Body::from(error("NoSuchBucket", "")));
    }
    if key.is_empty() {
        return status_with(200, &[("content-type", "application/xml")], Body::from(listing(shared, &request)));
    }
    match shared.objects.get(key) {
        Some(object) => contents(shared, &request, object, break_after),
        None => status_with(404, &[], Body::from(error("NoSuchKey", ""))),
    }
}

fn contents(shared: &StoreState, request: &Request, object: &StoredObject, break_after: Option<usize>) -> Response {
    if request.header("if-match").is_some_and(|etag| etag != object.etag) {
        return status_with(412, &[], Body::from(error("PreconditionFailed", "")));
    }
    let size = object.bytes.len();
    let range = request.header("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let (start, end) = match range {
        Some((start, end)) => (start.parse().unwrap_or(0), end.parse::<usize>().map_or(size, |end| size.min(end + 1))),
        None => (0, size),
    };
    if range.is_some() && start >= end {
        return status_with(416, &[], Body::from(error("InvalidRange", "")));
    }
    let bytes = object.bytes.slice(start..end);
    let (length, content_range) = (bytes.len().to_string(), format!("bytes {start}-{}/{size}", end.max(1) - 1));
    let mut headers = vec![("content-length", length.as_str()), ("last-modified", MODIFIED.1)];
    if !shared.has_no_tags {
        headers.push(("etag", &object.etag));
    }
    if range.is_some() {
        headers.push(("content-range", &content_range));
    }
    let body = match (request.method == Method::HEAD, break_after) {
        (true, _) => Body::empty(),
        (false, None) => Body::from(bytes),
        (false, Some(after)) => {
            let first = bytes.slice(..after.min(bytes.len()));
            let broken = async {
                // during this wait, the client receives the bytes before the break
                tokio::time::sleep(Duration::from_millis(20)).await;
                Err(io::Error::other("broken"))
            };
            let chunks = stream::once(async { Ok(first) }).chain(stream::once(broken));
            Body::from_stream(chunks)
        }
    };
    status_with(if range.is_some() { 206 } else { 200 }, &headers, body)
}

fn listing(shared: &StoreState, request: &Request) -> String {
    let parameter = |name: &str| request.query.get(name).map(String::as_str);
    let (prefix, delimiter) = (parameter("prefix").unwrap_or_default(), parameter("delimiter"));
    let (mut entries, mut last) = (Vec::new(), String::new());
    for (key, object) in shared.objects.iter().filter(|(key, _)| key.starts_with(prefix)) {
        let folder_end = delimiter.and_then(|delimiter| key[prefix.len()..].find(delimiter));
        let name = folder_end.map_or(key.as_str(), |end| &key[..=prefix.len() + end]);
        if name == last || parameter("continuation-token").is_some_and(|token| name <= token) {
            continue;
        }
        name.clone_into(&mut last);
        let etag = if shared.has_no_tags { String::new() } else { format!("<ETag>{}</ETag>", object.etag) };
        let entry = match folder_end {
            Some(_) => format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"),
            None => {
                let (modified, size) = (MODIFIED.0, object.bytes.len());
                format!(
                    "<Contents><Key>{name}</Key><LastModified>{modified}</LastModified>{etag}<Size>{size}</Size></Contents>"
                )
            }
        };
        entries.push((name.to_owned(), entry));
    }
    let page = shared.page_size.unwrap_or(1000).min(entries.len());
    let token = match entries.len() > page {
        true => format!("<NextContinuationToken>{}</NextContinuationToken>", entries[page - 1].0),
        false => String::new(),
    };
    let entries: String = entries.into_iter().take(page).map(|(_, entry)| entry).collect();
    format!("<?xml version=\"1.0\"?><ListBucketResult>{entries}{token}</ListBucketResult>")
}

fn status_with(status: u16, headers: &[(&str, &str)], body: Body) -> Response {
    let answer =
        headers.iter().fold(Response::builder().status(status), |answer, (name, value)| answer.header(*name, *value));
    answer.body(body).expect("an answer")
}
