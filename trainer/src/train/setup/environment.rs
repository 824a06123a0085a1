//! The facts besides the job that determine the last bits of a run. Checkpoints record them; a resume and the stages of
//! a group compare them.

use serde_json::{Value, json};
use stagecoach_api::job::Kernels;
use stagecoach_engine::execute::kind;
use stagecoach_group::Member;
use stagecoach_kernels as kernels;
use stagecoach_kernels::device::{cublas_version, gpu_model, gpu_multiprocessors};
use stagecoach_os::processor_model;
use tch::Kind;

use crate::plan::{JobConfig, TrainerState};
use crate::stage_error::StageError;
use crate::train::collective::{all_gather, topic};

/// The compared fields, with their names for users. `version` is recorded as well, but has no effect beyond that of
/// `kernels`.
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

/// Environment variables that change a library's dispatch. `ATEN_CPU_CAPABILITY` shows in `isa`.
const DISPATCH_VARIABLES: [&str; 5] =
    ["MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"];

/// The same for a GPU's libraries.
const GPU_DISPATCH_VARIABLES: [&str; 6] = [
    "NVIDIA_TF32_OVERRIDE",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "DISABLE_ADDMM_CUDA_LT",
    "PYTORCH_TUNABLEOP_ENABLED",
];

/// The environment of this stage, as checkpoints record it.
pub(in crate::train) fn environment(config: &JobConfig, device: tch::Device) -> Value {
    let gpu_variables = GPU_DISPATCH_VARIABLES.iter().filter(|_| device.is_cuda());
    let forced = DISPATCH_VARIABLES.iter().chain(gpu_variables);
    let forced = forced.filter_map(|name| Some(format!("{name}={}", std::env::var(name).ok()?)));
    let processor = processor_model();
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

/// The instruction set of the kernels. For a portable job it is the same on every maker's processors.
fn instruction_set(of: Kernels) -> String {
    let capability = kernels::cpu_capability();
    match (of, capability.split_once(' ')) {
        (Kernels::Portable, Some((instruction_set, _))) => instruction_set.to_owned(),
        _ => capability,
    }
}

/// The implementation of the matrix products. The bits of a library's products depend also on the model of the
/// processor, whose caches determine their blocking; the bits of the kernels do not.
fn products(of: Kernels, kind: Kind, device: tch::Device, processor: &str) -> String {
    match device {
        tch::Device::Cpu if of == Kernels::Portable => "libtorch, compatible".into(),
        tch::Device::Cpu if kernels::has_products(kind) => "kernels".into(),
        tch::Device::Cpu => format!("libtorch on {processor}"),
        _ => "libtorch".into(),
    }
}

/// The differences of `now` from `before`, such as "threads 2 instead of 1". A field that an earlier version did not
/// record counts as equal, except the kernels, which that version did not have.
pub(crate) fn differences(before: &Value, now: &Value) -> Vec<String> {
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

/// Compares the environment of a checkpoint with this one, and records a difference in `state`, the checkpoint's state.
/// Returns a sentence for users.
pub(in crate::train) fn compare_with_checkpoint(
    state: &mut TrainerState,
    before: &Value,
    now: &Value,
) -> Option<String> {
    let changed = differences(before, now);
    let sentence = (!changed.is_empty()).then(|| {
        format!(
            "the checkpoint is of another environment ({}): from here on the numbers may differ in their last bits",
            changed.join(", ")
        )
    });
    changed.into_iter().for_each(|change| state.add_environment_difference(change));
    sentence
}

/// Compares the environments of all stages, whose names are `names`, with the first stage's. All stages record the same
/// difference in `state`. Returns a sentence for users, and the environment of each stage.
///
/// # Errors
/// If the group has failed.
pub(in crate::train) fn compare_stages(
    member: &Member,
    names: &[String],
    state: &mut TrainerState,
    own: &Value,
) -> Result<(Option<String>, Vec<Value>), StageError> {
    let stages: Vec<Value> = all_gather(member, topic::ENVIRONMENT, own)?;
    Ok((record_stage_differences(names, state, &stages), stages))
}

fn record_stage_differences(names: &[String], state: &mut TrainerState, stages: &[Value]) -> Option<String> {
    let first = stages.first()?;
    let of_stage =
        |(name, stage)| differences(first, stage).into_iter().map(move |other| format!("{name} has {other}"));
    let found: Vec<String> = names.iter().zip(stages).flat_map(of_stage).collect();
    let sentence = (!found.is_empty()).then(|| {
        format!(
            "the stages run in different environments ({}; the other is {}'s): the last bits depend on which layers a stage has",
            found.join(", "),
            names[0]
        )
    });
    found.into_iter().for_each(|difference| state.add_environment_difference(difference));
    sentence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_bits_is_told_by_name() {
        let now =
            json!({ "version": "2", "kernels": 1, "isa": "AVX512 AMD", "device": "Cpu", "threads": 1, "gpu": "" });
        let compare = |before: Value| {
            let mut state = TrainerState::default();
            let sentence = compare_with_checkpoint(&mut state, &before, &now);
            (sentence, state.environment_differences)
        };
        assert_eq!(compare(now.clone()), (None, vec![]));
        let other_version = json!({ "version": "1", "kernels": 1, "isa": "AVX512 AMD", "device": "Cpu", "threads": 1 });
        assert_eq!(compare(other_version), (None, vec![]));
        let before = json!({ "version": "1", "isa": "AVX2 Intel", "device": "Cpu", "threads": 2, "gpu": "H100" });
        let (sentence, recorded) = compare(before);
        assert_eq!(
            sentence.unwrap(),
            "the checkpoint is of another environment (version of the kernels 1 instead of none, CPU AVX512 AMD instead of \
             AVX2 Intel, GPU none instead of H100, threads 1 instead of 2): from here on the numbers may differ in their last \
             bits"
        );
        assert_eq!(recorded.last().map(String::as_str), Some("threads 1 instead of 2"));
    }

    #[test]
    fn every_compared_field_is_recorded() {
        let job =
            stagecoach_api::parse_with(include_str!("../../../../manifests/samples/shakespeare.yaml"), "job", &[]);
        let config = JobConfig::new(job.unwrap(), std::path::Path::new("/tmp")).unwrap();
        let now = environment(&config, tch::Device::Cpu);
        for (field, _) in COMPARED {
            assert!(!now[field].is_null(), "{field} is missing from {now}");
            let mut before = now.clone();
            before[field] = "another".into();
            assert_eq!(differences(&before, &now).len(), 1, "{field}");
        }
    }

    #[test]
    fn a_portable_jobs_environment_names_no_maker_of_processors() {
        let sample = include_str!("../../../../manifests/samples/shakespeare.yaml");
        let set = [("training.kernels".to_owned(), "Portable".to_owned())];
        let job = stagecoach_api::parse_with(sample, "job", &set).unwrap();
        let now = environment(&JobConfig::new(job, std::path::Path::new("/tmp")).unwrap(), tch::Device::Cpu);
        let processor = processor_model();
        for field in ["isa", "products"] {
            let value = now[field].to_string();
            let named = ["Intel", "AMD", "AMX", processor.as_str()].into_iter().find(|name| value.contains(name));
            assert!(named.is_none() || named == Some(""), "{field} is {value}");
        }
    }

    #[test]
    fn stages_that_differ_are_named_and_remembered() {
        let [one, two] = ["AVX512 AMD", "AVX2 AMD"].map(|isa| json!({ "kernels": 1, "isa": isa }));
        let mut state = TrainerState::default();
        let names = [0, 1, 2].map(|stage| format!("stage {stage}"));
        assert_eq!(record_stage_differences(&names, &mut state, &[one.clone(), one.clone()]), None);
        let sentence = record_stage_differences(&names, &mut state, &[one.clone(), one.clone(), two.clone()]).unwrap();
        assert!(sentence.contains("stage 2 has CPU AVX2 AMD instead of AVX512 AMD"), "{sentence}");
        record_stage_differences(&names, &mut state, &[one.clone(), one, two]);
        assert_eq!(state.environment_differences, ["stage 2 has CPU AVX2 AMD instead of AVX512 AMD"]);
    }
}
