use serde_json::json;
use stagecoach_api::job::{Precision, Recompute};
use tch::Device;

use super::*;
use crate::{ParameterCopies, SourceConfig, adapter_config};

fn model() -> Box<dyn Architecture> {
    let fields = json!({
        "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 12, "vocab_size": 10, "max_position_embeddings": 16,
    });
    SourceConfig::parse(fields.as_object().unwrap().clone()).unwrap().config.architecture(Device::Cpu)
}

fn lora(targets: &[&str]) -> LoraSpec {
    let targets = targets.iter().map(|&target| target.to_owned()).collect();
    LoraSpec { rank: 2, alpha: 4.0, targets, use_rslora: false }
}

fn patterns(patterns: &[&str]) -> Vec<String> {
    patterns.iter().map(|&pattern| pattern.to_owned()).collect()
}

#[test]
fn targets_and_patterns_without_weights_are_refused() {
    let refusal_of_target = |target| check_fine_tuning(model().as_ref(), Some(&lora(&[target])), &[]).unwrap_err();
    let modules = "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj";
    // the invalid targets: a part of a module's name (`proj` of `q_proj`), the head, the embedding, a norm and an empty
    // string
    for target in ["proj", "lm_head", "embed_tokens", "input_layernorm", ""] {
        let expected = format!(
            "spec.training.lora.targets: {target:?} matches no linear layer of this model; its linear layers are \
             {modules}"
        );
        assert_eq!(refusal_of_target(target), expected);
    }
    check_fine_tuning(model().as_ref(), Some(&lora(&["q_proj", "layers.1.mlp.up_proj"])), &[]).unwrap();
    let frozen = |texts: &[&str]| check_fine_tuning(model().as_ref(), None, &patterns(texts));
    let refused = frozen(&["*.mlp.*", "model.layer.*"]).unwrap_err();
    assert!(
        refused.starts_with("spec.training.freeze[1]: \"model.layer.*\" matches no weight of this model"),
        "{refused}"
    );
    assert!(frozen(&["a[b"]).unwrap_err().starts_with("spec.training.freeze[0]: \"a[b\" is not a pattern"));
    assert!(frozen(&["*"]).unwrap_err().contains("nothing is left to train"));
    assert!(frozen(&["model.*"]).is_ok() && frozen(&[]).is_ok());
}

#[test]
fn adapters_follow_the_weights_that_they_adapt() {
    let lora = lora(&["k_proj", "down_proj"]);
    let tuned = fine_tuned(model(), Some(&lora), &[]);
    let part = ModelPart { layers: 1..2, has_embedding: false, has_head: true };
    let trained: Vec<(String, Vec<i64>)> =
        tuned.parameter_specs(&part).into_iter().map(|spec| (spec.name, spec.shape)).collect();
    let name = |module: &str, matrix: &str| format!("base_model.model.model.layers.1.{module}.lora_{matrix}.weight");
    let expected = [
        (name("self_attn.k_proj", "A"), vec![2, 8]),
        (name("self_attn.k_proj", "B"), vec![4, 2]),
        (name("mlp.down_proj", "A"), vec![2, 12]),
        (name("mlp.down_proj", "B"), vec![8, 2]),
    ];
    assert_eq!(trained, expected);
    let of_model: Vec<ParameterSpec> =
        tuned.weight_specs(&part).into_iter().filter(ParameterSpec::is_model_weight).collect();
    let names = |specs: &[ParameterSpec]| specs.iter().map(|spec| spec.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&of_model), names(&model().weight_specs(&part)));
    assert!(of_model.iter().all(|spec| spec.role == WeightRole::Frozen));
    let freeze = patterns(&["*.q_proj.*", "lm_head.*"]);
    let frozen = fine_tuned(model(), None, &freeze).weight_specs(&part).into_iter().filter(|spec| !spec.is_trained());
    assert_eq!(names(&frozen.collect::<Vec<_>>()), ["model.layers.1.self_attn.q_proj.weight", "lm_head.weight"]);
}

/// PEFT adapts every module whose name ends with a target.
#[test]
fn targets_of_a_configuration_mean_the_adapted_layers_alone() {
    let targets = |of: &[&str]| {
        let lora = lora(of);
        let tuned = fine_tuned(model(), Some(&lora), &[]);
        adapter_config(&lora, tuned.as_ref(), "base")["target_modules"].clone()
    };
    assert_eq!(targets(&["self_attn.q_proj", "up_proj"]), json!(["q_proj", "up_proj"]));
    assert_eq!(targets(&["layers.1.self_attn.q_proj", "v_proj"]), json!(["model.layers.1.self_attn.q_proj", "v_proj"]));
}

#[test]
fn a_plan_counts_what_is_trained() {
    let microbatch = MicrobatchCost {
        tokens: 4,
        length: 4,
        precision: Precision::BFloat16,
        recompute: Recompute::None,
        on_gpu: false,
        copies: ParameterCopies::default(),
    };
    let lora = lora(&["q_proj"]);
    let (whole, tuned) = (model().cost(microbatch), fine_tuned(model(), Some(&lora), &[]).cost(microbatch));
    let numel = |specs: Vec<ParameterSpec>, is_counted: fn(&ParameterSpec) -> bool| {
        specs.iter().filter(|spec| is_counted(spec)).map(ParameterSpec::numel).sum::<u64>()
    };
    let layer = || model().weight_specs(&ModelPart { layers: 0..1, has_embedding: false, has_head: false });
    let (matrices, norms) = (numel(layer(), ParameterSpec::is_matrix), numel(layer(), |spec| !spec.is_matrix()));
    // each element of an adapter's matrices A and B needs 4 bytes for the fp32 value, 2 for the bf16 copy, 4 for the
    // gradient and 8 for the two moments; frozen matrices are in bf16, and frozen norms are in fp32
    let adapters = 2 * (8 + 8);
    assert_eq!(tuned.layers[0].parameter_bytes, (4 + 2 + 4 + 8) * adapters + 2 * matrices + 4 * norms);
    assert_eq!(whole.layers[0].parameter_bytes, (4 + 2 + 4 + 8) * (matrices + norms));
    assert_eq!(tuned.layers[0].backward_weight, 2.0 * 4.0 * adapters as f64);
    assert_eq!(tuned.layers[0].forward - whole.layers[0].forward, 2.0 * 4.0 * adapters as f64);
    // q_proj keeps its input and the gradient of its output; the adapter keeps the output of A and its gradient
    assert_eq!(tuned.layers[0].weight_gradient_bytes, 4 * 2 * (8 + 8 + 2 * 2));
    assert_eq!(whole.head.forward - tuned.head.forward, 2.0 * 4.0 * 80.0);
    // the costs of a layer without frozen weights are the same as in the original model
    let first = patterns(&["*.layers.0.*"]);
    let part = fine_tuned(model(), None, &first).cost(microbatch);
    assert_eq!(part.layers[1], whole.layers[1]);
    assert_eq!((part.layers[0].backward_weight, part.layers[0].weight_gradient_bytes), (0.0, 0));
    // `operations` describes one layer, with the mean costs of all layers
    let flops = |model: Box<dyn Architecture>| {
        let operations = model.operations(microbatch).layer.into_iter();
        operations
            .filter(|operation| operation.pass == Pass::BackwardWeight)
            .map(|operation| operation.flops)
            .sum::<f64>()
    };
    let (all, two_of_three) = (flops(model()), flops(fine_tuned(model(), None, &first)));
    assert!((two_of_three / all - 2.0 / 3.0).abs() < 1e-12, "{two_of_three} of {all}");
}
