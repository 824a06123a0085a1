//! The errors of reads from the hub. Each message names the problem, its place, the expectation, and the remedy.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::digest::Digest;
use crate::file::CommitFile;
use crate::repo::{Repo, RepoKind};

/// The reason why a client can't read from the hub.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HubError {
    /// A URI doesn't name files of the hub.
    #[error("\"{uri}\" is not the URI of files on the hub, hf://[datasets/]OWNER/NAME[@REVISION]/PATH: {reason}")]
    Uri {
        /// The URI as written.
        uri: String,
        /// The problem.
        reason: String,
    },
    /// A pattern is invalid.
    #[error("\"{pattern}\" is not a valid pattern: {reason}")]
    Pattern {
        /// The pattern as written.
        pattern: String,
        /// The message of the pattern's parser.
        reason: String,
    },
    /// A variable of the environment, or the token's file, can't be used.
    #[error("{variable}: {reason}")]
    Environment {
        /// The variable or the file.
        variable: String,
        /// The problem, and the remedy.
        reason: String,
    },
    /// The repository does not exist, or the user has no access. The hub gives the same answer in both cases.
    #[error("{endpoint} has no {repo}, or it is private: check the spelling{}, or {}", other_kind(repo), match token {
        Some(token) => format!("use the token of an account that may read it (this one is from {token})"),
        None => "set HF_TOKEN to a token that may read it".to_owned(),
    })]
    NoRepository {
        /// The repository.
        repo: Repo,
        /// The URL of the hub.
        endpoint: String,
        /// The variable or file of the token that the client sent.
        token: Option<String>,
    },
    /// The repository is gated, and the user has not accepted its conditions.
    #[error("the {repo} is gated: accept its conditions at {page}, {}", match token {
        Some(token) => format!("with the account of the token (it is from {token})"),
        None => "and set HF_TOKEN to a token of the account that accepted them".to_owned(),
    })]
    Gated {
        /// The repository.
        repo: Repo,
        /// The page of the repository.
        page: String,
        /// The variable or file of the token that the client sent.
        token: Option<String>,
    },
    /// The hub rejects the token as unknown.
    #[error(
        "{endpoint} doesn't know the token from {token} (invalid credentials): set HF_TOKEN to a valid token, or \
         unset it for public repositories"
    )]
    WrongToken {
        /// The URL of the hub.
        endpoint: String,
        /// The variable or file of the token.
        token: String,
    },
    /// The hub accepts the token, but refuses access.
    #[error("{endpoint} refuses access to the {repo}: {reason}: {}", match token {
        Some(token) => format!("check that the token from {token} may read it"),
        None => "set HF_TOKEN to a token that may read it".to_owned(),
    })]
    Forbidden {
        /// The URL of the hub.
        endpoint: String,
        /// The repository.
        repo: Repo,
        /// The message of the hub, or the HTTP status.
        reason: String,
        /// The variable or file of the token that the client sent.
        token: Option<String>,
    },
    /// The repository has no such revision.
    #[error(
        "the {repo} has no revision \"{revision}\": name one of its branches, tags or commits after the @ (without \
         an @, this is the branch main)"
    )]
    NoRevision {
        /// The repository.
        repo: Repo,
        /// The revision.
        revision: String,
    },
    /// The commit has no such file or folder.
    #[error("the {repo} has no \"{path}\" at commit {commit}: check the spelling")]
    NoFile {
        /// The repository.
        repo: Repo,
        /// The commit.
        commit: String,
        /// The path within the repository.
        path: String,
    },
    /// A pattern matches no file.
    #[error("no file of the {repo} matches \"{pattern}\" at commit {commit}: {nearest}")]
    NoMatch {
        /// The repository.
        repo: Repo,
        /// The commit.
        commit: String,
        /// The pattern.
        pattern: String,
        /// A sentence with some entries of the listed folder.
        nearest: String,
    },
    /// A commit lacks the part that the caller needs: a model, or a tokenizer.
    #[error("the {repo} has no {what} at commit {commit}: it has {present}{}", remedy(what, present))]
    Lacks {
        /// The repository.
        repo: Repo,
        /// The commit.
        commit: String,
        /// The missing part.
        what: String,
        /// Some files of the commit.
        present: String,
    },
    /// The hub answers with a file that differs from the listing.
    #[error(
        "{file} is listed with {listed} and downloaded with {found}: check what HF_ENDPOINT and proxies do, and try \
         again"
    )]
    Contradicts {
        /// The file.
        file: Box<CommitFile>,
        /// The value in the listing.
        listed: String,
        /// The value in the answer.
        found: String,
    },
    /// The bytes of a file do not have the listed digest.
    #[error(
        "{file} is damaged: the bytes from {place} have the digest {found}, but the hub lists {}: {}",
        file.file.digest,
        if place.starts_with('/') { "remove the file from the cache" } else { "try again, and check proxies if the \
                                                                               error persists" }
    )]
    Differs {
        /// The file, with the expected digest.
        file: Box<CommitFile>,
        /// The host or the cached file from which the bytes come.
        place: String,
        /// The digest of the bytes.
        found: Digest,
    },
    /// The client is offline, and the cache lacks an item.
    #[error(
        "{what} is not in the cache {}, and HF_HUB_OFFLINE is set: download it on a machine that reaches the hub (hf \
         download), or unset HF_HUB_OFFLINE",
        cache.display()
    )]
    NotCached {
        /// The missing item.
        what: String,
        /// The folder of the cache.
        cache: PathBuf,
    },
    /// A file of this machine can't be read or written.
    #[error("can't {action} {}: {reason}", path.display())]
    File {
        /// The attempted operation.
        action: String,
        /// The file.
        path: PathBuf,
        /// The system's message.
        reason: String,
    },
    /// An answer does not follow the protocol of a hub.
    #[error("{url} does not answer as a Hugging Face hub does: {reason}: check HF_ENDPOINT and proxies")]
    Protocol {
        /// The URL without its query.
        url: String,
        /// The problem.
        reason: String,
    },
    /// The client can't connect to a host.
    #[error(
        "{}: check the network (in a cluster, networkPolicy.egressCIDRs of the job must allow it, and a proxy may be \
         needed, HTTPS_PROXY), or set HF_HUB_OFFLINE=1 with a filled cache",
        unreachable(host, reason)
    )]
    Unreachable {
        /// The host.
        host: String,
        /// The system's message.
        reason: String,
    },
    /// A connection broke repeatedly.
    #[error("{}: try again, and check the network if the error persists", interrupted(host, reason))]
    Interrupted {
        /// The host.
        host: String,
        /// The cause.
        reason: String,
    },
    /// A server can't answer at present.
    #[error("{}: try again later (https://status.huggingface.co lists outages)", unavailable(url, *status))]
    Unavailable {
        /// The URL without its query.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// The hub limits requests for longer than the client may wait.
    #[error(
        "{host} still limits requests after {} s of waiting: run fewer jobs or downloads at the same time, or set \
         HF_TOKEN (its account has higher limits)",
        waited.as_secs()
    )]
    RateLimited {
        /// The host.
        host: String,
        /// The time that the client waited without progress.
        waited: Duration,
    },
    /// The CDN refuses URLs that the hub has just signed.
    #[error(
        "{host} answered {status} to a URL that the hub has just signed: check proxies and this machine's clock, and \
         try again"
    )]
    SignatureRefused {
        /// The host of the CDN.
        host: String,
        /// The HTTP status.
        status: u16,
    },
}

