//! Serves files: the hub serves the small files, and signs URLs of the CDN for the large files.

use axum::response::Response;

use crate::body;
use crate::file::File;
use crate::shared::{ReceivedRequest, ServerState, decode, not_found, redirect, status};
use crate::store::HubRefusal;

/// The path prefix of small files. It begins with the prefix of the API, `/api/`.
pub(crate) const SMALL_FILES: &str = "/api/resolve-cache/";

/// Answers a request for `/datasets/OWNER/NAME/resolve/REVISION/PATH`, or for a model's `/OWNER/NAME/...`, with a
/// redirect to the URL of the file.
pub(crate) fn hub(shared: &mut ServerState, request: &ReceivedRequest) -> Result<Response, HubRefusal> {
    let path = request.path.trim_start_matches('/');
    let path = if path.starts_with("datasets/") { path.to_owned() } else { format!("models/{path}") };
    let parts: Vec<_> = path.splitn(6, '/').collect();
    let [kind, owner, name, "resolve", revision, path] = parts[..] else { return Err(not_found()) };
    let name = format!("{kind}/{owner}/{name}");
    if let Some(new) = shared.store.new_name(&name) {
        return Ok(redirect(shared, request, &name, new));
    }
    let (commit, file) = find(shared, request, &name, &decode(revision), &decode(path))?;
    let (size, etag) = (file.size.to_string(), format!("\"{}\"", file.digest));
    let (number, location) = if file.is_large {
        let (cdn, digest) = (shared.cdn.clone(), file.digest.clone());
        (302, format!("http://{cdn}/{digest}?Expires=1&Signature={}", shared.store.sign(file)))
    } else {
        (307, format!("{SMALL_FILES}{name}/{commit}/{path}"))
    };
    let headers = [("location", location.as_str()), ("x-linked-etag", &etag), ("x-linked-size", &size)];
    Ok(with_headers(shared, &commit, status(number, &headers)))
}

/// Answers a request for a small file of a commit.
pub(crate) fn small(shared: &mut ServerState, request: &ReceivedRequest) -> Result<Response, HubRefusal> {
    let parts: Vec<_> = request.path.trim_start_matches(SMALL_FILES).splitn(5, '/').collect();
    let [kind, owner, name, commit, path] = parts[..] else { return Err(not_found()) };
    let (commit, file) = find(shared, request, &format!("{kind}/{owner}/{name}"), commit, &decode(path))?;
    let answer = body::file(&mut shared.faults, request, &file, &format!("\"{}\"", file.digest));
    Ok(with_headers(shared, &commit, answer))
}

/// Returns a file, and the commit to which the revision resolves.
fn find(
    shared: &ServerState,
    request: &ReceivedRequest,
    name: &str,
    revision: &str,
    path: &str,
) -> Result<(String, File), HubRefusal> {
    let repo = shared.store.repo(name, request.token())?;
    repo.check_gate(request.token())?;
    let (commit, files) = repo.commit(revision)?;
    Ok((commit.to_owned(), files.get(path).ok_or_else(not_found)?.clone()))
}

fn with_headers(shared: &ServerState, commit: &str, mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    headers.insert("x-repo-commit", commit.parse().expect("a header"));
    headers.insert("accept-ranges", "bytes".parse().expect("a header"));
    for (name, value) in &shared.faults.headers {
        headers.insert(*name, value.parse().expect("a header"));
    }
    answer
}

/// Answers a request for a signed URL.
pub(crate) fn cdn(shared: &mut ServerState, request: &ReceivedRequest) -> Result<Response, HubRefusal> {
    if request.token().is_some() {
        return Err((400, "", "Only one auth mechanism allowed"));
    }
    let signature = request.parameter("Signature").and_then(|signature| signature.parse().ok()).unwrap_or(0);
    let requests = shared.faults.requests_per_signature;
    let file = shared.store.signed(signature, requests).ok_or((403, "", "Request has expired"))?;
    // the etag of a CDN is not the digest of the file
    Ok(body::file(&mut shared.faults, request, &file, "\"0123456789abcdef0123456789abcdef-2\""))
}
