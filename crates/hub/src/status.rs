//! Maps the HTTP status of an answer to a failure.

use std::time::Duration;

use jiff::Timestamp;
use ureq::http::HeaderMap;
use ureq::http::header::RETRY_AFTER;

use crate::error::HubError;
use crate::headers;
use crate::http::{Http, HubResponse, header};
use crate::repo::Repo;
use crate::retry::RequestFailure;

/// The subject of a request, for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSubject<'a> {
    pub(crate) repo: &'a Repo,
    pub(crate) revision: &'a str,
    /// The path within the repository.
    pub(crate) path: &'a str,
}

/// Returns the failure that an answer with an error status means.
pub(crate) fn failure(http: &Http, answer: &HubResponse, subject: RequestSubject<'_>) -> RequestFailure {
    let status = answer.status;
    match status {
        429 => RequestFailure::Limited { host: answer.url.host().to_owned(), wait: limit(&answer.headers) },
        408 | 500.. => RequestFailure::Temporary(HubError::Unavailable { url: answer.url.public(), status }),
        _ => RequestFailure::Final(refusal(http, answer, subject)),
    }
}

fn refusal(http: &Http, answer: &HubResponse, RequestSubject { repo, revision, path }: RequestSubject<'_>) -> HubError {
    let (repo, endpoint, token) = (repo.clone(), http.endpoint.clone(), http.token_source());
    let words = http.words(&answer.headers);
    match (header(&answer.headers, "x-error-code"), answer.status, &token) {
        (Some("RevisionNotFound"), ..) => HubError::NoRevision { repo, revision: revision.to_owned() },
        (Some("EntryNotFound"), ..) => HubError::NoFile { repo, commit: revision.to_owned(), path: path.to_owned() },
        (Some("GatedRepo"), ..) => {
            let page = format!("{endpoint}/{}", repo.path());
            HubError::Gated { repo, page, token }
        }
        (Some("RepoNotFound"), ..) | (_, 401, None) => HubError::NoRepository { repo, endpoint, token },
        (_, 401, Some(token)) => HubError::WrongToken { endpoint, token: token.clone() },
        (_, 403, _) => {
            let reason = words.unwrap_or("it answers 403").to_owned();
            HubError::Forbidden { endpoint, repo, reason, token }
        }
        (_, status, _) => {
            let reason = format!("it answers {status}{}", words.map(|words| format!(", {words}")).unwrap_or_default());
            HubError::Protocol { url: answer.url.public(), reason }
        }
    }
}

/// Returns the wait that the host requests.
fn limit(headers: &HeaderMap) -> Option<Duration> {
    let by_window = header(headers, "ratelimit").and_then(headers::rate_limit);
    let retry_after = || headers::retry_after(headers.get(RETRY_AFTER)?.to_str().ok()?, Timestamp::now());
    by_window.or_else(retry_after)
}
