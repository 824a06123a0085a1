//! Reads the settings of the rotary embedding from a `config.json`, in transformers' order of precedence.

use std::fmt::Display;

use serde::Serialize;
use serde_json::{Value, json};

use super::ConfigJson;

/// The objects that may hold the settings of the rotary embedding. The first object that is not empty takes precedence.
/// Transformers 5 writes the second object.
const SECTIONS: [&str; 2] = ["rope_scaling", "rope_parameters"];
/// The `rope_type` that selects [`RopeScaling`]. `LLAMA_3_FIELDS` lists the other fields of this type.
const LLAMA_3: &str = "llama3";
const LLAMA_3_FIELDS: [&str; 4] = ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"];
/// The fields that are valid for every `rope_type`.
const FIELDS: [&str; 4] = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];
/// The base of the rotary frequencies if a file has no base.
const DEFAULT_THETA: f64 = 10_000.0;

/// The scaling of rotary frequencies for texts longer than a model's original length. The fields have the names in
/// Hugging Face's `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "rope_type", rename = "llama3")]
pub struct RopeScaling {
    /// The factor that divides the frequencies of slow pairs of dimensions. A slow pair turns fewer than
    /// `low_freq_factor` times within the original length.
    pub factor: f64,
    /// The number of turns within the original length below which a pair is slow.
    pub low_freq_factor: f64,
    /// The number of turns within the original length above which a pair keeps its frequency. Frequencies of pairs
    /// between the two bounds are interpolated.
    pub high_freq_factor: f64,
    /// The original length, in tokens.
    pub original_max_position_embeddings: usize,
}

impl Display for RopeScaling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RopeScaling {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: length,
        } = self;
        write!(f, "llama3 (factor {factor}, {low} to {high}, from {length})")
    }
}

impl ConfigJson {
    /// Reads the base of the rotary frequencies, and Llama 3's scaling of the frequencies if the file has it.
    pub(crate) fn rope(&self) -> Result<(f64, Option<RopeScaling>), String> {
        let theta = self.optional("rope_theta", Self::positive_number, DEFAULT_THETA)?;
        let is_there = |value: &&Value| **value != json!({});
        let found = SECTIONS.iter().find_map(|name| Some((*name, self.get(name).filter(is_there)?)));
        let Some((name, value)) = found else { return Ok((theta, None)) };
        let fields =
            ConfigJson(value.as_object().cloned().ok_or_else(|| format!("{name} is {value}, expected an object"))?);
        let is_llama3 = fields.is_llama3(name)?;
        fields.only("partial_rotary_factor", &[json!(1)]).map_err(|problem| format!("{name}.{problem}"))?;
        let is_known = |key: &str| FIELDS.contains(&key) || is_llama3 && LLAMA_3_FIELDS.contains(&key);
        if let Some(unknown) = fields.0.keys().find(|key| !is_known(key)) {
            let kind = if is_llama3 { LLAMA_3 } else { "default" };
            return Err(format!(
                "{name} has the field {unknown}, which the {kind} rotary embedding does not support: {value}"
            ));
        }
        let theta = fields.optional("rope_theta", Self::positive_number, theta);
        let scaling = is_llama3.then(|| fields.llama3(self)).transpose();
        let read = theta.and_then(|theta| Ok((theta, scaling?)));
        read.map_err(|problem| format!("{name}: {problem}"))
    }

    /// Whether these fields scale the rotation as Llama 3 does. In older versions of `config.json`, the name of the
    /// field `rope_type` is `type`.
    fn is_llama3(&self, section: &str) -> Result<bool, String> {
        let found = ["rope_type", "type"].iter().find_map(|field| Some((*field, self.get(field)?)));
        match found {
            None => Ok(false),
            Some((_, kind)) if kind == "default" => Ok(false),
            Some((_, kind)) if kind == LLAMA_3 => Ok(true),
            Some((field, kind)) => Err(format!(
                "{section}.{field} is {kind}, and this trainer supports only \"default\" and \"{LLAMA_3}\""
            )),
        }
    }

    fn llama3(&self, config: &ConfigJson) -> Result<RopeScaling, String> {
        const LENGTH: &str = "original_max_position_embeddings";
        let scaling = RopeScaling {
            factor: self.positive_number("factor")?,
            low_freq_factor: self.positive_number("low_freq_factor")?,
            high_freq_factor: self.positive_number("high_freq_factor")?,
            original_max_position_embeddings: self.positive_integer(LENGTH)?,
        };
        let RopeScaling {
            low_freq_factor: low, high_freq_factor: high, original_max_position_embeddings: here, ..
        } = scaling;
        if low >= high {
            return Err(format!("low_freq_factor is {low}, expected a number below the high_freq_factor {high}"));
        }
        let outside = config.optional(LENGTH, Self::positive_integer, here)?;
        if outside != here {
            return Err(format!(
                "{LENGTH} is {here} in this object and {outside} at the top level of config.json: remove one of the \
                 two fields"
            ));
        }
        Ok(scaling)
    }
}
