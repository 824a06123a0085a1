//! Memory sizes from the kernel.

/// The peak resident bytes of this process so far; 0 if the kernel does not report them. `getrusage` would include the
/// memory of the launcher when it started this process.
pub fn peak_resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB"));
    peak.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}

/// The bytes of memory of this machine, or the limit of the control group if it is lower; `None` if the kernel does not
/// report them.
pub fn memory_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"));
    let total = total.and_then(|kib| kib.trim().parse::<u64>().ok()).map(|kib| kib << 10);
    // inside a container, the root of this file system is the container's own control group; "max" is not a number
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    total.into_iter().chain(limit).min()
}