impl HubError {
    /// Whether the same request may succeed later without a change by the user.
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            HubError::Unreachable { .. }
                | HubError::Interrupted { .. }
                | HubError::Unavailable { .. }
                | HubError::RateLimited { .. }
                | HubError::SignatureRefused { .. }
        )
    }

    /// Returns the `HubError` inside an I/O error of a reader.
    pub fn within(error: &io::Error) -> Option<&HubError> {
        error.get_ref()?.downcast_ref()
    }

    /// Returns the message of the cause, without the remedy.
    pub(crate) fn cause(&self) -> String {
        match self {
            HubError::Unreachable { host, reason } => unreachable(host, reason),
            HubError::Interrupted { host, reason } => interrupted(host, reason),
            HubError::Unavailable { url, status } => unavailable(url, *status),
            error => error.to_string(),
        }
    }

    pub(crate) fn file(action: &str, path: &Path, error: &io::Error) -> HubError {
        HubError::File { action: action.to_owned(), path: path.to_owned(), reason: error.to_string() }
    }
}

impl From<HubError> for io::Error {
    fn from(error: HubError) -> io::Error {
        io::Error::other(error)
    }
}

fn unreachable(host: &str, reason: &str) -> String {
    format!("can't connect to {host}: {reason}")
}

fn interrupted(host: &str, reason: &str) -> String {
    format!("the connection to {host} broke: {reason}")
}

fn unavailable(url: &str, status: u16) -> String {
    format!("{url} answered {status}")
}

/// Returns the remedy for weights in another format.
fn remedy(what: &str, present: &str) -> &'static str {
    match what.contains("safetensors") && [".bin", ".pth", ".pt"].iter().any(|ending| present.contains(ending)) {
        true => ": load it with transformers, and save it with save_pretrained",
        false => "",
    }
}

/// Returns a hint for a URI that names a model. A URI without a kind names a model, but the user may have meant a data
/// set.
fn other_kind(repo: &Repo) -> String {
    match repo.kind {
        RepoKind::Model => format!(" (a dataset is written as hf://datasets/{})", repo.id),
        RepoKind::Dataset => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_reader_can_be_distinguished() {
        let error = io::Error::from(HubError::Unavailable { url: "https://hub/x".into(), status: 503 });
        assert!(HubError::within(&error).unwrap().is_temporary());
        assert!(HubError::within(&io::Error::other("something else")).is_none());
    }
}
