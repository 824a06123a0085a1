//! Describes failed requests, with the details of the HTTP exchange, and lists the causes of an error.

use std::error::Error;
use std::fmt::{self, Display};
use std::io;

use http::{HeaderMap, Method, Uri};

/// The largest number of characters of a server's answer that an error repeats.
const LONGEST_ANSWER: usize = 200;

/// The host that gives credentials to machines and pods of Google Cloud.
const GOOGLE_METADATA_HOST: &str = "metadata.google.internal";

/// The server and the purpose of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RequestInfo {
    /// The server as HOST or HOST:PORT.
    pub(crate) host: String,
    pub(crate) purpose: Purpose,
    /// Whether the request is for a page of a listing.
    pub(crate) is_listing: bool,
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The listing or the contents of a bucket.
    Objects,
    /// The credentials of this machine or pod. They exist only if an administrator has set them up.
    AmbientCredentials,
    /// The credentials of a configured account or role.
    Credentials,
}

impl RequestInfo {
    pub(crate) fn new(method: &Method, uri: &Uri) -> Self {
        let name = uri.host().unwrap_or_default();
        let is_own = name.starts_with("169.254.") || name.starts_with("[fd00:ec2:") || name == GOOGLE_METADATA_HOST;
        // the client only reads buckets: PUT and POST requests are for credentials
        let purpose = match *method {
            Method::PUT => Purpose::AmbientCredentials,
            _ if is_own => Purpose::AmbientCredentials,
            Method::GET | Method::HEAD => Purpose::Objects,
            _ => Purpose::Credentials,
        };
        let host = match uri.port_u16() {
            Some(port) => format!("{name}:{port}"),
            None => name.to_owned(),
        };
        // the query of a listing has list-type=2 for S3 and Google, and comp=list for Azure
        let is_listing = purpose == Purpose::Objects && uri.query().is_some_and(|query| query.contains("list"));
        RequestInfo { host, purpose, is_listing }
    }
}

/// The reason why a request failed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StoreFailure {
    /// The server refuses the request.
    Refused(RequestInfo, ErrorResponse),
    /// The client can't connect to the server.
    Unreachable(RequestInfo, String),
    /// This machine doesn't trust the server's certificate.
    Untrusted(RequestInfo, String),
    /// A connection broke, or sent no bytes for too long.
    Interrupted(RequestInfo, String),
}

/// An answer with an error status.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ErrorResponse {
    pub(crate) status: u16,
    /// The name of the error in the store's protocol, such as `NoSuchKey`. Empty if the answer has no name.
    pub(crate) code: String,
    /// The message of the server.
    pub(crate) message: String,
    /// The region that the answer names, if it names one.
    pub(crate) region: Option<String>,
}

impl ErrorResponse {
    /// Returns the error for a page that is not XML, such as a web console or the login page of a network. Returns
    /// `None` for XML, and for an answer without a content type.
    pub(crate) fn other_page(status: u16, headers: &HeaderMap) -> Option<ErrorResponse> {
        let kind = headers.get(http::header::CONTENT_TYPE).map(|kind| String::from_utf8_lossy(kind.as_bytes()));
        let kind = kind.filter(|kind| !kind.contains("xml"))?;
        Some(ErrorResponse {
            status,
            message: one_line(&format!("{kind} instead of an XML listing")),
            ..ErrorResponse::default()
        })
    }

    /// Parses an answer with an error status. The answer to a HEAD request has no body.
    pub(crate) fn read(status: u16, headers: &HeaderMap, body: &[u8]) -> ErrorResponse {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let body = String::from_utf8_lossy(body);
        let code = element(&body, "Code").or_else(|| header("x-ms-error-code"));
        let region = header("x-amz-bucket-region").or_else(|| element(&body, "Region"));
        let message = match element(&body, "Message") {
            Some(message) => message,
            None if body.trim_start().starts_with('<') => String::new(),
            None => body.into_owned(),
        };
        ErrorResponse {
            status,
            code: one_line(&code.unwrap_or_default()),
            message: one_line(&message),
            region: region.filter(|region| is_region(region)),
        }
    }
}

impl Display for ErrorResponse {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.status)?;
        match (self.code.as_str(), self.message.trim_end_matches('.')) {
            ("", "") => Ok(()),
            ("", message) => write!(formatter, " ({message})"),
            (code, _) => write!(formatter, " ({code})"),
        }
    }
}

