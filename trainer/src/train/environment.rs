//! What decides the last bits of a run besides the job: recorded in checkpoints, and compared at a resume.

use serde_json::{Value, json};

use crate::kernels;
use crate::plan::JobConfig;

/// The environment of this stage, as checkpoints record it.
pub(super) fn environment(config: &JobConfig, device: tch::Device) -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "kernels": kernels::VERSION,
        "isa": kernels::cpu_capability(),
        "device": if device.is_cuda() { "Cuda" } else { "Cpu" },
        "threads": config.training.threads,
    })
}

/// A warning if bits may differ from here on, from those of a run that had not been interrupted: `before` is a checkpoint's
/// environment, which may be of a version that recorded less.
pub(super) fn environment_warning(before: &Value, now: &Value) -> Option<String> {
    let fields = [("kernels", "version of the kernels"), ("isa", "CPU"), ("device", "device"), ("threads", "threads")];
    let changed = fields.iter().filter(|(field, _)| before[*field] != now[*field]);
    let changed: Vec<String> = changed
        .map(|(field, name)| match &before[*field] {
            Value::Null => format!("{name} {}", now[*field]),
            before => format!("{name} {} instead of {before}", now[*field]),
        })
        .collect();
    let changed = changed.join(", ");
    (!changed.is_empty()).then(|| {
        format!("the checkpoint is of another environment ({changed}): from here on the numbers may differ in their last bits")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_bits_is_told_by_name() {
        let now = json!({ "version": "2", "kernels": 1, "isa": "AVX512 AMD", "device": "Cpu", "threads": 1 });
        assert_eq!(environment_warning(&now, &now), None);
        let other_version = json!({ "version": "1", "kernels": 1, "isa": "AVX512 AMD", "device": "Cpu", "threads": 1 });
        assert_eq!(environment_warning(&other_version, &now), None);
        let before = json!({ "version": "1", "isa": "AVX2 Intel", "device": "Cpu", "threads": 2 });
        assert_eq!(
            environment_warning(&before, &now).unwrap(),
            "the checkpoint is of another environment (version of the kernels 1, CPU \"AVX512 AMD\" instead of \"AVX2 \
             Intel\", threads 1 instead of 2): from here on the numbers may differ in their last bits"
        );
    }
}
