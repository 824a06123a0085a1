//! LoRA (Hu et al. 2021): adapters of linear layers, with the names and the configuration file of Hugging Face's PEFT.

mod adapter;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stagecoach_api::job::LoraSpec;

pub(crate) use adapter::{Adapter, columns};

use super::initializer::Initializer;
use super::{Architecture, ParameterSpec, WeightRole, names};

/// Returns the names of the matrices A and B of the adapter of the weight `name`.
pub fn adapter_names(name: &str) -> [String; 2] {
    let module = name.strip_suffix(".weight").unwrap_or(name);
    ["A", "B"].map(|matrix| format!("base_model.model.{module}.lora_{matrix}.weight"))
}

/// Whether `lora` adapts `spec`, a weight of a model. LoRA adapts linear layers except embedding and head. If the job
/// lists targets, the layer's name must end with a target.
pub(crate) fn adapts(lora: &LoraSpec, spec: &ParameterSpec) -> bool {
    let Some(module) = spec.name.strip_suffix(".weight") else { return false };
    let is_linear = spec.is_matrix() && ![names::EMBEDDING, names::HEAD].contains(&spec.name.as_str());
    let is_target = |target: &String| {
        let rest = module.strip_suffix(target.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    is_linear && (lora.targets.is_empty() || lora.targets.iter().any(is_target))
}

/// Returns the matrices of the adapter of `spec`: A, `[rank, in]`, with PEFT's initial values, and B, `[out, rank]`,
/// with zeros.
pub(crate) fn adapter_specs(lora: &LoraSpec, spec: &ParameterSpec) -> [ParameterSpec; 2] {
    let (outputs, inputs, rank) = (spec.shape[0], spec.shape[1], i64::from(lora.rank));
    let [a, b] = adapter_names(&spec.name);
    let matrix = |name, shape: [i64; 2], initializer| ParameterSpec {
        name,
        shape: shape.into(),
        initializer,
        has_weight_decay: true,
        adjacent_to_previous: false,
        role: WeightRole::Adapter { scale: lora.scale() },
    };
    let bound = 1.0 / (inputs as f64).sqrt();
    [matrix(a, [rank, inputs], Initializer::Uniform(bound)), matrix(b, [outputs, rank], Initializer::Zeros)]
}

/// Returns the module that the matrix `name` adapts. `None` if `name` is not a matrix of an adapter.
pub(crate) fn adapted_module(name: &str) -> Option<&str> {
    name.strip_prefix("base_model.model.")?.rsplit_once(".lora_").map(|(module, _)| module)
}

/// Returns the content of PEFT's configuration file for the adapters of `architecture`. The model directory `base` has
/// the weights without adapters.
pub fn adapter_config(lora: &LoraSpec, architecture: &dyn Architecture, base: &str) -> Value {
    let specs = architecture.all_weight_specs();
    let adapted: BTreeSet<&str> = specs.iter().filter_map(|spec| adapted_module(&spec.name)).collect();
    let last = |module: &'_ str| module.rsplit('.').next().unwrap_or_default().to_owned();
    let all = LoraSpec { targets: Vec::new(), ..lora.clone() };
    let others = specs.iter().filter(|spec| spec.is_model_weight() && adapts(&all, spec));
    let others: BTreeSet<String> = others
        .filter_map(|spec| spec.name.strip_suffix(".weight"))
        .filter(|module| !adapted.contains(module))
        .map(last)
        .collect();
    // PEFT adapts every module whose name ends with a target. The last part of a name is therefore enough, unless a
    // module with the same last part has no adapter. In this case, the target is the whole name.
    let target = |module: &&str| if others.contains(&last(module)) { (*module).to_owned() } else { last(module) };
    let targets: BTreeSet<String> = adapted.iter().map(target).collect();
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "use_rslora": lora.use_rslora,
        "target_modules": targets,
        "bias": "none",
        "fan_in_fan_out": false,
        "init_lora_weights": true,
        "inference_mode": true,
        "modules_to_save": null,
    })
}
