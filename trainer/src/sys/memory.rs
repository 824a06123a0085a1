//! What the kernel says of memory.

/// The most bytes that this process has had resident so far; 0 if the kernel does not say. `getrusage` would count what the
/// launcher held when it started this process.
pub(crate) fn peak_resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB"));
    peak.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}

/// The bytes of memory that this machine has, or that its control group may use if those are fewer; None if the kernel does not
/// say.
pub(crate) fn memory_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"));
    let total = total.and_then(|kib| kib.trim().parse::<u64>().ok()).map(|kib| kib << 10);
    // inside a container the root of this file system is its own control group; "max" is no number
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    total.into_iter().chain(limit).min()
}
