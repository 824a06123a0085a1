//! Names of the processor and of GPUs, as the kernel and the driver have them.

use std::collections::BTreeSet;
use std::path::Path;

/// The processor's model; empty if the kernel does not say.
pub(crate) fn processor_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    value(&text, "model name").unwrap_or_default()
}

/// The models of this machine's NVIDIA GPUs, each once; empty without a driver.
pub(crate) fn gpu_models() -> String {
    let gpus = std::fs::read_dir(Path::new("/proc/driver/nvidia/gpus")).into_iter().flatten().flatten();
    let texts = gpus.filter_map(|gpu| std::fs::read_to_string(gpu.path().join("information")).ok());
    let models: BTreeSet<String> = texts.filter_map(|text| value(&text, "Model")).collect();
    models.into_iter().collect::<Vec<_>>().join(", ")
}

/// The value of the first line `key : value`.
fn value(text: &str, key: &str) -> Option<String> {
    let of_key = |line: &str| {
        line.split_once(':').filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
    };
    text.lines().find_map(of_key)
}
