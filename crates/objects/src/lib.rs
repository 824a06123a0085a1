//! Reads from object stores: S3 and stores with the S3 protocol, Google Cloud Storage, and Azure Blob Storage.
//!
//! An [`ObjectUri`] names objects of a bucket. An [`ObjectClient`] lists the objects that match the pattern in a URI,
//! and reads the objects as streams that resume after a broken connection. A stream never mixes versions of an object:
//! the stream fails if the object changes after the listing. The API of the client is blocking. The client has a
//! private async runtime.
#![deny(unsafe_code)]

mod bucket;
mod client;
mod error;
mod failure;
mod http;
mod listing;
mod object;
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
pub use retry::OBJECT_RETRY_POLICY;
pub use uri::{ObjectUri, UriError};
