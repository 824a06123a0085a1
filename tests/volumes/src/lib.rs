//! Volumes for tests: one in memory that can lose power, seen directly or as clients of NFS see it, and one that fails
//! or crashes at a chosen call.
#![forbid(unsafe_code)]

mod faulty;
mod inodes;
mod memory;
mod nfs_client;
mod one_fault;

pub use faulty::{FaultInjector, FaultyVolume, VolumeCall, VolumeFault};
pub use inodes::PowerLoss;
pub use memory::MemoryVolume;
pub use one_fault::{Crashed, OneFault};

/// No such file or directory.
pub const ENOENT: i32 = 2;
/// Input/output error.
pub const EIO: i32 = 5;
/// File exists.
pub const EEXIST: i32 = 17;
/// No space left on device.
pub const ENOSPC: i32 = 28;
/// Read-only file system.
pub const EROFS: i32 = 30;
/// Directory not empty.
pub const ENOTEMPTY: i32 = 39;
