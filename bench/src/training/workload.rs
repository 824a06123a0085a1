//! The models and batches on which Stagecoach and PyTorch are compared.

use std::path::Path;

use serde_json::{Value, json};

use super::contender::python;

/// A model, and the batch of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TrainingCase {
    pub(super) name: &'static str,
    pub(super) layers: usize,
    pub(super) vocabulary: usize,
    pub(super) microbatches: usize,
}

pub(super) const SEQUENCES: usize = 32;
pub(super) const LENGTH: usize = 128;
const HIDDEN: usize = 256;

/// Eight layers with a small vocabulary.
pub(super) const EIGHT_LAYERS: TrainingCase =
    TrainingCase { name: "8-layers", layers: 8, vocabulary: 2048, microbatches: 8 };

/// The model of manifests/samples/llama-12-layers.yaml at a smaller size. The head still costs 4.3 times as much as a
/// layer.
pub(super) const TWELVE_LAYERS: TrainingCase =
    TrainingCase { name: "12-layers", layers: 12, vocabulary: 16_512, microbatches: 4 };

impl TrainingCase {
    /// Writes the files from which all trainers start. The files of a case are in the folder `folder`/NAME, where NAME
    /// is the case's name.
    pub(super) fn write_all(folder: &Path) -> [&'static TrainingCase; 2] {
        let workloads = [&EIGHT_LAYERS, &TWELVE_LAYERS];
        for workload in workloads {
            let own = folder.join(workload.name);
            std::fs::create_dir_all(&own).unwrap();
            let settings =
                json!({ "folder": own, "sequences": SEQUENCES, "length": LENGTH, "config": workload.config() });
            assert!(python(&settings).status().unwrap().success(), "the model of {} was not written", workload.name);
        }
        workloads
    }

    /// Returns the model's configuration, with the keys of Hugging Face's config.json.
    fn config(&self) -> Value {
        json!({
            "hidden_size": HIDDEN,
            "num_hidden_layers": self.layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 4 * HIDDEN,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": LENGTH,
            "rope_theta": 10_000.0,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": false,
        })
    }

    pub(super) fn to_json(self) -> Value {
        json!({ "name": self.name, "model": self.config(), "sequences": SEQUENCES, "sequenceLength": LENGTH,
                "microbatches": self.microbatches })
    }
}
