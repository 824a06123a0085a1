use std::path::Path;

use proptest::prelude::*;
use serde_json::json;
use stagecoach_data::Texts;
use stagecoach_model::SourceConfig;

use super::super::Facts;
use super::super::tests::{planned, without_comment};
use super::*;

fn facts(bytes: u64, memory_bytes: u64, processors: usize, gpus: usize) -> Facts {
    let texts = Texts {
        patterns: vec!["data/*.jsonl".into()],
        files: 1,
        bytes,
        field: Some("text".into()),
        ..Texts::default()
    };
    Facts { name: "tuned".into(), stages: None, gpus, processors, memory_bytes, texts }
}

/// Returns a workspace with the configuration of a model in `models/base`.
fn workspace(hidden: u64, layers: u64, positions: u64) -> (tempfile::TempDir, SourceModel) {
    let workspace = tempfile::tempdir().unwrap();
    let folder = workspace.path().join("models/base");
    std::fs::create_dir_all(&folder).unwrap();
    let config = json!({
        "model_type": "qwen2", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 4 * hidden, "vocab_size": 50_000, "max_position_embeddings": positions,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let config = SourceConfig::read(&folder).unwrap().config;
    let architecture = config.architecture(tch::Device::Cpu);
    let model = SourceModel::new("models/base".into(), architecture.as_ref(), config.max_position_embeddings());
    (workspace, model)
}

fn proposed(facts: &Facts, model: &SourceModel, workspace: &Path) -> Result<String, StageError> {
    propose_fine_tuning(facts, model, &|text| Ok(planned(text, workspace).0))
}

#[test]
fn a_model_is_fine_tuned_on_its_own_tokenizer() {
    let (workspace, model) = workspace(512, 8, 4096);
    let text = proposed(&facts(2_000_000, 16 << 30, 2, 0), &model, workspace.path()).unwrap();
    let (_, config) = planned(&text, workspace.path());
    assert_eq!(config.initial_weights_source(), Some("models/base"));
    assert_eq!(config.tokenizer_file(), Some(workspace.path().join("models/base/tokenizer.json")));
    assert_eq!((config.data.sequence_length, config.job.spec.stages, config.keeps_best()), (512, 2, true));
    assert_eq!(config.training.learning_rate.peak, 1e-4);
    // a comment explains every number
    assert_eq!(without_comment(&text), ["apiVersion: stagecoach.dev/v1alpha1"]);
    // a job on a GPU trains in bf16 on longer sequences, if the corpus is large enough
    let on_gpu = proposed(&facts(2_000_000, 64 << 30, 8, 1), &model, workspace.path()).unwrap();
    assert!(on_gpu.contains("precision: BFloat16  # ") && on_gpu.contains("sequenceLength: 2048  # "), "{on_gpu}");
    let small = proposed(&facts(100_000, 64 << 30, 8, 1), &model, workspace.path()).unwrap();
    assert!(small.contains("sequenceLength: 64  # "), "{small}");
}

#[test]
fn less_memory_means_adapters_and_shorter_sequences_and_then_a_refusal() {
    let (workspace, model) = workspace(512, 8, 4096);
    let proposed_with = |memory| proposed(&facts(20_000_000, memory, 2, 0), &model, workspace.path());
    let roomy = proposed_with(64 << 30).unwrap();
    let (needed, config) = planned(&roomy, workspace.path());
    assert_eq!(config.data.sequence_length, 512);
    assert!(config.training.lora.is_none());
    let one = facts(20_000_000, 64 << 30, 2, 0);
    let one = Facts { stages: Some(1), ..one };
    let on_one = proposed(&one, &model, workspace.path()).unwrap();
    let needed = needed.min(planned(&on_one, workspace.path()).0);
    let proposed_for_one = |memory| proposed(&Facts { memory_bytes: memory, ..one.clone() }, &model, workspace.path());
    // a job may use 60 % of the memory, which is not enough here to train all weights on one stage
    let (of_adapters, config) = planned(&proposed_for_one(needed * 8 / 5).unwrap(), workspace.path());
    assert_eq!((config.data.sequence_length, config.training.lora.map(|lora| lora.rank)), (512, Some(16)));
    assert!(of_adapters < needed);
    let (_, config) = planned(&proposed_for_one(of_adapters * 8 / 5).unwrap(), workspace.path());
    assert!(config.data.sequence_length < 512 && config.training.lora.is_some(), "{:?}", config.data.sequence_length);
    let refused = proposed_with(256 << 20).unwrap_err().to_string();
    for words in [
        "fine-tuning of adapters (LoRA) of the model in models/base (",
        " million parameters in 8 layers) over 1 stage needs ",
        "(60%): use a smaller model or a machine with more memory",
    ] {
        assert!(refused.contains(words), "no {words:?} in {refused}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn every_file_validates_and_fits_into_the_memory(
        magnitude in 3.0f64..11.0,
        (hidden, layers) in (1u64..64, 1u64..6),
        positions in 2u64..5000,
        processors in 1usize..=256,
        gpus in 0usize..=8,
    ) {
        let (workspace, model) = workspace(16 * hidden, layers, positions);
        let facts = facts(10f64.powf(magnitude) as u64, 1 << 40, processors, gpus);
        let text = proposed(&facts, &model, workspace.path()).unwrap();
        let (needed, config) = planned(&text, workspace.path());
        prop_assert!(needed <= facts.memory_bytes, "{needed} bytes\n{text}");
        prop_assert!(u64::from(config.data.sequence_length) <= positions);
        prop_assert!(u64::from(config.job.spec.stages) <= layers);
    }
}
