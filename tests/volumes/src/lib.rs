//! Volumes for tests: a volume in memory that can lose power, with or without NFS clients, and a wrapper that injects
//! faults into the calls on another volume.
#![forbid(unsafe_code)]

mod faulty;
mod inodes;
mod memory;
mod nfs_client;
mod one_fault;

pub use libc::{EEXIST, EIO, ENOENT, ENOSPC, ENOTEMPTY, EROFS};

pub use faulty::{FaultInjector, FaultyVolume, VolumeCall, VolumeFault};
pub use inodes::PowerLoss;
pub use memory::MemoryVolume;
pub use one_fault::{Crashed, OneFault};
