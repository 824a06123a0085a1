//! The HTTP client of one pod's `/status`.

use std::net::IpAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use stagecoach_api::contract::{HTTP_PORT, StageStatus, StatusQuery};
use tokio::net::TcpStream;

use crate::sync::AbortOnDrop;

/// The limits of one request: the time that the response may take in addition to the timeout of the query, and the size
/// of the body in bytes.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_BODY_BYTES: usize = 1 << 16;

/// A client that reads `/status` of one pod. The client keeps its connection, because opening a connection is most of
/// the cost of a request.
pub(super) struct StageStatusClient {
    address: IpAddr,
    connection: Option<StatusConnection>,
}

struct StatusConnection {
    sender: SendRequest<Empty<Bytes>>,
    _task: AbortOnDrop,
}

impl StageStatusClient {
    pub(super) fn new(address: IpAddr) -> StageStatusClient {
        StageStatusClient { address, connection: None }
    }

    /// Returns the pod's response; `None` if no response arrives in time.
    pub(super) async fn fetch(&mut self, query: StatusQuery) -> Option<StageStatus> {
        let timeout = query.timeout() + REQUEST_TIMEOUT;
        if let Some(mut kept) = self.connection.take().filter(|kept| !kept.sender.is_closed()) {
            let response = tokio::time::timeout(timeout, kept.request(query)).await.ok()?;
            if response.is_some() {
                self.connection = Some(kept);
                return response;
            }
            // the pod has closed the kept connection: open another connection
        }
        let mut connection =
            tokio::time::timeout(REQUEST_TIMEOUT, StatusConnection::open(self.address)).await.ok()??;
        let response = tokio::time::timeout(timeout, connection.request(query)).await.ok()??;
        self.connection = Some(connection);
        Some(response)
    }
}

impl StatusConnection {
    async fn open(address: IpAddr) -> Option<StatusConnection> {
        let stream = TcpStream::connect((address, HTTP_PORT)).await.ok()?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        Some(StatusConnection { sender, _task: AbortOnDrop(tokio::spawn(connection).abort_handle()) })
    }

    /// Returns the response to one request; `None` if the connection ends or the response is not a status.
    async fn request(&mut self, query: StatusQuery) -> Option<StageStatus> {
        let request = http::Request::get(query.path()).header("Host", "stage").body(Empty::<Bytes>::new()).ok()?;
        self.sender.ready().await.ok()?;
        let response = self.sender.send_request(request).await.ok()?;
        let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await.ok()?.to_bytes();
        serde_json::from_slice(&body).ok()
    }
}
