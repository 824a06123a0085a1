//! A minimal HTTP/1.1: a server that answers as a stage does, and a client for readiness probes. A connection carries
//! one request. The server ignores connections that clients close early.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Query;
use axum::http::Uri;
use stagecoach_api::contract::StatusQuery;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::KubeletState;
use super::handle::Started;

/// Answers requests as a stage does, until the future is dropped.
pub(super) async fn serve(listener: TcpListener, shared: Arc<KubeletState>, pod: Arc<Started>) {
    let mut requests = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept() => {
                requests.spawn(answer(stream, shared.clone(), pod.clone()));
            }
            Some(_) = requests.join_next() => {}
        }
    }
}

async fn answer(stream: TcpStream, shared: Arc<KubeletState>, pod: Arc<Started>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let path = request(&mut stream).await?;
    shared.reachable(&pod.view.node).await;
    let path: Uri = path.parse().unwrap_or_default();
    let query = Query::<StatusQuery>::try_from_uri(&path).map_or_else(|_| StatusQuery::default(), |Query(query)| query);
    if let Some(known) = query.revision {
        let mut revision = pod.revision.subscribe();
        let _ = tokio::time::timeout(query.timeout(), revision.wait_for(|revision| *revision != known)).await;
    }
    let (hangs, status) = {
        let responses = pod.responses.lock().unwrap();
        (responses.hangs, serde_json::to_string(&responses.status)?)
    };
    if hangs {
        // until the client closes the connection
        return stream.read_u8().await.map(drop);
    }
    let ready = *pod.ready.borrow();
    match path.path() {
        "/healthz" => respond(stream, "200 OK", "text/plain", "ok").await,
        "/readyz" if ready => respond(stream, "200 OK", "text/plain", "ok").await,
        "/readyz" => respond(stream, "503 Service Unavailable", "text/plain", "the group has not formed").await,
        "/status" => respond(stream, "200 OK", "application/json", &status).await,
        _ => respond(stream, "404 Not Found", "text/plain", "").await,
    }
}

/// Reads a request without a body. Returns its path, query included.
pub(super) async fn request(stream: &mut (impl AsyncBufRead + Unpin)) -> std::io::Result<String> {
    let mut request = String::new();
    stream.read_line(&mut request).await?;
    let mut header = String::new();
    while stream.read_line(&mut header).await? > 2 {
        header.clear();
    }
    Ok(request.split(' ').nth(1).unwrap_or_default().to_owned())
}

/// Writes a response and closes the connection.
pub(super) async fn respond(
    mut stream: impl AsyncWrite + Unpin,
    code: &str,
    kind: &str,
    body: &str,
) -> std::io::Result<()> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all((head + body).as_bytes()).await?;
    stream.shutdown().await
}

/// Whether the server answers a GET within `timeout`, with a code from 200 to 399.
pub(super) async fn get_succeeds(address: &str, port: u16, path: &str, timeout: Duration) -> bool {
    let get = async {
        let mut stream = TcpStream::connect((address, port)).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}:{port}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut head = [0; 12]; // the length of `HTTP/1.1 200`
        stream.read_exact(&mut head).await?;
        std::io::Result::Ok(head)
    };
    match tokio::time::timeout(timeout, get).await {
        Ok(Ok(head)) => matches!(head[9], b'2' | b'3'),
        _ => false,
    }
}
