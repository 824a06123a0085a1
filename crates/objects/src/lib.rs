//! Reading from object stores: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.
//!
//! An [`ObjectUri`] names objects of a bucket. An [`ObjectClient`] lists those that its pattern matches, and reads them
//! as streams that resume where a connection broke. An object that changes after it was listed is never read in part.
//! The client blocks: nothing of the runtime within it is seen outside.
#![deny(unsafe_code)]

mod bucket;
mod causes;
mod client;
mod error;
mod failure;
mod http;
mod listing;
mod object;
mod pattern;
mod provider;
mod reader;
mod retry;
mod settings;
mod uri;
mod verdict;

pub use client::ObjectClient;
pub use error::ObjectError;
pub use object::Object;
pub use provider::Provider;
pub use retry::{Limits, Notice, Pause};
pub use uri::{ObjectUri, UriError};
