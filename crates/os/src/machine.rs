//! Reads the names of the machine and its processor from the kernel.

/// Returns the machine's name, or an empty string if the kernel does not report it.
pub fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// Whether this process runs in a pod. The kubelet sets `KUBERNETES_SERVICE_HOST` in every container.
pub fn is_in_cluster() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// Returns the processor's model; `None` if the kernel does not report it.
pub fn processor_model() -> Option<String> {
    value("/proc/cpuinfo", "model name")
}

/// Returns the value of the first line `key : value` that has this key in the kernel's file `path`. Returns `None` if
/// there is no such line.
pub(crate) fn value(path: &str, key: &str) -> Option<String> {
    let key_value = |line: &str| {
        line.split_once(':').filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
    };
    std::fs::read_to_string(path).ok()?.lines().find_map(key_value)
}
