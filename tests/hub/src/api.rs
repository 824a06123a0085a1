//! The API of the hub: revisions and listings.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use serde_json::{Value, json};

use crate::file::File;
use crate::shared::{ReceivedRequest, ServerState, decode, not_found, redirect};
use crate::store::{Files, HubRefusal, StoredRepo};

/// Answers a request below `/api/`.
pub(crate) fn answer(shared: &ServerState, request: &ReceivedRequest) -> Result<Response, HubRefusal> {
    let mut segments = request.path.trim_start_matches("/api/").split('/').map(decode);
    let mut next = || segments.next().unwrap_or_default();
    let name = format!("{}/{}/{}", next(), next(), next());
    let (action, revision) = (next(), next());
    let path = segments.collect::<Vec<_>>().join("/");
    if let Some(new) = shared.store.new_name(&name) {
        return Ok(redirect(shared, request, &name, new));
    }
    let repo = shared.store.repo(&name, request.token())?;
    let revision = if revision.is_empty() { "main" } else { &revision };
    match action.as_str() {
        "" | "revision" => Ok(document(&information(&name, repo, revision)?)),
        "refs" => Ok(document(&references(repo))),
        "tree" => tree(shared, request, repo.commit(revision)?.1, path.trim_matches('/')),
        "paths-info" => Ok(document(&paths_information(request, repo.commit(revision)?.1))),
        _ => Err(not_found()),
    }
}

fn document(value: &Value) -> Response {
    let answer = Response::builder().header(CONTENT_TYPE, "application/json");
    answer.body(Body::from(value.to_string())).expect("an answer")
}

fn information(name: &str, repo: &StoredRepo, revision: &str) -> Result<Value, HubRefusal> {
    let (commit, files) = repo.commit(revision)?;
    let siblings: Vec<_> = files.keys().map(|path| json!({"rfilename": path})).collect();
    let id = name.split_once('/').map_or(name, |(_, id)| id);
    Ok(json!({
        "_id": "0", "id": id, "sha": commit, "siblings": siblings, "tags": [], "downloads": 0, "likes": 0,
        "private": false, "gated": false, "disabled": false,
        "lastModified": "2026-01-01T00:00:00.000Z", "createdAt": "2026-01-01T00:00:00.000Z",
    }))
}

fn references(repo: &StoredRepo) -> Value {
    let branch = |(name, commit): (&String, &String)| json!({"name": name, "ref": format!("refs/heads/{name}"), "targetCommit": commit});
    let branches: Vec<_> = repo.branches.iter().map(branch).collect();
    json!({"branches": branches, "converts": [], "tags": [], "pullRequests": []})
}

fn tree(shared: &ServerState, request: &ReceivedRequest, files: &Files, folder: &str) -> Result<Response, HubRefusal> {
    let entries =
        entries(files, folder, request.parameter("recursive").is_some_and(|it| it.eq_ignore_ascii_case("true")));
    if entries.is_empty() && !folder.is_empty() {
        return Err(not_found());
    }
    let start = request.parameter("cursor").and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    let end = entries.len().min(start + shared.faults.page_size);
    let mut answer = document(&json!(entries[start.min(end)..end]));
    if end < entries.len() {
        let others = request.query.split('&').filter(|pair| !pair.starts_with("cursor=") && !pair.is_empty());
        let query: Vec<_> = others.map(str::to_owned).chain([format!("cursor={end}")]).collect();
        let link = format!("<{}{}?{}>; rel=\"next\"", request.endpoint, request.path, query.join("&"));
        answer.headers_mut().insert("link", link.parse().expect("a header"));
    }
    Ok(answer)
}

/// Returns the entries of a folder. If `is_recursive`, includes the entries of its subfolders.
fn entries(files: &Files, folder: &str, is_recursive: bool) -> Vec<Value> {
    let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let mut found = BTreeMap::new();
    for (path, file) in files {
        let Some(rest) = path.strip_prefix(&prefix) else { continue };
        for (end, _) in rest.match_indices('/') {
            let folder = &path[..prefix.len() + end];
            if is_recursive || !rest[..end].contains('/') {
                found.insert(folder.to_owned(), directory(folder));
            }
        }
        if is_recursive || !rest.contains('/') {
            found.insert(path.clone(), entry(path, file));
        }
    }
    found.into_values().collect()
}

fn paths_information(request: &ReceivedRequest, files: &Files) -> Value {
    let described = |path: String| match files.get(&path) {
        Some(file) => Some(entry(&path, file)),
        None => files.keys().any(|file| file.starts_with(&format!("{path}/"))).then(|| directory(&path)),
    };
    json!(wanted_paths(&request.body).into_iter().filter_map(described).collect::<Vec<_>>())
}

/// Returns the paths that a request's body names. The body is JSON or a form.
fn wanted_paths(body: &str) -> Vec<String> {
    if let Ok(document) = serde_json::from_str::<Value>(body) {
        return match &document["paths"] {
            Value::Array(paths) => paths.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            path => path.as_str().map(str::to_owned).into_iter().collect(),
        };
    }
    let pairs = body.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, _)| *key == "paths").map(|(_, path)| decode(&path.replace('+', " "))).collect()
}

fn directory(path: &str) -> Value {
    json!({"type": "directory", "oid": "0".repeat(40), "size": 0, "path": path})
}

fn entry(path: &str, file: &File) -> Value {
    let File { size, digest, is_large, .. } = file;
    match is_large {
        // no client reads the oid, which is the hash of the LFS pointer in git
        true => json!({
            "type": "file", "oid": "1".repeat(40), "size": size, "path": path,
            "lfs": {"oid": digest, "size": size, "pointerSize": 130},
        }),
        false => json!({"type": "file", "oid": digest, "size": size, "path": path}),
    }
}
