//! Reads memory sizes from the kernel.

use super::machine::value;

/// Returns the peak resident memory of this process in bytes, or 0 if the kernel does not report it. The peak that
/// `getrusage` reports would include the memory that the parent process (the launcher) had when it started this
/// process.
pub fn peak_resident_bytes() -> u64 {
    bytes("/proc/self/status", "VmHWM").unwrap_or(0)
}

/// Returns the memory of this machine in bytes, or the limit of the control group if the limit is lower. Returns `None`
/// if the kernel reports neither.
pub fn memory_bytes() -> Option<u64> {
    let total = bytes("/proc/meminfo", "MemTotal");
    // in a container, this path is the container's control group; without a limit, the file holds "max", which is not a
    // number
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    total.into_iter().chain(limit).min()
}

/// Returns, in bytes, the size that the kernel's file `path` gives in kibibytes for `key`.
fn bytes(path: &str, key: &str) -> Option<u64> {
    let kib: u64 = value(path, key)?.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
