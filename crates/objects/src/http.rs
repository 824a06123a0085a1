//! Sends the requests of `object_store`. This module classifies failed requests, because the headers and the causes of
//! a failure are available only here.

use std::error::Error;
use std::io;

use async_trait::async_trait;
use http_body_util::{BodyExt, Limited};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};

use crate::failure::{ErrorResponse, RequestInfo, StoreFailure, causes, reason};

/// The largest number of bytes that the client reads from the body of an error response.
const LONGEST_REFUSAL: usize = 64 << 10;

/// Makes connections that return each failure as a [`StoreFailure`].
#[derive(Debug, Default)]
pub(crate) struct Connector;

#[derive(Debug)]
struct Connections(HttpClient);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // an error means that the provider is already installed: the workspace has only this cryptography provider
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(HttpClient::new(Connections(ReqwestConnector::default().connect(options)?)))
    }
}

#[async_trait]
impl HttpService for Connections {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let info = RequestInfo::new(request.method(), request.uri());
        // `object_store` needs the error response to a PUT request to choose how to get the token of a cloud instance
        let is_handled_by_client = request.method() == http::Method::PUT;
        let answer = self.0.execute(request).await.map_err(|error| failed(&info, &error))?;
        let (parts, body) = answer.into_parts();
        let status = parts.status.as_u16();
        if parts.status.is_success() || is_handled_by_client {
            if let Some(response) = ErrorResponse::other_page(status, &parts.headers).filter(|_| info.is_listing) {
                return Err(final_error(StoreFailure::Refused(info, response)));
            }
            let body = body.map_err(move |error| failed(&info, &error));
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)));
        }
        let body = Limited::new(body, LONGEST_REFUSAL).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let response = ErrorResponse::read(status, &parts.headers, &body);
        Err(final_error(StoreFailure::Refused(info, response)))
    }
}

/// Returns an error that `object_store` does not retry.
fn final_error(failure: StoreFailure) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, failure)
}

fn failed(request: &RequestInfo, error: &HttpError) -> HttpError {
    let request = request.clone();
    let causes = causes(error);
    let reason = reason(error);
    let is_untrusted =
        |cause: &&(dyn Error + 'static)| matches!(cause.downcast_ref(), Some(rustls::Error::InvalidCertificate(_)));
    let is_refused = |cause: &&(dyn Error + 'static)| {
        cause.downcast_ref().is_some_and(|error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    final_error(if causes.iter().any(is_untrusted) {
        StoreFailure::Untrusted(request, reason)
    } else if error.kind() == HttpErrorKind::Connect || causes.iter().any(is_refused) {
        StoreFailure::Unreachable(request, reason)
    } else if error.kind() == HttpErrorKind::Timeout {
        StoreFailure::Interrupted(request, "the server sent no data within the timeout".to_owned())
    } else {
        StoreFailure::Interrupted(request, reason)
    })
}
