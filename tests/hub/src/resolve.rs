//! Files: the hub gives the small ones, and signs the URLs of the large ones for the CDN.

use axum::response::Response;

use crate::body;
use crate::shared::{Asked, Shared, decode, not_found, redirect, status};
use crate::store::Refusal;

/// Answers a request for `/datasets/OWNER/NAME/resolve/REVISION/PATH`, or for a model's `/OWNER/NAME/...`.
pub(crate) fn hub(shared: &mut Shared, asked: &Asked) -> Result<Response, Refusal> {
    let path = asked.path.trim_start_matches('/');
    let path = if path.starts_with("datasets/") { path.to_owned() } else { format!("models/{path}") };
    let mut segments = path.split('/').map(decode);
    let mut next = || segments.next().unwrap_or_default();
    let name = format!("{}/{}/{}", next(), next(), next());
    let (action, revision) = (next(), next());
    let path = segments.collect::<Vec<_>>().join("/");
    if let Some(new) = shared.store.new_name(&name) {
        return Ok(redirect(shared, asked, &name, new));
    }
    let repo = shared.store.repo(&name, asked.token())?;
    repo.check_gate(asked.token())?;
    let (commit, files) = repo.commit(&revision)?;
    let file = files.get(&path).filter(|_| action == "resolve").ok_or_else(not_found)?.clone();
    let (commit, etag) = (commit.to_owned(), format!("\"{}\"", file.digest));
    let mut answer = if file.is_large {
        let size = file.size.to_string();
        let signature = shared.store.sign(file);
        let location = format!("http://{}/{}?Expires=1&Signature={signature}", shared.cdn, etag.trim_matches('"'));
        let headers = [("location", location.as_str()), ("x-linked-etag", &etag), ("x-linked-size", &size)];
        status(302, &headers)
    } else {
        body::file(&mut shared.faults, asked, &file, &etag)
    };
    let headers = answer.headers_mut();
    headers.insert("x-repo-commit", commit.parse().expect("a header"));
    headers.insert("accept-ranges", "bytes".parse().expect("a header"));
    for (name, value) in &shared.faults.headers {
        headers.insert(*name, value.parse().expect("a header"));
    }
    Ok(answer)
}

/// Answers a request with a signed URL.
pub(crate) fn cdn(shared: &mut Shared, asked: &Asked) -> Result<Response, Refusal> {
    if asked.token().is_some() {
        return Err((400, "", "Only one auth mechanism allowed"));
    }
    let signature = asked.parameter("Signature").and_then(|signature| signature.parse().ok()).unwrap_or(0);
    let requests = shared.faults.requests_per_signature;
    let file = shared.store.signed(signature, requests).ok_or((403, "", "Request has expired"))?;
    // a CDN has tags of its own
    Ok(body::file(&mut shared.faults, asked, &file, "\"0123456789abcdef0123456789abcdef-2\""))
}
