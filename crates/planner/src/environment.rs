//! The environment of a stage: facts about its software and hardware that can change the last bits of a run's results.
//! Checkpoints record these facts. A resume compares them with the record, and the stages of a group (the processes
//! that train together) compare them with each other.

use serde_json::{Value, json};
use stagecoach_api::job::Kernels;
use stagecoach_engine::execute::kind;
use stagecoach_kernels as kernels;
use stagecoach_kernels::device::{cublas_version, gpu_model, gpu_multiprocessors};
use stagecoach_os::processor_model;
use tch::Kind;

use crate::job_config::JobConfig;

/// The compared fields, with their names for users. Checkpoints also record `version` and `processor`, which affect
/// results only through `kernels` and `products`.
const COMPARED: [(&str, &str); 14] = [
    ("kernels", "version of the kernels"),
    ("libtorch", "libtorch"),
    ("isa", "CPU"),
    ("mkl", "MKL"),
    ("oneDnn", "oneDNN"),
    ("dispatch", "forced instruction sets"),
    ("products", "matrix products"),
    ("device", "device"),
    ("gpu", "GPU"),
    ("multiprocessors", "multiprocessors of the GPU"),
    ("nvrtc", "NVRTC"),
    ("cuBlas", "cuBLAS"),
    ("threads", "threads"),
    ("deterministic", "deterministic algorithms"),
];

/// Environment variables that change a library's dispatch. `ATEN_CPU_CAPABILITY` is not listed, because it changes
/// `isa`.
const DISPATCH_VARIABLES: [&str; 5] =
    ["MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"];

/// Environment variables that change the dispatch of a GPU's libraries.
const GPU_DISPATCH_VARIABLES: [&str; 6] = [
    "NVIDIA_TF32_OVERRIDE",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "DISABLE_ADDMM_CUDA_LT",
    "PYTORCH_TUNABLEOP_ENABLED",
];

/// Returns the environment of this stage, as checkpoints record it.
pub fn environment(config: &JobConfig, device: tch::Device) -> Value {
    let gpu_variables = GPU_DISPATCH_VARIABLES.iter().filter(|_| device.is_cuda());
    let forced = DISPATCH_VARIABLES.iter().chain(gpu_variables);
    let forced = forced.filter_map(|name| Some(format!("{name}={}", std::env::var(name).ok()?)));
    let processor = processor_model().unwrap_or_default();
    let (gpu, multiprocessors, nvrtc, cu_blas) = match device {
        tch::Device::Cuda(index) => {
            let nvrtc = kernels::compiler_version(index).unwrap_or_default();
            (gpu_model(index), gpu_multiprocessors(index), nvrtc, cublas_version())
        }
        _ => Default::default(),
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "kernels": kernels::version(device),
        "libtorch": kernels::torch_version(),
        "isa": instruction_set(config.training.kernels),
        "mkl": kernels::mkl(),
        "oneDnn": kernels::one_dnn(),
        "dispatch": forced.collect::<Vec<_>>().join(" "),
        "products": products(config.training.kernels, kind(config.training.precision), device, &processor),
        "processor": processor,
        "device": if device.is_cuda() { "Cuda" } else { "Cpu" },
        "gpu": gpu,
        "multiprocessors": multiprocessors,
        "nvrtc": nvrtc,
        "cuBlas": cu_blas,
        "threads": config.training.threads,
        "deterministic": kernels::is_deterministic(),
    })
}

/// Returns the instruction set of the kernels. For a portable job, the text does not contain the processor's vendor,
/// because the results do not depend on the vendor.
fn instruction_set(of: Kernels) -> String {
    let capability = kernels::cpu_capability();
    match (of, capability.split_once(' ')) {
        (Kernels::Portable, Some((instruction_set, _))) => instruction_set.to_owned(),
        _ => capability,
    }
}

/// Describes the implementation of the matrix products. The results of libtorch's products also depend on the model of
/// the processor, because its caches determine the blocking. The results of Stagecoach's kernels do not depend on the
/// processor.
fn products(of: Kernels, kind: Kind, device: tch::Device, processor: &str) -> String {
    match device {
        tch::Device::Cpu if of == Kernels::Portable => "libtorch, compatible".into(),
        tch::Device::Cpu if kernels::has_products(kind) => "kernels".into(),
        tch::Device::Cpu => format!("libtorch on {processor}"),
        _ => "libtorch".into(),
    }
}

/// Returns the differences of `now` from `before`, such as "threads 2 instead of 1". A field that an earlier version
/// did not record counts as equal. The exception is `kernels`, because a version of Stagecoach without this field had
/// no kernels of its own.
pub fn environment_differences(before: &Value, now: &Value) -> Vec<String> {
    let differs = |field: &str| before[field] != now[field] && (field == "kernels" || !before[field].is_null());
    let changed = COMPARED.iter().filter(|(field, _)| differs(field));
    let text = |value: &Value| match value {
        Value::String(text) if text.is_empty() => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Null => "none".to_owned(),
        other => other.to_string(),
    };
    changed.map(|(field, name)| format!("{name} {} instead of {}", text(&now[*field]), text(&before[*field]))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::tests::config;

    #[test]
    fn every_compared_field_is_recorded() {
        let now = environment(&config(&[]), tch::Device::Cpu);
        for (field, _) in COMPARED {
            assert!(!now[field].is_null(), "{field} is missing from {now}");
            let mut before = now.clone();
            before[field] = "another".into();
            assert_eq!(environment_differences(&before, &now).len(), 1, "{field}");
        }
    }

    #[test]
    fn a_portable_jobs_environment_names_no_maker_of_processors() {
        let now = environment(&config(&[("training.kernels", "Portable")]), tch::Device::Cpu);
        let processor = processor_model().unwrap_or_default();
        for field in ["isa", "products"] {
            let value = now[field].to_string();
            let named = ["Intel", "AMD", "AMX", processor.as_str()].into_iter().find(|name| value.contains(name));
            assert!(named.is_none() || named == Some(""), "{field} is {value}");
        }
    }
}
