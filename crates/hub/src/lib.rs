//! Reading from the Hugging Face hub.
//!
//! A [`HubUri`] names files of a repository. A [`HubClient`] resolves a revision to a commit, lists the files of the
//! commit that a pattern matches, and reads them: as streams that resume after a broken connection, or into a file. A
//! [`CommitCopy`] is a folder with the files of a model or tokenizer. Bytes of a whole file are verified against the
//! digest in the listing.
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
mod pattern;
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
pub use commit_copy::{CommitCopy, FetchProgress, Part};
pub use digest::Digest;
pub use environment::{Environment, Token};
pub use error::HubError;
pub use file::{CommitFile, HubFile};
pub use repo::{Repo, RepoKind};
pub use retry::{Limits, Notice, Pause};
pub use uri::HubUri;
