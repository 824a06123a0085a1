//! The repositories, users and signed URLs of the hub.

use std::collections::{BTreeMap, BTreeSet};

use sha1::{Digest as _, Sha1};

use crate::file::File;

pub(crate) type Files = BTreeMap<String, File>;

/// The content of the hub. Repositories have the names that the API uses: `datasets/OWNER/NAME`, `models/OWNER/NAME`.
#[derive(Debug, Default)]
pub(crate) struct HubContents {
    repos: BTreeMap<String, StoredRepo>,
    renamed: BTreeMap<String, String>,
    users: BTreeSet<String>,
    signed: BTreeMap<u64, Signed>,
}

#[derive(Debug, Default)]
pub(crate) struct StoredRepo {
    commits: BTreeMap<String, Files>,
    pub(crate) branches: BTreeMap<String, String>,
    /// The token of the only user who can see the repository.
    hidden_for: Option<String>,
    /// The token of the only user who has accepted the repository's conditions.
    gated_for: Option<String>,
}

/// The file of a signed URL, and the number of requests for the URL.
#[derive(Debug)]
struct Signed {
    file: File,
    requests: u32,
}

/// A refusal: HTTP status, error code and message.
pub(crate) type HubRefusal = (u16, &'static str, &'static str);

impl HubContents {
    pub(crate) fn put(&mut self, repo: &str, branch: &str, files: Files) -> String {
        let mut hasher = Sha1::new();
        for (path, file) in &files {
            hasher.update(format!("{path}\0{}\0", file.digest));
        }
        let commit = format!("{:x}", hasher.finalize());
        let repo = self.repos.entry(repo.to_owned()).or_default();
        repo.commits.insert(commit.clone(), files);
        repo.branches.insert(branch.to_owned(), commit.clone());
        commit
    }

    pub(crate) fn rename(&mut self, old: &str, new: &str) {
        let repo = self.repos.remove(old).unwrap_or_else(|| panic!("no {old}"));
        self.repos.insert(new.to_owned(), repo);
        self.renamed.insert(old.to_owned(), new.to_owned());
    }

    pub(crate) fn gate(&mut self, repo: &str, token: &str) {
        self.repo_mut(repo).gated_for = Some(token.to_owned());
        self.add_user(token);
    }

    pub(crate) fn hide(&mut self, repo: &str, token: &str) {
        self.repo_mut(repo).hidden_for = Some(token.to_owned());
        self.add_user(token);
    }

    pub(crate) fn add_user(&mut self, token: &str) {
        self.users.insert(token.to_owned());
    }

    pub(crate) fn new_name(&self, repo: &str) -> Option<&str> {
        self.renamed.get(repo).map(String::as_str)
    }

    /// Returns the repository if the user with this token can see it. Without a token, only public repositories are
    /// visible.
    pub(crate) fn repo(&self, name: &str, token: Option<&str>) -> Result<&StoredRepo, HubRefusal> {
        if token.is_some_and(|token| !self.users.contains(token)) {
            return Err((401, "", "Invalid credentials in Authorization header"));
        }
        let is_seen = |repo: &&StoredRepo| repo.hidden_for.as_deref().is_none_or(|owner| Some(owner) == token);
        // without a token, the hub gives the same answer for a missing and for a hidden repository
        let refusal = (if token.is_some() { 404 } else { 401 }, "RepoNotFound", "Repository not found");
        self.repos.get(name).filter(is_seen).ok_or(refusal)
    }

    /// Signs a URL of a file. Returns the signature.
    pub(crate) fn sign(&mut self, file: File) -> u64 {
        let signature = self.signed.len() as u64 + 1;
        self.signed.insert(signature, Signed { file, requests: 0 });
        signature
    }

    /// Counts a request for a signed URL. Returns the URL's file, or `None` if the signature is unknown or the URL has
    /// had more than `requests` requests.
    pub(crate) fn signed(&mut self, signature: u64, requests: u32) -> Option<File> {
        let signed = self.signed.get_mut(&signature)?;
        signed.requests = signed.requests.saturating_add(1);
        (signed.requests <= requests).then(|| signed.file.clone())
    }

    fn repo_mut(&mut self, repo: &str) -> &mut StoredRepo {
        self.repos.get_mut(repo).unwrap_or_else(|| panic!("no {repo}"))
    }
}

impl StoredRepo {
    /// Returns the commit to which a revision resolves, and its files.
    pub(crate) fn commit(&self, revision: &str) -> Result<(&str, &Files), HubRefusal> {
        let commit = self.branches.get(revision).map_or(revision, String::as_str);
        let found = self.commits.get_key_value(commit).map(|(commit, files)| (commit.as_str(), files));
        found.ok_or((404, "RevisionNotFound", "Invalid rev id"))
    }

    /// Checks that the repository has no conditions, or that the user with this token has accepted them.
    pub(crate) fn check_gate(&self, token: Option<&str>) -> Result<(), HubRefusal> {
        match &self.gated_for {
            Some(accepted) if token != Some(accepted) => {
                Err((if token.is_some() { 403 } else { 401 }, "GatedRepo", "Access to this repository is restricted"))
            }
            _ => Ok(()),
        }
    }
}
