//! Parses and writes URIs that name files of the hub.

use std::fmt::{self, Display};
use std::str::FromStr;

use percent_encoding::percent_decode_str;

use crate::error::HubError;
use crate::repo::{Repo, RepoKind, encode_segment, is_id};

const SCHEME: &str = "hf://";

/// A URI `hf://datasets/OWNER/NAME[@REVISION][/PATH]` or `hf://[models/]OWNER/NAME[@REVISION][/PATH]`. The rules of
/// `huggingface_hub` apply:
///
/// - A repository has an owner. Old names without an owner (`squad`) are refused.
/// - A slash in a revision is written as `%2F`. The slashes of the references `refs/pr/N` and `refs/convert/NAME` may
///   stay as they are.
/// - The path is not decoded: `%20` is not a space. The path may be a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HubUri {
    /// The repository.
    pub repo: Repo,
    /// A branch, a tag, a commit or a reference. `None` is the branch `main`.
    pub revision: Option<String>,
    /// The path or pattern within the repository. The path is empty if the URI names the whole repository.
    pub path: String,
}

impl FromStr for HubUri {
    type Err = HubError;

    /// # Errors
    /// Returns `HubError::Uri` with the problem if the text is not the URI of files on the hub.
    fn from_str(text: &str) -> Result<HubUri, HubError> {
        let bad = |reason: &str| HubError::Uri { uri: text.to_owned(), reason: reason.to_owned() };
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| bad("it does not begin with hf://"))?;
        let (kind, location) = match rest.split_once('/') {
            Some(("datasets", location)) => (RepoKind::Dataset, location),
            Some(("models", location)) => (RepoKind::Model, location),
            Some(("spaces" | "buckets" | "kernels", _)) => {
                return Err(bad("only data sets and models can be read"));
            }
            _ => (RepoKind::Model, rest),
        };
        // an @ after the second slash belongs to the path
        let at = location.find('@').filter(|&at| location[..at].matches('/').count() <= 1);
        let (id, revision, path) = match at {
            Some(at) => {
                let (revision, path) = split_revision(&location[at + 1..]);
                let revision = percent_decode_str(revision).decode_utf8();
                let revision = revision.map_err(|_| bad("its revision is not UTF-8"))?.into_owned();
                if revision.is_empty() {
                    return Err(bad("the revision after the @ is empty"));
                }
                (&location[..at], Some(revision), path)
            }
            None => {
                let end = location.match_indices('/').nth(1).map_or(location.len(), |(end, _)| end);
                (&location[..end], None, location[end..].trim_start_matches('/'))
            }
        };
        if !is_id(id) {
            return Err(bad(&format!("\"{id}\" is not the name of a repository, OWNER/NAME")));
        }
        if text.chars().any(char::is_control) || revision.iter().flat_map(|text| text.chars()).any(char::is_control) {
            return Err(bad("it has control characters"));
        }
        let path = path.trim_end_matches('/');
        if !path.is_empty() && path.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
            return Err(bad("its path has a segment that is empty, . or .."));
        }
        Ok(HubUri { repo: Repo { kind, id: id.to_owned() }, revision, path: path.to_owned() })
    }
}

impl Display for HubUri {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(SCHEME)?;
        // the kind of a data set is always written; the kind of a model is written only if the parser would otherwise
        // read the owner's name as a kind
        let is_ambiguous = ["datasets/", "models/", "spaces/", "buckets/", "kernels/"];
        let is_ambiguous = is_ambiguous.iter().any(|kind| self.repo.id.starts_with(kind));
        match self.repo.kind {
            RepoKind::Model if !is_ambiguous => {}
            kind => write!(formatter, "{}/", kind.plural())?,
        }
        formatter.write_str(&self.repo.id)?;
        match &self.revision {
            Some(revision) if is_reference(revision) => write!(formatter, "@{revision}")?,
            Some(revision) => write!(formatter, "@{}", encode_segment(revision))?,
            None => {}
        }
        if !self.path.is_empty() {
            write!(formatter, "/{}", self.path)?;
        }
        Ok(())
    }
}

/// Splits a text into the revision, as written, and the path after the revision.
fn split_revision(text: &str) -> (&str, &str) {
    let reference_end = text.match_indices('/').map(|(at, _)| at).nth(2).unwrap_or(text.len());
    let end = match is_reference(&text[..reference_end]) {
        true => reference_end,
        false => text.find('/').unwrap_or(text.len()),
    };
    (&text[..end], text[end..].trim_start_matches('/'))
}

