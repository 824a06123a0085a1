//! Tensors between stages: one link per direction between two neighbouring chunks on different stages. One thread per
//! link writes, so that sends block the computation only while the last few tensors have not left. Receives are posted
//! ahead, and one thread per link reads into memory that is already allocated. `tcp` carries payloads in the stream;
//! `shm` carries them in memory that both processes map; `nccl` carries them from GPU to GPU. Links accept and return
//! tensors on the stage's device. Where a carrier needs host memory, the link copies the tensors itself.

mod accept;
mod arrivals;
mod carrier;
mod config;
mod greeting;
mod header;
mod interrupt;
mod link_id;
mod nccl;
mod open;
mod pinned_buffer;
mod receiver;
mod sender;
mod shm;
mod stream;

pub use config::LinksConfig;
pub use config::held_bytes;
pub use interrupt::Interrupt;
pub use link_id::{LinkId, LinkPayload, PeerRing, link_ids, replicated_link_ids};
pub use open::{Links, open_links};
pub use receiver::Receiver;
pub use sender::Sender;

use stagecoach_group::local_shortage;
use stagecoach_kernels::device::CudaError;

/// The reason that a link failed. The text names both ends where both are known.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LinkError {
    /// The other end is gone.
    #[error("{0}")]
    Broken(String),
    /// Both ends live and disagree about the payload.
    #[error("{0}")]
    Mismatch(String),
    /// The GPU of this stage or its driver failed: a new group would not help.
    #[error(transparent)]
    Device(#[from] CudaError),
    /// This machine lacks a resource that the transport needs.
    #[error("{0}")]
    Unavailable(String),
    /// This process lacks a resource for a call, such as another open file: the other end is not the cause.
    #[error("{0}")]
    Local(String),
    /// The other end lives, and can't be reached from here.
    #[error("{0}")]
    Unreachable(String),
}

impl LinkError {
    /// The error of a failed system call: a local shortage, or the loss of the other end.
    fn from_io(what: impl std::fmt::Display, error: &std::io::Error) -> LinkError {
        match local_shortage(error) {
            Some(remedy) => LinkError::Local(format!("{what}: {error}; {remedy}")),
            None => LinkError::Broken(format!("{what}: {error}")),
        }
    }
}
