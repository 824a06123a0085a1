//! Tensors between stages: one link per direction between two neighbouring chunks on different stages. A thread per
//! link writes, so that sends block compute only while the last few have not left; receives are posted ahead, and a thread
//! per link reads into memory that is already allocated. `tcp` carries payloads in the stream; `shm` carries them in memory that both
//! processes map. `nccl` carries them from GPU to GPU. Links take and give tensors where the stage computes: what passes through the
//! memory of the host is their own concern.

mod accept;
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
pub(crate) use config::held_bytes;
pub use interrupt::Interrupt;
pub use link_id::{CopyRing, LinkId, LinkPayload, link_ids, replicated_link_ids};
pub use open::{Links, open_links};
pub use receiver::Receiver;
pub use sender::Sender;

use stagecoach_group::local_shortage;

use crate::sys::CudaError;

/// Why a link failed. The text names both ends where both are known.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LinkError {
    /// The other end is gone.
    #[error("{0}")]
    Broken(String),
    /// Both ends live and disagree about what travels.
    #[error("{0}")]
    Mismatch(String),
    /// The GPU of this stage or its driver failed: another group would not help.
    #[error("{0}")]
    Device(String),
    /// This machine lacks what the transport needs.
    #[error("{0}")]
    Unavailable(String),
    /// This process may not have what a call needs, such as another open file: the other end is not to blame.
    #[error("{0}")]
    Local(String),
    /// The other end lives, and can't be reached from here.
    #[error("{0}")]
    Unreachable(String),
}

impl LinkError {
    /// A call of the system failed: for a lack of something here, or because the other end is gone.
    fn of_io(what: impl std::fmt::Display, error: &std::io::Error) -> LinkError {
        match local_shortage(error) {
            Some(remedy) => LinkError::Local(format!("{what}: {error}; {remedy}")),
            None => LinkError::Broken(format!("{what}: {error}")),
        }
    }
}

impl From<CudaError> for LinkError {
    fn from(error: CudaError) -> LinkError {
        LinkError::Device(error.to_string())
    }
}
