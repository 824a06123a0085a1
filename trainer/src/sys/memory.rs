//! What the kernel says of this process's memory.

/// The most bytes that this process has had resident so far; 0 if the kernel does not say. `getrusage` would count what the
/// launcher held when it started this process.
pub(crate) fn peak_resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB"));
    peak.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}
