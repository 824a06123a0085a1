//! A Hugging Face hub for tests: the API, the files and the CDN, on two ports of this machine. A test can make the hub
//! fail in many ways, see [`Faults`].
#![deny(unsafe_code)]

mod api;
mod body;
mod faults;
mod file;
mod port;
mod resolve;
mod server;
mod shared;
mod store;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

pub use faults::{Faults, PlannedAnswer};
pub use file::File;
pub use port::Port;
pub use shared::Request;

use server::Servers;
use shared::ServerState;

/// A running hub. Dropping this value ends its servers.
#[derive(Debug)]
pub struct Hub {
    servers: Servers,
    shared: Arc<Mutex<ServerState>>,
}

impl Hub {
    /// Starts an empty hub.
    ///
    /// # Panics
    /// If no port is free.
    pub fn start() -> Hub {
        let shared = Arc::new(Mutex::new(ServerState::default()));
        Hub { servers: Servers::start(&shared), shared }
    }

    /// Returns the value for `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        self.servers.endpoint()
    }

    /// Returns the address of the CDN, HOST:PORT.
    pub fn cdn(&self) -> String {
        self.servers.cdn()
    }

    /// Replaces all files of a branch. Returns the commit, which is the same for the same files. `repo` is
    /// `datasets/OWNER/NAME` or `models/OWNER/NAME`.
    pub fn put<'a>(&self, repo: &str, branch: &str, files: impl IntoIterator<Item = (&'a str, File)>) -> String {
        let files: BTreeMap<_, _> = files.into_iter().map(|(path, file)| (path.to_owned(), file)).collect();
        self.lock().store.put(repo, branch, files)
    }

    /// Renames a repository. The hub redirects requests with the old name.
    pub fn rename(&self, old: &str, new: &str) {
        self.lock().store.rename(old, new);
    }

    /// Gates a repository: only the user with this token has accepted its conditions.
    pub fn gate(&self, repo: &str, token: &str) {
        self.lock().store.gate(repo, token);
    }

    /// Hides a repository from everyone except the user with this token.
    pub fn hide(&self, repo: &str, token: &str) {
        self.lock().store.hide(repo, token);
    }

    /// Adds a user with this token.
    pub fn user(&self, token: &str) {
        self.lock().store.add_user(token);
    }

    /// Changes the faults of the hub.
    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.lock().faults);
    }

    /// Returns the log of requests, and empties it.
    pub fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.lock().requests)
    }

    fn lock(&self) -> MutexGuard<'_, ServerState> {
        shared::lock(&self.shared)
    }
}
