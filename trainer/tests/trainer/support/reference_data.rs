//! The cases in `tests/reference/`, each with the results of plain PyTorch or of PEFT.

use std::path::PathBuf;

use safetensors::SafeTensors;
use serde::{Deserialize, Deserializer};
use serde_json::Map;
use stagecoach_api::job::{AdamWSpec, LearningRateSchedule, LearningRateSpec, LoraSpec};
use stagecoach_data::{IGNORE_INDEX, MicrobatchLayout};
use stagecoach_engine::optimize::LearningRate;
use stagecoach_model::SourceConfig;
use tch::Device;

use crate::support::pipeline::{MicrobatchData, StepData, Trained, Weights};

/// The content of `reference.json` or `fine_tuning.json`.
#[derive(Debug, Deserialize)]
pub(crate) struct Reference {
    optimizer: ReferenceOptimizer,
    learning_rate: ReferenceLearningRate,
    cases: std::collections::BTreeMap<String, ReferenceCase>,
}

#[derive(Debug, Deserialize)]
struct ReferenceOptimizer {
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    weight_decay: f64,
}

#[derive(Debug, Deserialize)]
struct ReferenceLearningRate {
    peak: f64,
    floor: f64,
    warmup_steps: u64,
    warmup_start: f64,
    decay_steps: u64,
}

/// One model on one stream of data.
#[derive(Debug, Deserialize)]
pub(crate) struct ReferenceCase {
    /// The fields of the model's `config.json`.
    #[serde(rename = "config", deserialize_with = "source_config")]
    pub(crate) source: SourceConfig,
    /// The gradient norm to which larger gradients are clipped.
    pub(crate) clip: f64,
    /// The adapters that are trained.
    pub(crate) lora: Option<LoraSpec>,
    /// The weights that are not trained.
    #[serde(default)]
    pub(crate) freeze: Vec<String>,
    pub(crate) learning_rates: Vec<f64>,
    pub(crate) losses: Vec<f32>,
    pub(crate) norms: Vec<f64>,
    /// The errors of PyTorch in bfloat16 against float64: one entry for the computation of the whole batch at once, and
    /// one for the computation row by row. The order of summation differs. Empty in `fine_tuning.json`.
    pub(crate) bfloat16: Vec<BFloat16Errors>,
    batches: Vec<Vec<ReferenceRow>>,
}

/// Relative errors: the largest error of any loss, the error of all gradients as one vector, and the error of all final
/// weights as one vector.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct BFloat16Errors {
    pub(crate) loss_error: f64,
    pub(crate) gradient_error: f64,
    pub(crate) final_error: f64,
}

/// One row without its padding.
#[derive(Debug, Deserialize)]
struct ReferenceRow {
    inputs: Vec<i64>,
    targets: Vec<i64>,
    documents: Vec<u32>,
}

/// Reads the configuration of a model. Without a `model_type`, the model is a Llama.
fn source_config<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SourceConfig, D::Error> {
    let mut fields = Map::deserialize(deserializer)?;
    fields.entry("model_type").or_insert_with(|| "llama".into());
    SourceConfig::parse(fields).map_err(serde::de::Error::custom)
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/reference")
}

impl ReferenceCase {
    /// Returns the number of layers of the model.
    pub(crate) fn layers(&self) -> usize {
        self.source.config.architecture(Device::Cpu).num_layers()
    }
}

impl Reference {
    pub(crate) fn read() -> Reference {
        serde_json::from_slice(&std::fs::read(folder().join("reference.json")).unwrap()).unwrap()
    }

    /// Reads `fine_tuning.json`. Each case trains for twenty steps: a whole model, a part of a model, or adapters of
    /// PEFT.
    pub(crate) fn of_peft() -> Reference {
        serde_json::from_slice(&std::fs::read(folder().join("fine_tuning.json")).unwrap()).unwrap()
    }

    /// Returns the names of all cases.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.cases.keys().map(String::as_str)
    }

    pub(crate) fn case(&self, name: &str) -> &ReferenceCase {
        &self.cases[name]
    }

    pub(crate) fn adamw(&self) -> AdamWSpec {
        let ReferenceOptimizer { beta1, beta2, epsilon, weight_decay } = self.optimizer;
        AdamWSpec { beta1, beta2, epsilon, weight_decay, decay_norms_and_embeddings: false }
    }

    pub(crate) fn learning_rate(&self) -> LearningRate {
        let ReferenceLearningRate { peak, floor, warmup_steps, warmup_start, decay_steps } = self.learning_rate;
        let (schedule, decay_fraction) = (LearningRateSchedule::Cosine, 1.0);
        let spec =
            LearningRateSpec { peak, floor, warmup_steps, warmup_start, schedule, decay_fraction, decay_steps: None };
        LearningRate { spec, decay_steps }
    }

    /// Returns the data of `case`. Each of the `microbatches` microbatches of a step is a block of consecutive rows.
    pub(crate) fn steps(&self, case: &ReferenceCase, microbatches: usize) -> Vec<StepData> {
        let rate = self.learning_rate();
        let split = |rows: &[ReferenceRow]| rows.chunks(rows.len() / microbatches).map(microbatch).collect();
        let step = |(index, rows): (usize, &Vec<ReferenceRow>)| StepData {
            microbatches: split(rows),
            learning_rate: rate.at(index as u64),
            target_count: None,
        };
        case.batches.iter().enumerate().map(step).collect()
    }
}

/// Pads each row to the longest row of the microbatch, as `Dataset` does. Lengths differ between microbatches.
fn microbatch(rows: &[ReferenceRow]) -> MicrobatchData {
    let length = rows.iter().map(|row| row.inputs.len()).max().unwrap_or(0).max(1);
    let pad =
        |ids: &[i64], with: i64| ids.iter().copied().chain(std::iter::repeat(with)).take(length).collect::<Vec<_>>();
    MicrobatchData {
        layout: MicrobatchLayout {
            rows: rows.len(),
            length,
            document_starts: rows.iter().map(|row| row.documents.clone()).collect(),
        },
        inputs: rows.iter().flat_map(|row| pad(&row.inputs, 0)).collect(),
        targets: rows.iter().flat_map(|row| pad(&row.targets, IGNORE_INDEX)).collect(),
    }
}

/// Returns the initial weights of case `name`, and the expected result.
pub(crate) fn tensors(name: &str, case: &ReferenceCase) -> (Weights, Trained) {
    let bytes = std::fs::read(folder().join(format!("{name}.safetensors"))).unwrap();
    let all = SafeTensors::deserialize(&bytes).unwrap();
    let under = |prefix: &str| {
        let floats = |data: &[u8]| data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let named =
            all.iter().filter_map(|(name, view)| Some((name.strip_prefix(prefix)?.to_owned(), floats(view.data()))));
        named.collect::<Weights>()
    };
    let trained = Trained {
        losses: case.losses.clone(),
        norms: case.norms.clone(),
        gradients: under("gradient."),
        weights: under("final."),
    };
    (under("initial."), trained)
}