/// Whether `revision` is a git reference that the hub creates, such as `refs/pr/1`. The slashes of such a reference
/// need no encoding.
fn is_reference(revision: &str) -> bool {
    let is_all = |text: &str, is_allowed: fn(char) -> bool| !text.is_empty() && text.chars().all(is_allowed);
    if let Some(number) = revision.strip_prefix("refs/pr/") {
        is_all(number, |letter| letter.is_ascii_digit())
    } else if let Some(name) = revision.strip_prefix("refs/convert/") {
        is_all(name, |letter| letter.is_ascii_alphanumeric() || "_.-".contains(letter))
    } else {
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(uri: &str) -> (RepoKind, String, Option<String>, String) {
        let HubUri { repo, revision, path } = uri.parse().unwrap();
        (repo.kind, repo.id, revision, path)
    }

    #[test]
    fn uris_name_repository_revision_and_path() {
        let cases = [
            ("hf://datasets/o/n/data/*.parquet", RepoKind::Dataset, None, "data/*.parquet"),
            ("hf://datasets/o/n", RepoKind::Dataset, None, ""),
            ("hf://datasets/o/n/", RepoKind::Dataset, None, ""),
            ("hf://o/n/config.json", RepoKind::Model, None, "config.json"),
            ("hf://models/o/n@v1", RepoKind::Model, Some("v1"), ""),
            ("hf://datasets/o/n@refs%2Fpr%2F1/a", RepoKind::Dataset, Some("refs/pr/1"), "a"),
            ("hf://datasets/o/n@refs/pr/12/a/b", RepoKind::Dataset, Some("refs/pr/12"), "a/b"),
            ("hf://datasets/o/n@refs/convert/parquet", RepoKind::Dataset, Some("refs/convert/parquet"), ""),
            ("hf://datasets/o/n@refs/heads/x", RepoKind::Dataset, Some("refs"), "heads/x"),
            ("hf://datasets/o/n@feature%2Fx/a%20b", RepoKind::Dataset, Some("feature/x"), "a%20b"),
            ("hf://datasets/o/n/file@1.txt", RepoKind::Dataset, None, "file@1.txt"),
        ];
        for (uri, kind, revision, path) in cases {
            let expected = (kind, "o/n".to_owned(), revision.map(str::to_owned), path.to_owned());
            assert_eq!(parts(uri), expected, "{uri}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_uri_is_said() {
        let cases = [
            ("https://huggingface.co/o/n", "does not begin with hf://"),
            ("hf://datasets/squad", "\"squad\" is not the name of a repository, OWNER/NAME"),
            ("hf://datasets/squad/*.json", "\"squad/*.json\" is not the name of a repository"),
            ("hf://datasets/squad@main/a", "\"squad\" is not the name"),
            ("hf://spaces/o/n/a", "only data sets and models"),
            ("hf://datasets/o/n@/a", "revision after the @ is empty"),
            ("hf://datasets/o/n@%ff/a", "not UTF-8"),
            ("hf://datasets/o/n@a%0ab/c", "control characters"),
            ("hf://datasets/o/n/a/../b", "segment that is empty, . or .."),
            ("hf://datasets/o/n/a//b", "segment that is empty, . or .."),
            ("hf://", "is not the name of a repository"),
        ];
        for (uri, expected) in cases {
            let message = uri.parse::<HubUri>().unwrap_err().to_string();
            assert!(message.contains(expected), "{uri}: {message}");
        }
    }

    proptest! {
        #[test]
        fn a_uri_survives_being_written(
            is_model: bool,
            owner in "[a-z0-9]{1,5}|datasets|spaces|models",
            name in "[A-Za-z0-9]{1,5}",
            revision in proptest::option::of("[a-z/%@ #]{1,12}|refs/pr/[0-9]{1,3}|refs/convert/[a-z]{1,5}"),
            path in "([a-z*?%@ ]{1,4}(/[a-z*@]{1,4}){0,2})?",
        ) {
            let kind = if is_model { RepoKind::Model } else { RepoKind::Dataset };
            let uri = HubUri { repo: Repo { kind, id: format!("{owner}/{name}") }, revision, path };
            prop_assert_eq!(uri.to_string().parse::<HubUri>().unwrap(), uri);
        }

        #[test]
        fn no_text_breaks_the_parser(text in "(hf://)?(datasets/)?[a-zA-Z0-9@/%.é*-]{0,30}") {
            if let Ok(uri) = text.parse::<HubUri>() {
                prop_assert_eq!(uri.to_string().parse::<HubUri>().unwrap(), uri);
            }
        }
    }
}
