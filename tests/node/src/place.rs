//! The name of a node and the paths of its parts. A node writes into one folder only, except for kernel state.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Its name in the cluster.
pub(crate) const NAME: &str = "node";
/// Its address: the bridge's, since Endpoints refuse loopback. Nothing outside this machine has a way to it.
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 250, 0, 1);
/// The address of the API server.
pub(crate) const SERVER: SocketAddrV4 = SocketAddrV4::new(ADDRESS, 6443);
/// The bridge.
pub(crate) const BRIDGE: &str = "stagecoach0";
/// The pods' addresses, each at the end of a link of its own.
pub(crate) const PODS: &str = "10.251.0.0/24";
/// The CNI network, by which its firewall rules are known.
pub(crate) const NETWORK: &str = "stagecoach";
/// The user and the group that the containers run as.
pub(crate) const USER: u32 = 65532;
/// A link to the folder of the machine's node; there is one at a time, as bridge and control groups are the machine's.
pub(crate) const CLAIM: &str = "/run/stagecoach-node";

/// The longest folder: a socket's path has at most 107 bytes, and the kubelet's own are the longest.
const LONGEST: usize = 60;

/// A node's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place(PathBuf);

impl Place {
    /// The absolute folder, links resolved: mounts are found by it. It must exist.
    ///
    /// # Errors
    /// If there is none, or its path is too long for sockets.
    pub(crate) fn new(folder: &Path) -> Result<Place> {
        let folder = folder.canonicalize().with_context(|| folder.display().to_string())?;
        let length = folder.as_os_str().len();
        ensure!(
            length <= LONGEST,
            "{} has {length} characters, and sockets in it would be too long: use a folder of at most {LONGEST}",
            folder.display()
        );
        Ok(Place(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// As text, for configuration files.
    pub(crate) fn text(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }

    /// Says that the folder is a node's, and how the kernel was set before.
    pub(crate) fn marker(&self) -> PathBuf {
        self.at("node.json")
    }

    /// Waits until nobody else starts or ends this node; held until the file is closed.
    ///
    /// # Errors
    /// If the folder can't be opened.
    pub(crate) fn lock(&self) -> Result<File> {
        let folder = File::open(&self.0)?;
        // SAFETY: a plain system call on an open file.
        let locked = unsafe { libc::flock(folder.as_raw_fd(), libc::LOCK_EX) };
        ensure!(locked == 0, "{} can't be locked: {}", self.0.display(), std::io::Error::last_os_error());
        Ok(folder)
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.at("logs")
    }
}

/// The folder of this machine's node, if there is one.
pub(crate) fn claimed() -> Option<PathBuf> {
    std::fs::read_link(CLAIM).ok()
}
