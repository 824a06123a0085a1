//! Reads memory sizes from the kernel.

/// Returns the peak resident memory of this process in bytes, or 0 if the kernel does not report it. The peak that
/// `getrusage` reports would include the memory that the launcher had when it started this process.
pub fn peak_resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB"));
    peak.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Returns the memory of this machine in bytes, or the limit of the control group if the limit is lower. Returns `None`
/// if the kernel reports neither.
pub fn memory_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"));
    let total = total.and_then(|kib| kib.trim().parse::<u64>().ok()).map(|kib| kib << 10);
    // in a container, this path is the container's control group; without a limit, the file holds "max", which is not a
    // number
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    total.into_iter().chain(limit).min()
}
