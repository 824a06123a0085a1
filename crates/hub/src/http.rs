//! Sends requests to the hub and to its CDN.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use stagecoach_remote::RetryPolicy;
use ureq::http::header::{AUTHORIZATION, HeaderName, LOCATION, RANGE};
use ureq::http::{HeaderMap, HeaderValue, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, Error, Timeout};

use crate::environment::{Environment, HubToken};
use crate::error::HubError;
use crate::url::Url;

/// The largest answer of the API that a client reads. A page of a listing has some hundreds of kilobytes.
const LARGEST_DOCUMENT: u64 = 64 << 20;
/// The largest body of a redirect that a client reads.
const LARGEST_REDIRECT: u64 = 64 << 10;
/// The largest number of consecutive redirects.
const MAX_REDIRECTS: u32 = 10;

/// The HTTP client of one hub and its CDN.
#[derive(Debug)]
pub(crate) struct Http {
    agent: Agent,
    pub(crate) endpoint: String,
    origin: Url,
    token: Option<HubToken>,
}

/// The answer to a request, after all redirects.
#[derive(Debug)]
pub(crate) struct HubResponse {
    pub(crate) url: Url,
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// Whether the hub itself answered, and not a server to which the hub redirected the request.
    pub(crate) is_hub: bool,
    /// The headers of the hub's last answer, which describe the file. `None` if the client sent no request to the hub.
    pub(crate) hub_headers: Option<HeaderMap>,
    pub(crate) body: Body,
}

impl Http {
    pub(crate) fn new(environment: &Environment, policy: &RetryPolicy) -> Result<Http, HubError> {
        let endpoint = environment.endpoint.trim_end_matches('/').to_owned();
        let Some(url) = Url::parse(&endpoint) else {
            let reason = "it is not a URL".to_owned();
            return Err(HubError::Environment { variable: "HF_ENDPOINT".to_owned(), reason });
        };
        // the client trusts the certificate store of the machine, as other programs on the machine do
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::PlatformVerifier)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        // a body that makes progress has no timeout; `get` follows the redirects itself, because only the hub may
        // receive the token
        let agent = Agent::config_builder()
            .tls_config(tls)
            .timeout_resolve(Some(policy.connect))
            .timeout_connect(Some(policy.connect))
            .timeout_recv_response(Some(policy.silence))
            .timeout_per_read(Some(policy.silence))
            .http_status_as_error(false)
            .max_redirects(0)
            .accept_encoding("identity")
            .user_agent(concat!("stagecoach/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Ok(Http { agent, endpoint, origin: url, token: environment.token.clone() })
    }

    /// Returns the URL of a path on the hub. The path is already encoded.
    pub(crate) fn url(&self, path: &str) -> Result<Url, HubError> {
        let text = format!("{}/{path}", self.endpoint);
        Url::parse(&text).ok_or_else(|| HubError::Protocol { url: text, reason: "it is not a URL".to_owned() })
    }

    /// Returns the variable or file from which the token was read.
    pub(crate) fn token_source(&self) -> Option<String> {
        self.token.as_ref().map(|token| token.source().to_owned())
    }

    /// Returns a server's message about a failure; `None` if the message is too long or contains the token.
    pub(crate) fn words<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let words = header(headers, "x-error-message")?;
        let holds_token = self.token.as_ref().is_some_and(|token| words.contains(token.secret()));
        (!holds_token && words.len() < 300).then_some(words.trim_end_matches('.'))
    }

    /// Requests a URL, and follows redirects.
    ///
    /// # Errors
    /// Fails if no answer comes. An answer with an error status is not a failure.
    pub(crate) fn get(&self, url: &Url, range: Option<&Range<u64>>) -> Result<HubResponse, HubError> {
        let mut url = url.clone();
        let mut hub_headers = None;
        for _ in 0..=MAX_REDIRECTS {
            let is_hub = url.is_within(&self.origin);
            let mut request = self.agent.get(url.to_string());
            if is_hub && let Some(authorization) = self.authorization() {
                request = request.header(AUTHORIZATION, authorization);
            }
            if let Some(range) = range {
                request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
            }
            let answer = request.call().map_err(|error| self.by_proxy(&url, no_answer(&url, &error)))?;
            let (parts, mut body) = answer.into_parts();
            let (status, headers) = (parts.status.as_u16(), parts.headers);
            if is_hub {
                hub_headers = Some(headers.clone());
            }
            let is_redirect = matches!(status, 301 | 302 | 303 | 307 | 308);
            let Some(location) = headers.get(LOCATION).filter(|_| is_redirect) else {
                return Ok(HubResponse { url, status, headers, is_hub, hub_headers, body });
            };
            // this read of the body frees the connection for the next request
            let _ = body.with_config().limit(LARGEST_REDIRECT).read_to_vec();
            let target = location.to_str().ok().and_then(|location| url.join(location));
            url = target.ok_or_else(|| odd(&url, "it redirects to something that is not a URL"))?;
        }
        Err(odd(&url, "it redirects in circles"))
    }

