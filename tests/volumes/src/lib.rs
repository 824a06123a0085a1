//! Volumes for tests: a volume in memory that can lose power, with or without NFS clients, and a wrapper that injects
//! faults into the calls on another volume.
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

/// The `errno` for "No such file or directory".
pub const ENOENT: i32 = 2;
/// The `errno` for "Input/output error".
pub const EIO: i32 = 5;
/// The `errno` for "File exists".
pub const EEXIST: i32 = 17;
/// The `errno` for "No space left on device".
pub const ENOSPC: i32 = 28;
/// The `errno` for "Read-only file system".
pub const EROFS: i32 = 30;
/// The `errno` for "Directory not empty".
pub const ENOTEMPTY: i32 = 39;