impl Display for StoreFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreFailure::Refused(request, response) => write!(formatter, "{} answered {response}", request.host),
            StoreFailure::Unreachable(request, reason)
            | StoreFailure::Untrusted(request, reason)
            | StoreFailure::Interrupted(request, reason) => write!(formatter, "{}: {reason}", request.host),
        }
    }
}

impl Error for StoreFailure {}

/// Returns the text of the first XML element with this name.
fn element(xml: &str, name: &str) -> Option<String> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0.trim().to_owned())
}

/// Returns the message of a server as one line.
fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().filter(|letter| !letter.is_control()).collect()
}

/// Returns the beginning of a server's answer for an error. The answer must contain no secrets any more: a secret that
/// is cut can't be found.
pub(crate) fn shortened(answer: &str) -> String {
    answer.chars().take(LONGEST_ANSWER).collect()
}

fn is_region(text: &str) -> bool {
    !text.is_empty() && text.len() < 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Returns an error and the chain of its causes.
pub(crate) fn causes<'a>(error: &'a (dyn Error + 'static)) -> Vec<&'a (dyn Error + 'static)> {
    let mut causes = vec![error];
    let mut last = error;
    loop {
        // `source` of an I/O error skips the inner error
        let within = last.downcast_ref::<io::Error>().and_then(|error| error.get_ref());
        let Some(cause) = within.map(|error| error as &(dyn Error + 'static)).or_else(|| last.source()) else {
            return causes;
        };
        causes.push(cause);
        last = cause;
    }
}

/// Returns the message of the innermost cause.
pub(crate) fn reason(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn refusals_are_read_from_bodies_and_headers() {
        let body = b"<?xml version=\"1.0\"?>\n<Error><Code>NoSuchKey</Code><Message>The specified key\n does not \
                     exist.</Message></Error>";
        let response = ErrorResponse::read(404, &HeaderMap::new(), body);
        assert_eq!(
            (response.code.as_str(), response.message.as_str()),
            ("NoSuchKey", "The specified key does not exist.")
        );
        assert_eq!(response.to_string(), "404 (NoSuchKey)");

        let mut headers = HeaderMap::new();
        headers.insert("x-ms-error-code", "BlobNotFound".parse().unwrap());
        headers.insert("x-amz-bucket-region", "eu-west-1".parse().unwrap());
        let response = ErrorResponse::read(301, &headers, b"");
        assert_eq!((response.code.as_str(), response.region.as_deref()), ("BlobNotFound", Some("eu-west-1")));

        assert_eq!(ErrorResponse::read(502, &HeaderMap::new(), b"<html>Bad gateway</html>").to_string(), "502");
        assert_eq!(
            ErrorResponse::read(400, &HeaderMap::new(), b"no such\x1b[31m user.").to_string(),
            "400 (no such[31m user)"
        );
    }

    #[test]
    fn the_purpose_of_a_request_is_known_by_its_method_and_host() {
        let purpose = |method, uri: &str| RequestInfo::new(&method, &uri.parse().unwrap()).purpose;
        assert_eq!(purpose(Method::GET, "https://s3.eu-west-1.amazonaws.com/bucket"), Purpose::Objects);
        assert_eq!(purpose(Method::HEAD, "http://minio:9000/bucket/key"), Purpose::Objects);
        assert_eq!(purpose(Method::GET, "http://169.254.170.2/v2/credentials"), Purpose::AmbientCredentials);
        assert_eq!(purpose(Method::PUT, "http://127.0.0.1:1/latest/api/token"), Purpose::AmbientCredentials);
        assert_eq!(
            purpose(Method::GET, "http://metadata.google.internal/computeMetadata"),
            Purpose::AmbientCredentials
        );
        assert_eq!(purpose(Method::GET, "https://metadata.blob.core.windows.net/texts"), Purpose::Objects);
        assert_eq!(purpose(Method::POST, "https://sts.eu-west-1.amazonaws.com/"), Purpose::Credentials);
    }

    proptest! {
        #[test]
        fn any_answer_is_one_short_line(status in 300_u16..600, body in proptest::collection::vec(any::<u8>(), 0..600)) {
            let text = shortened(&ErrorResponse::read(status, &HeaderMap::new(), &body).to_string());
            prop_assert!(!text.chars().any(char::is_control) && text.chars().count() <= LONGEST_ANSWER);
        }
    }
}
