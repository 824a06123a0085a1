//! Finds the files of a commit that match a pattern.

use std::collections::BTreeSet;

use stagecoach_remote::PathPattern;

use crate::error::HubError;
use crate::file::HubFile;
use crate::hub::Hub;
use crate::listing::Entry;
use crate::repo::{Repo, encode_path, encode_segment};
use crate::status::RequestSubject;

/// The largest number of entries of a folder that an error names.
const NAMED_ENTRIES: usize = 3;

/// The files that match a pattern, and the entries of the listed folder.
pub(crate) struct Found {
    /// The path of the listed folder; empty for the root folder.
    pub(crate) folder: String,
    /// The paths of the folder's entries.
    pub(crate) paths: Vec<String>,
    /// The files that match.
    pub(crate) files: Vec<HubFile>,
}

impl Found {
    /// Describes the entries of the folder in a sentence, for an error.
    pub(crate) fn nearest(&self) -> String {
        let place = match self.folder.as_str() {
            "" => "the repository".to_owned(),
            folder => format!("its folder {folder}"),
        };
        let named = &self.paths[..self.paths.len().min(NAMED_ENTRIES)];
        match (named.join(", "), self.paths.len() - named.len()) {
            (names, _) if names.is_empty() => format!("{place} is empty"),
            (names, 0) => format!("{place} holds {names}"),
            (names, others) => format!("{place} holds {names} and {others} more"),
        }
    }
}

impl Hub {
    /// Finds the files of a commit that match a pattern.
    pub(crate) fn find(&self, repo: &Repo, commit: &str, glob: &PathPattern) -> Result<Found, HubError> {
        match self.is_offline {
            true => self.cached_files(repo, commit, glob),
            false => self.listed_files(repo, commit, glob),
        }
    }

    /// Finds files in the cache.
    fn cached_files(&self, repo: &Repo, commit: &str, glob: &PathPattern) -> Result<Found, HubError> {
        let missing = || self.not_cached(format!("commit {commit} of the {repo}"));
        let cache = self.cache.as_ref().ok_or_else(missing)?;
        let paths = cache.paths(repo, commit)?.ok_or_else(missing)?;
        let matching = paths.iter().filter(|path| glob.matches(path));
        let files = matching.map(|path| cache.describe(repo, commit, path)).collect::<Result<_, _>>()?;
        Ok(Found { folder: String::new(), paths, files })
    }

    /// Finds files in the hub's listing.
    fn listed_files(&self, repo: &Repo, commit: &str, glob: &PathPattern) -> Result<Found, HubError> {
        let (folder, entries) = match self.entries(repo, commit, glob.folder(), glob.is_deep()) {
            Err(HubError::NoFile { .. }) if !glob.folder().is_empty() => {
                (String::new(), self.entries(repo, commit, "", false)?)
            }
            entries => (glob.folder().to_owned(), entries?),
        };
        let paths = entries.iter().map(|entry| entry.path.clone()).collect();
        let mut files = Vec::new();
        for entry in entries.into_iter().filter(|entry| glob.matches(&entry.path)) {
            let file = entry.into_file().map_err(|reason| self.odd_listing(repo, reason))?;
            files.extend(file);
        }
        Ok(Found { folder, paths, files })
    }

    /// Returns the entries of a folder, from all pages of the listing.
    fn entries(&self, repo: &Repo, commit: &str, folder: &str, is_deep: bool) -> Result<Vec<Entry>, HubError> {
        let slash = if folder.is_empty() { "" } else { "/" };
        let tree = format!("{}/tree/{}{slash}{}", repo.api_path(), encode_segment(commit), encode_path(folder));
        let mut next = Some(self.http.url(&format!("{tree}?recursive={is_deep}"))?);
        let (mut entries, mut seen) = (Vec::new(), BTreeSet::new());
        while let Some(url) = next {
            if !seen.insert(url.to_string()) {
                return Err(self.odd_listing(repo, "the pages of its listing go in circles".to_owned()));
            }
            let (mut page, following) = self.ask(&url, RequestSubject { repo, revision: commit, path: folder })?;
            entries.append(&mut page);
            next = following;
        }
        Ok(entries)
    }

    fn odd_listing(&self, repo: &Repo, reason: String) -> HubError {
        HubError::Protocol { url: format!("{}/{}", self.http.endpoint, repo.api_path()), reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_some_of_what_is_there() {
        let nearest = |folder: &str, paths: &[&str]| {
            let paths = paths.iter().map(|path| path.to_string()).collect();
            Found { folder: folder.to_owned(), paths, files: Vec::new() }.nearest()
        };
        assert_eq!(nearest("d", &["d/a", "d/b", "d/c", "d/e"]), "its folder d holds d/a, d/b, d/c and 1 more");
        assert_eq!(nearest("", &["a", "b", "c"]), "the repository holds a, b, c");
        assert_eq!(nearest("", &[]), "the repository is empty");
    }
}
