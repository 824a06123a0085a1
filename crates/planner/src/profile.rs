//! The measured times of a model's modules on this machine. The folder of the token cache keeps these times for later
//! plans of the same model.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stagecoach_api::job::{Kernels, Recompute, TOKEN_CACHE};
use stagecoach_engine::StageError;
use stagecoach_files::write_atomically;
use stagecoach_kernels as kernels;
use stagecoach_model::{Architecture, MicrobatchCost};
use stagecoach_pipeline::{ModelCost, ModuleCost};
use tch::Device;

use super::JobConfig;

/// The seconds that a module takes for one microbatch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModuleSeconds {
    /// The forward pass, F. For the head, this time includes the gradient of the loss.
    pub forward: f64,
    /// The gradient of the input, I.
    pub backward_input: f64,
    /// The gradient of the weights, W.
    pub backward_weight: f64,
}

/// The measurements of `stagecoach plan --profile`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    /// The times of the embedding.
    pub embedding: ModuleSeconds,
    /// The times of a decoder layer, by the kind of recomputation.
    pub layer: BTreeMap<String, ModuleSeconds>,
    /// The times of final norm, head and loss.
    pub head: ModuleSeconds,
    /// The seconds of one message between two stages: the activations, or their gradient, of a microbatch.
    pub link_seconds: f64,
}

impl Profile {
    /// Replaces the estimated work in `cost` by the measured seconds.
    pub(super) fn apply(&self, cost: &mut ModelCost, recompute: Recompute) {
        let Some(layer) = self.layer.get(&recompute.to_string()) else { return };
        let set = |module: &mut ModuleCost, seconds: &ModuleSeconds| {
            module.forward = seconds.forward;
            module.backward_input = seconds.backward_input;
            module.backward_weight = seconds.backward_weight;
        };
        set(&mut cost.embedding, &self.embedding);
        cost.layers.iter_mut().for_each(|module| set(module, layer));
        set(&mut cost.head, &self.head);
    }

    /// Returns the profile of this model on this kind of machine, if it exists. A file that can't be read counts as
    /// missing.
    pub(super) fn find(config: &JobConfig, architecture: &dyn Architecture) -> Option<Profile> {
        if !folder(config).exists() {
            return None; // the key of a profile names the GPU, and a process that opens the GPU occupies its memory
        }
        let text = std::fs::read_to_string(path(config, architecture)).ok()?;
        let mut stored: Value = serde_json::from_str(&text).ok()?;
        serde_json::from_value(stored["profile"].take()).ok()
    }

    /// Stores the profile, and returns the path of its file.
    ///
    /// # Errors
    /// Returns an error if the file can't be written.
    pub fn save(&self, config: &JobConfig, architecture: &dyn Architecture) -> Result<PathBuf, StageError> {
        let path = path(config, architecture);
        let content = json!({ "of": key(config, architecture), "profile": self });
        let written = match path.parent().map_or(Ok(()), std::fs::create_dir_all) {
            Ok(()) => write_atomically(&path, format!("{content:#}\n").as_bytes()),
            failed => failed,
        };
        written.map_err(|error| StageError::storage("write", &path, error))?;
        Ok(path)
    }
}

/// Returns the facts that affect the times.
fn key(config: &JobConfig, architecture: &dyn Architecture) -> Value {
    key_on(config, architecture, config.gpu())
}

/// Returns the facts that affect the times on a GPU, described by [`JobConfig::gpu`], or on the CPU.
fn key_on(config: &JobConfig, architecture: &dyn Architecture, gpu: Option<(String, u32)>) -> Value {
    let MicrobatchCost { tokens, length, precision, recompute: _, on_gpu: _, copies: _ } =
        config.microbatch_cost(Recompute::None);
    let mut model = architecture.config_json();
    if let Some(model) = model.as_object_mut() {
        // all layers take the same time, so their number does not matter
        model.remove("num_hidden_layers");
    }
    let device = if gpu.is_some() { Device::Cuda(0) } else { Device::Cpu };
    let mut key = json!({
        "model": model,
        "microbatch": [tokens / length, length],
        "precision": precision,
        "threads": config.training.threads,
        "transport": config.job.spec.pipeline.transport,
        "encryption": config.job.spec.pipeline.encryption,
        "processor": stagecoach_os::processor_model(),
        "kernels": kernels::version(device),
        "isa": kernels::cpu_capability(),
    });
    // the profiles of earlier versions, which have neither of these fields, are found on the CPU with the default kernels
    if let Some(gpu) = gpu {
        key["gpu"] = json!(gpu);
    }
    if config.training.kernels != Kernels::default() {
        key["trainingKernels"] = json!(config.training.kernels);
    }
    if config.training.freezes_weights() {
        key["trained"] = json!([config.training.lora, config.training.freeze]);
    }
    key
}

fn path(config: &JobConfig, architecture: &dyn Architecture) -> PathBuf {
    let hash = blake3::hash(key(config, architecture).to_string().as_bytes()).to_hex();
    folder(config).join(format!("{}.json", &hash[..16]))
}

fn folder(config: &JobConfig) -> PathBuf {
    config.workspace.join(TOKEN_CACHE).join("profiles")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::tests::config;

    #[test]
    fn a_profile_is_of_one_device_and_one_kind_of_kernels() {
        let key = |kernels: &str, gpu: Option<(&str, u32)>| {
            let config = config(&[("training.kernels", kernels)]);
            let architecture = config.architecture(300, Device::Cpu);
            key_on(&config, architecture.as_ref(), gpu.map(|(model, count)| (model.to_owned(), count)))
        };
        let fastest = |gpu| key("Fastest", gpu);
        assert_eq!(fastest(None), fastest(None));
        let different = [
            fastest(None),
            key("Portable", None),
            fastest(Some(("NVIDIA H200", 132))),
            fastest(Some(("NVIDIA H200", 16))),
            fastest(Some(("NVIDIA A100", 108))),
        ];
        for (index, one) in different.iter().enumerate() {
            assert!(!different[..index].contains(one), "{one}");
        }
    }
}
