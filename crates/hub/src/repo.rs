//! The repositories of the hub.

use std::fmt::{self, Display};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The characters that are percent-encoded in a segment of a URL's path.
const OUTSIDE_A_SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const LONGEST_NAME: usize = 96;

/// The kind of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RepoKind {
    /// A data set.
    Dataset,
    /// A model.
    Model,
}

impl RepoKind {
    /// Returns the plural name of the kind in URIs and in the API of the hub.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            RepoKind::Dataset => "datasets",
            RepoKind::Model => "models",
        }
    }
}

/// A repository of the hub. The repository is displayed as "dataset OWNER/NAME" or "model OWNER/NAME".
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Repo {
    /// The kind of the repository.
    pub kind: RepoKind,
    /// The ID of the repository: OWNER/NAME.
    pub id: String,
}

impl Repo {
    /// Returns the path of the repository's pages and files on the hub.
    pub(crate) fn path(&self) -> String {
        match self.kind {
            RepoKind::Dataset => format!("datasets/{}", encode_path(&self.id)),
            RepoKind::Model => encode_path(&self.id),
        }
    }

    /// Returns the path of the repository in the hub's API.
    pub(crate) fn api_path(&self) -> String {
        format!("api/{}/{}", self.kind.plural(), encode_path(&self.id))
    }

    /// Returns the name of the repository's folder in the hub's cache.
    pub(crate) fn cache_folder(&self) -> String {
        format!("{}--{}", self.kind.plural(), self.id.replace('/', "--"))
    }
}

impl Display for Repo {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            RepoKind::Dataset => "dataset",
            RepoKind::Model => "model",
        };
        write!(formatter, "{kind} {}", self.id)
    }
}

/// Whether `id` is a valid repository name OWNER/NAME.
pub(crate) fn is_id(id: &str) -> bool {
    let is_name = |name: &str| {
        let is_edge = |end: Option<u8>| end.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        name.len() <= LONGEST_NAME
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            && is_edge(name.bytes().next())
            && is_edge(name.bytes().last())
            && !name.contains("--")
            && !name.contains("..")
    };
    !id.ends_with(".git") && id.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name))
}

/// Encodes `text` as one segment of a URL's path.
pub(crate) fn encode_segment(text: &str) -> String {
    utf8_percent_encode(text, OUTSIDE_A_SEGMENT).to_string()
}

/// Encodes `path` as the path of a URL. The slashes stay as they are.
pub(crate) fn encode_path(path: &str) -> String {
    path.split('/').map(encode_segment).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_the_hub() {
        for id in ["org/name", "Org-1/a.b_c", "_o/n_"] {
            assert!(is_id(id), "{id}");
        }
        let long = format!("o/{}", "n".repeat(97));
        for id in
            ["name", "a/b/c", "/n", "o/", "-o/n", "o/n-", "o/.n", "o/a--b", "o/a..b", "o/n.git", "o/*", "ö/n", &long]
        {
            assert!(!is_id(id), "{id}");
        }
    }

    #[test]
    fn paths_are_encoded_by_segment() {
        assert_eq!(encode_path("a b/c#d/e%f"), "a%20b/c%23d/e%25f");
        assert_eq!(encode_segment("refs/pr/1"), "refs%2Fpr%2F1");
    }
}
