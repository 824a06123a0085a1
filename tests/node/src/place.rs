//! The name of a node, and the paths of its files. Apart from kernel state, a node writes into one folder only.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// The node's name in the cluster.
pub(crate) const NAME: &str = "node";
/// The node's address, which is the address of the bridge, because Endpoints refuse loopback addresses. The address
/// can't be reached from outside this machine.
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 250, 0, 1);
/// The address of the API server.
pub(crate) const SERVER: SocketAddrV4 = SocketAddrV4::new(ADDRESS, 6443);
/// The name of the bridge.
pub(crate) const BRIDGE: &str = "stagecoach0";
/// The addresses of pods. Each pod has a separate link to the machine.
pub(crate) const PODS: &str = "10.251.0.0/24";
/// The name of the CNI network, which identifies its firewall rules.
pub(crate) const NETWORK: &str = "stagecoach";
/// The user and group of containers.
pub(crate) const USER: u32 = 65532;
/// A link to the folder of the machine's node. A machine can have one node at a time, since the node uses one bridge
/// and one tree of control groups.
pub(crate) const CLAIM: &str = "/run/stagecoach-node";

/// The greatest length in bytes of the path of a node's folder. The path of a socket has at most 107 bytes, and the
/// kubelet's sockets have the longest paths below the folder.
const LONGEST: usize = 60;

/// A node's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeFolder(PathBuf);

impl NodeFolder {
    /// Returns the node's folder for `folder`, which must exist. The path is absolute and contains no links, since the
    /// node's mounts are found by this path.
    ///
    /// # Errors
    /// If the folder does not exist, or its path is too long for sockets.
    pub(crate) fn new(folder: &Path) -> Result<NodeFolder> {
        let folder = folder.canonicalize().with_context(|| folder.display().to_string())?;
        let length = folder.as_os_str().len();
        ensure!(
            length <= LONGEST,
            "{} has {length} characters, and sockets in it would be too long: use a folder of at most {LONGEST}",
            folder.display()
        );
        Ok(NodeFolder(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns a path in the folder as text, for configuration files.
    pub(crate) fn text(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }

    /// Returns the file that marks the folder as a node's. The file contains the kernel settings before the start of
    /// the node.
    pub(crate) fn marker(&self) -> PathBuf {
        self.at("node.json")
    }

    /// Waits until no other process starts or ends this node. The lock lasts until the returned file is closed.
    ///
    /// # Errors
    /// If the folder can't be opened or locked.
    pub(crate) fn lock(&self) -> Result<File> {
        let folder = File::open(&self.0)?;
        folder.lock().with_context(|| format!("{} can't be locked", self.0.display()))?;
        Ok(folder)
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.at("logs")
    }
}

/// Returns the folder of this machine's node, or `None` if the machine has no node.
pub(crate) fn claimed() -> Option<PathBuf> {
    std::fs::read_link(CLAIM).ok()
}
