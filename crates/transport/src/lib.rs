//! Transfers tensors between stages. Each link carries one kind of tensor from one stage to another, for example the
//! activations between two neighbouring chunks (parts of the model).
//!
//! A background thread writes, so that a send blocks the computation only while too many earlier tensors wait to be
//! sent. A stage posts its receives in advance, and a background thread reads into memory that is already allocated. A
//! payload travels in the TCP stream, in memory that both processes map (`shm`), or from GPU to GPU (`nccl`). Links
//! accept and return tensors on the stage's device. TCP and `shm` need the tensors in host memory, so a link copies the
//! tensors of a GPU.

mod accept;
mod arrivals;
mod carrier;
mod config;
mod dial;
mod greeting;
mod header;
mod interrupt;
mod link_id;
mod links;
mod nccl;
mod open;
mod pinned_buffer;
mod receiver;
mod sender;
mod shm;
mod stream;

pub use config::{LinksConfig, held_bytes};
pub use interrupt::Interrupt;
pub use link_id::{LinkId, LinkPayload, PeerRing, link_ids, replicated_link_ids};
pub use links::Links;
pub use open::open_links;
pub use receiver::Receiver;
pub use sender::Sender;

use stagecoach_group::local_shortage;
use stagecoach_kernels::device::CudaError;

/// The reason why a link failed. The text names both ends if both are known.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LinkError {
    /// The connection to the peer is broken, for example because the peer's process has ended.
    #[error("{0}")]
    Broken(String),
    /// Both processes are alive, but they disagree about the payload.
    #[error("{0}")]
    Mismatch(String),
    /// The GPU of this stage or its driver failed. The failure would recur if the stages connected again.
    #[error(transparent)]
    Device(#[from] CudaError),
    /// This machine lacks a resource that the transport needs.
    #[error("{0}")]
    Unavailable(String),
    /// A system call failed because this process lacks a resource, such as a file descriptor. The peer is not the
    /// cause.
    #[error("{0}")]
    Local(String),
    /// The peer's process is alive, but this stage can't reach it.
    #[error("{0}")]
    Unreachable(String),
}

impl LinkError {
    /// Returns the error for a failed system call: a local shortage, or a broken connection to the peer.
    fn from_io(what: impl std::fmt::Display, error: &std::io::Error) -> LinkError {
        match local_shortage(error) {
            Some(remedy) => LinkError::Local(format!("{what}: {error}; {remedy}")),
            None => LinkError::Broken(format!("{what}: {error}")),
        }
    }

    /// Returns the error for a group that fails while the stage of `rank` opens its links.
    fn group_ended(rank: usize) -> LinkError {
        LinkError::Broken(format!("stage {rank} stopped opening its links, because the group has ended"))
    }
}
