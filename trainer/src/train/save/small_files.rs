//! The small files of a checkpoint: the Hugging Face files beside the weights, such as `config.json`.

use serde_json::{Map, Value};
use stagecoach_checkpoint::paths::ADAPTER_CONFIG_FILE;
use stagecoach_checkpoint::{Manifest, open};
use stagecoach_data::{NamedTokens, SpecialTokenIds};
use stagecoach_engine::StageError;
use stagecoach_model::{Architecture, adapter_config, with_kept_fields};
use stagecoach_planner::GENERATION_CONFIG_FILE;

use crate::train::context::RunningStage;
use crate::train::leave::LeaveReason;

/// Returns the names and contents of the small files. `saved` is the job's last checkpoint.
pub(super) fn small_files(
    running: &RunningStage,
    architecture: &dyn Architecture,
    saved: Option<&Manifest>,
) -> Result<Vec<(String, Vec<u8>)>, LeaveReason> {
    let (config, prepared) = (running.context.config, &running.plan.prepared);
    let data = config.data_config();
    let tokens = TokenFields { ids: &prepared.special_tokens, named: &data.named_tokens };
    let mut files = stagecoach_data::tokenizer_files(&data, prepared)?;
    let generation = match config.generation_config()? {
        Some(of_source) => Some(of_source),
        // the source model may have been deleted since the job began
        None => saved_file(running, saved, GENERATION_CONFIG_FILE)?,
    };
    if let Some(bytes) = generation {
        files.push((GENERATION_CONFIG_FILE.to_owned(), tokens.in_generation_config(bytes)?));
    }
    let mut fields = with_kept_fields(config.source_config.as_ref(), architecture.config_json());
    tokens.add_to_config(&mut fields);
    files.push(("config.json".to_owned(), format!("{fields:#}\n").into_bytes()));
    if let Some(lora) = &config.training.lora {
        let base = config.initial_weights_source().unwrap_or_default();
        // PEFT names models of the hub without the prefix and the commit
        let base = base.strip_prefix("hf://").map_or(base, |name| name.split('@').next().unwrap_or(name));
        let adapter = adapter_config(lora, architecture, base);
        files.push((ADAPTER_CONFIG_FILE.to_owned(), format!("{adapter:#}\n").into_bytes()));
    }
    Ok(files)
}

/// Returns the contents of a small file of the checkpoint `saved`, if it has such a file.
fn saved_file(running: &RunningStage, saved: Option<&Manifest>, name: &str) -> Result<Option<Vec<u8>>, LeaveReason> {
    let Some(saved) = saved.filter(|saved| saved.files.iter().any(|file| file.name == name)) else { return Ok(None) };
    Ok(open(running.context.volume, saved.step)?.read_small_file(name)?)
}

/// The fields for special tokens in configurations: `bos_token_id`, `eos_token_id` and `pad_token_id`.
struct TokenFields<'a> {
    ids: &'a SpecialTokenIds,
    /// The tokens that the job names.
    named: &'a NamedTokens,
}

impl TokenFields<'_> {
    /// Adds the ids that `config.json` lacks, and replaces the ids of tokens that the job names. Tools that generate
    /// text read the ids from this file.
    fn add_to_config(&self, config: &mut Value) {
        for (name, id) in self.ids.for_config() {
            let field = &mut config[format!("{name}_id")];
            if field.is_null() || self.is_named(name) {
                *field = id;
            }
        }
    }

    /// Returns the contents of `generation_config.json` with the ids of the tokens that the job names.
    fn in_generation_config(&self, bytes: Vec<u8>) -> Result<Vec<u8>, StageError> {
        if self.named.by_name().next().is_none() {
            return Ok(bytes);
        }
        let mut config: Map<String, Value> = serde_json::from_slice(&bytes).map_err(|error| {
            StageError::invalid(format!(
                "the source's {GENERATION_CONFIG_FILE} is no JSON object ({error}): write it again, or remove it"
            ))
        })?;
        for (name, id) in self.ids.for_config().filter(|(name, _)| self.is_named(name)) {
            config.insert(format!("{name}_id"), id);
        }
        Ok(format!("{:#}\n", Value::Object(config)).into_bytes())
    }

    fn is_named(&self, name: &str) -> bool {
        self.named.by_name().any(|(named, _)| named == name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ids() -> SpecialTokenIds {
        serde_json::from_value(json!({"bos": 1, "eos": [5, 7], "pad": 9, "otherThanBefore": false})).unwrap()
    }

    #[test]
    fn a_config_keeps_its_ids_and_gets_those_that_it_lacks() {
        let (ids, none) = (ids(), NamedTokens::default());
        let tokens = TokenFields { ids: &ids, named: &none };
        let mut config = json!({"eos_token_id": [3, 4], "pad_token_id": null});
        tokens.add_to_config(&mut config);
        assert_eq!(config, json!({"bos_token_id": 1, "eos_token_id": [3, 4], "pad_token_id": 9}));
        let mut config = json!({});
        tokens.add_to_config(&mut config);
        assert_eq!(config, json!({"bos_token_id": 1, "eos_token_id": [5, 7], "pad_token_id": 9}));
        assert_eq!(tokens.in_generation_config(b"any".to_vec()).unwrap(), b"any");
    }

    #[test]
    fn tokens_that_the_job_names_take_the_place_of_the_sources() {
        let (ids, named) = (ids(), NamedTokens { pad: Some("<pad>".into()), ..NamedTokens::default() });
        let tokens = TokenFields { ids: &ids, named: &named };
        let mut config = json!({"bos_token_id": 2, "eos_token_id": [3, 4], "pad_token_id": 0});
        tokens.add_to_config(&mut config);
        assert_eq!(config, json!({"bos_token_id": 2, "eos_token_id": [3, 4], "pad_token_id": 9}));
        let generation = json!({"eos_token_id": 3, "temperature": 0.7}).to_string();
        let written = tokens.in_generation_config(generation.into_bytes()).unwrap();
        let written: Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(written, json!({"eos_token_id": 3, "pad_token_id": 9, "temperature": 0.7}));
        let refused = tokens.in_generation_config(b"[]".to_vec()).unwrap_err();
        assert!(refused.to_string().contains("the source's generation_config.json is no JSON object"), "{refused}");
    }
}