    /// Adds the proxy to an error about a host that the client reaches through the proxy.
    fn by_proxy(&self, url: &Url, error: HubError) -> HubError {
        let proxy = self.agent.config().proxy().filter(|proxy| {
            let target = url.to_string().parse::<Uri>();
            target.is_ok_and(|target| !proxy.is_no_proxy(&target))
        });
        match (error, proxy) {
            (HubError::Unreachable { host, reason }, Some(proxy)) => {
                let host = format!("{host} through the proxy {}:{}", proxy.host(), proxy.port());
                HubError::Unreachable { host, reason }
            }
            (error, _) => error,
        }
    }

    fn authorization(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.token.as_ref()?.secret())).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl HubResponse {
    /// Returns the JSON document of the answer.
    ///
    /// # Errors
    /// Fails if the body ends early, or is not a JSON document of the type `T`.
    pub(crate) fn into_json<T: DeserializeOwned>(self) -> Result<T, HubError> {
        let text = self.body.into_with_config().limit(LARGEST_DOCUMENT).read_to_vec();
        let text = text.map_err(|error| no_answer(&self.url, &error))?;
        serde_json::from_slice(&text).map_err(|error| odd(&self.url, &format!("{error}")))
    }
}

/// Returns the value of a header, if the value is text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &'static str) -> Option<&'a str> {
    headers.get(HeaderName::from_static(name))?.to_str().ok()
}

/// Returns the error for a connection that breaks before the end of the body.
pub(crate) fn broken(url: &Url, error: io::Error) -> HubError {
    no_answer(url, &Error::from(error))
}

fn odd(url: &Url, reason: &str) -> HubError {
    HubError::Protocol { url: url.public(), reason: reason.to_owned() }
}

/// Returns the error for a failed exchange. The error leaves out messages of `ureq` that may contain a URL, because a
/// signed URL is a secret.
fn no_answer(url: &Url, error: &Error) -> HubError {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, InvalidData, UnexpectedEof};
    let host = url.host().to_owned();
    match error {
        Error::HostNotFound => HubError::Unreachable { host, reason: "its name can't be resolved".to_owned() },
        Error::Timeout(Timeout::Resolve | Timeout::Connect) => {
            HubError::Unreachable { host, reason: "there is no answer in time".to_owned() }
        }
        Error::Io(io) if matches!(io.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof) => {
            HubError::Interrupted { host, reason: io.to_string() }
        }
        Error::ConnectionFailed | Error::ConnectProxyFailed(_) | Error::InvalidProxyUrl => {
            HubError::Unreachable { host, reason: error.to_string() }
        }
        Error::Io(io) if io.kind() != InvalidData => HubError::Unreachable { host, reason: io.to_string() },
        Error::Io(_) | Error::Tls(_) | Error::Rustls(_) | Error::Pem(_) => {
            let reason = error.to_string();
            let reason = reason.trim_start_matches("io: ");
            let reason = format!("{reason} (a proxy that inspects TLS needs its certificate in this machine's store)");
            HubError::Unreachable { host, reason }
        }
        Error::Timeout(_) => {
            HubError::Interrupted { host, reason: "the server sent no data within the timeout".to_owned() }
        }
        Error::Protocol(_) | Error::BodyStalled => HubError::Interrupted { host, reason: error.to_string() },
        Error::BodyExceedsLimit(_) | Error::LargeResponseHeader(..) => odd(url, &error.to_string()),
        _ => odd(url, "the request can't be made"),
    }
}
