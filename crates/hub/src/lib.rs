//! Reads files from the Hugging Face hub.
//!
//! A [`HubUri`] names files of a repository. A [`HubClient`] resolves a revision to a commit, and lists the files of
//! the commit that match a pattern. The client reads a file as a stream that resumes after a broken connection. At the
//! end of a whole file, the client compares the digest of the bytes with the digest in the listing. A [`CommitCopy`]
//! downloads the files of a model or tokenizer into a folder.
#![deny(unsafe_code)]

mod cache;
mod client;
mod commit_copy;
mod digest;
mod environment;
mod error;
mod file;
mod headers;
mod http;
mod hub;
mod listing;
mod reader;
mod remote;
mod repo;
mod retry;
mod signed;
mod status;
mod tree;
mod uri;
mod url;
mod verified;

pub use client::HubClient;
pub use commit_copy::{CommitCopy, FetchProgress, RepoPart};
pub use digest::Digest;
pub use environment::{Environment, HubToken};
pub use error::HubError;
pub use file::{CommitFile, HubFile};
pub use repo::{Repo, RepoKind};
pub use retry::HUB_RETRY_POLICY;
pub use uri::HubUri;
