//! Finds the tokens that begin, end and pad documents. The files `tokenizer_config.json`, `config.json` and
//! `generation_config.json` beside a `tokenizer.json` name these tokens. If no file names a token, a special token of
//! `added_tokens` with a usual name is used. Only `tokenizer_config.json` can name an ordinary word of the vocabulary.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use stagecoach_files::read_if_exists;

use crate::error::DataError;
use crate::named_tokens::{BOS_KEY, EOS_KEY, NamedTokens, PAD_KEY};

pub(crate) const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";

/// The special tokens of a tokenizer that this crate trains, with ids 0, 1 and 2: begin of text, end of text, padding.
pub(crate) const SPECIAL_TOKENS: [&str; 3] = ["[BOT]", "[EOT]", "[PAD]"];

/// The token that separates documents. GPT-2 and Qwen also name it as begin of text, but begin no document with it.
const SEPARATOR: &str = "<|endoftext|>";

/// Usual names of special tokens. A tokenizer uses the first of these names that it has.
const BOS_TOKENS: [&str; 6] = [SPECIAL_TOKENS[0], "<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>"];
pub(super) const EOS_TOKENS: [&str; 6] = [SPECIAL_TOKENS[1], "</s>", "<eos>", "[EOS]", "<|end_of_text|>", SEPARATOR];
const PAD_TOKENS: [&str; 5] = [SPECIAL_TOKENS[2], "<pad>", "<|pad|>", "<|finetune_right_pad_id|>", "<|padding|>"];

/// The largest number of special tokens that an error lists.
const MAX_NAMED: usize = 20;

/// The ids of the tokens that begin, end and pad documents.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SpecialTokenIds {
    /// The token that begins each document.
    pub bos: Option<u32>,
    /// The tokens that end documents. The first token ends each document. In files of token ids, the further tokens
    /// also end documents.
    pub eos: Vec<u32>,
    /// The token that pads rows.
    pub pad: Option<u32>,
    /// Whether older versions of this crate begin or end documents with other tokens. These versions used any word of
    /// the vocabulary that has a usual name of a special token.
    pub(crate) other_than_before: bool,
    /// Whether the job names at least one of the tokens.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) has_names_of_job: bool,
    /// Whether a text that spells the padding token is encoded differently because a configuration makes this token
    /// special.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) pad_decides_texts: bool,
    /// Whether `eos` has several tokens, and every one of them ends documents in this corpus.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) all_end_documents: bool,
}

impl SpecialTokenIds {
    /// Returns the part of a job's identity (the settings that determine its result) that these tokens form. Returns
    /// `None` if all versions begin and end documents with the same tokens, the job names no token, and no special
    /// token changes how a text is encoded. A token that only pads has no effect on the results of training, because
    /// padding has no targets.
    pub fn identity(&self) -> Option<Value> {
        let mut identity = self.frame();
        let mut add = |name: &str, value: Value| identity.get_or_insert_with(|| json!({}))[name] = value;
        if self.pad_decides_texts {
            add("pad", json!(self.pad));
        }
        if self.all_end_documents {
            add("eos", json!(self.eos));
        }
        identity
    }

    /// Returns the tokens that begin and end documents, with the padding token if the job names any token. Returns
    /// `None` if all versions begin and end documents with the same tokens and the job names no token.
    pub(crate) fn frame(&self) -> Option<Value> {
        match (self.has_names_of_job, self.other_than_before) {
            (true, _) => Some(json!({"bos": self.bos, "eos": self.eos, "pad": self.pad})),
            (false, true) => Some(json!({"bos": self.bos, "eos": self.eos})),
            (false, false) => None,
        }
    }

    /// Returns the tokens' ids by the names that Hugging Face uses, such as `bos_token`.
    pub fn by_name(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let eos = self.eos.first().copied();
        [(BOS_KEY, self.bos), (EOS_KEY, eos), (PAD_KEY, self.pad)]
            .into_iter()
            .filter_map(|(name, id)| Some((name, id?)))
    }

    /// Returns the ids as `config.json` has them, by the names that Hugging Face uses. If several tokens end texts, the
    /// value of `eos_token` is a list.
    pub fn for_config(&self) -> impl Iterator<Item = (&'static str, Value)> {
        self.by_name().map(|(name, id)| match name {
            EOS_KEY if self.eos.len() > 1 => (name, json!(self.eos)),
            _ => (name, json!(id)),
        })
    }

    /// Whether a document in a file of token ids ends before or with the token `id`.
    pub(crate) fn separates(&self, id: u32) -> bool {
        self.eos.contains(&id) || self.bos == Some(id)
    }
}

/// Returns the object in a configuration file beside a tokenizer, or null if the file does not exist.
///
/// # Errors
/// Fails if the file exists but can't be read or is not a JSON object.
pub(crate) fn read_config(path: &Path) -> Result<Value, DataError> {
    match read_if_exists(path).map_err(DataError::io("read", path))? {
        Some(bytes) => parse_config(path, &bytes).map(Value::Object),
        None => Ok(Value::Null),
    }
}

/// Returns the object in `bytes`, the contents of the configuration file `path`.
///
/// # Errors
/// Fails if the contents are not a JSON object.
pub(crate) fn parse_config(path: &Path, bytes: &[u8]) -> Result<Map<String, Value>, DataError> {
    let problem = match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => return Ok(object),
        Ok(_) => "it is JSON, but no object".to_owned(),
        Err(error) => format!("it is not JSON ({error})"),
    };
    let problem = format!("{problem}: write it again, or remove it if the model needs none");
    Err(DataError::Tokenizer { path: path.to_owned(), problem })
}

/// Returns the id of a token by its name.
type IdOf<'a> = dyn Fn(&str) -> Option<u32> + 'a;

/// The tokens of a `tokenizer.json` by name.
pub(super) struct Names<'a> {
    /// Returns the id of any token of the vocabulary by its name.
    pub(super) id_of: Box<IdOf<'a>>,
    /// The tokens of `added_tokens`, and whether each is special.
    pub(super) added: BTreeMap<String, bool>,
}

impl Names<'_> {
    /// Returns the id of the token `text` that the job names in `field` of its tokenizer.
    fn of_job(&self, field: &str, text: &str) -> Result<u32, String> {
        (self.id_of)(text).ok_or_else(|| {
            let special: Vec<&str> =
                self.added.iter().filter(|(_, is_special)| **is_special).map(|(name, _)| name.as_str()).collect();
            let more = special.len().saturating_sub(MAX_NAMED);
            let listed = match (special.is_empty(), more) {
                (true, _) => "it has no special tokens".to_owned(),
                (false, 0) => format!("its special tokens are {}", special.join(", ")),
                (false, _) => format!("its special tokens are {} and {more} more", special[..MAX_NAMED].join(", ")),
            };
            format!(
                "data.tokenizer.file.{field} is {text}, and the tokenizer has no such token: name another token; \
                 {listed}"
            )
        })
    }
}

/// The configuration files beside a `tokenizer.json`. A file that does not exist is null.
#[derive(Default)]
pub(super) struct Configs {
    tokenizer: Value,
    model: Value,
    generation: Value,
}

impl Configs {
    /// Reads the files beside `tokenizer`.
    ///
    /// # Errors
    /// Fails if a file exists but can't be read or is not a JSON object.
    pub(super) fn beside(tokenizer: &Path) -> Result<Configs, DataError> {
        let read = |name: &str| read_config(&tokenizer.with_file_name(name));
        Ok(Configs {
            tokenizer: read(TOKENIZER_CONFIG_FILE)?,
            model: read("config.json")?,
            generation: read("generation_config.json")?,
        })
    }

    /// Returns the special tokens: first the tokens that the job names, then the tokens that these files name, then
    /// tokens with usual names.
    ///
    /// # Errors
    /// Fails if the job or `tokenizer_config.json` names a token that the tokenizer lacks, or if the file names a token
    /// with another id. Also fails if the job's begin-of-text token separates or ends documents.
    pub(super) fn special_tokens(&self, names: &Names, job: &NamedTokens) -> Result<SpecialTokenIds, String> {
        let found = self.found_tokens(names)?;
        let job_token =
            |field: &str, text: &Option<String>| text.as_ref().map(|text| names.of_job(field, text)).transpose();
        let eos = job_token("eos", &job.eos)?.map_or(found.eos, |id| vec![id]);
        let bos = job_token("bos", &job.bos)?;
        if let (Some(id), Some(text)) = (bos, &job.bos) {
            if Some(id) == (names.id_of)(SEPARATOR) {
                return Err(format!(
                    "data.tokenizer.file.bos is {text}, which separates documents and begins none: leave the field out"
                ));
            }
            if eos.contains(&id) {
                return Err(format!(
                    "data.tokenizer.file.bos is {text}, which also ends documents: name another token, or leave the \
                     field out"
                ));
            }
        }
        let bos = bos.or_else(|| found.bos.filter(|id| !eos.contains(id)));
        let pad = job_token("pad", &job.pad)?.or(found.pad);
        let has_names_of_job = job.by_name().next().is_some();
        let before = |candidates: &[&str]| candidates.iter().find_map(|name| (names.id_of)(name));
        let other_than_before = (bos, eos.first().copied()) != (before(&BOS_TOKENS), before(&EOS_TOKENS));
        Ok(SpecialTokenIds {
            bos,
            eos,
            pad,
            other_than_before,
            has_names_of_job,
            pad_decides_texts: false,
            all_end_documents: false,
        })
    }

    /// Returns the tokens that these files name. If the files do not name a token, a token with a usual name is used.
    fn found_tokens(&self, names: &Names) -> Result<FoundTokens, String> {
        self.check_added_tokens(names)?;
        let usual = |candidates: &[&str]| {
            let special = candidates.iter().find(|name| names.added.get(**name) == Some(&true));
            special.and_then(|name| (names.id_of)(name))
        };
        let mut eos: Vec<u32> = match self.named(EOS_KEY, names)? {
            NamedToken::Token(id) => vec![id],
            NamedToken::None | NamedToken::Absent => Vec::new(),
        };
        for config in [&self.model, &self.generation] {
            eos.extend(added_ids(&config["eos_token_id"], names).filter(|id| !eos.contains(id)).collect::<Vec<_>>());
        }
        if eos.is_empty() {
            eos.extend(usual(&EOS_TOKENS));
        }
        let separator = (names.id_of)(SEPARATOR);
        let bos = match self.named(BOS_KEY, names)? {
            NamedToken::Token(id) => Some(id),
            NamedToken::None => None,
            NamedToken::Absent => added_ids(&self.model["bos_token_id"], names).next().or_else(|| usual(&BOS_TOKENS)),
        };
        let begins = self.tokenizer["add_bos_token"] != false;
        let bos = bos.filter(|&id| begins && Some(id) != separator && !eos.contains(&id));
        let pad = match self.named(PAD_KEY, names) {
            Ok(NamedToken::Token(id)) => Some(id),
            _ => added_ids(&self.model["pad_token_id"], names).next().or_else(|| usual(&PAD_TOKENS)),
        };
        Ok(FoundTokens { bos, eos, pad })
    }

    /// Fails if the list of added tokens belongs to another tokenizer. The library transformers would add unknown
    /// tokens of this list to the tokens of `tokenizer.json` under new ids.
    fn check_added_tokens(&self, names: &Names) -> Result<(), String> {
        for (id, token) in self.tokenizer["added_tokens_decoder"].as_object().into_iter().flatten() {
            let name = token["content"].as_str().unwrap_or_default();
            let known = (names.id_of)(name);
            if known.map(|known| known.to_string()).as_ref() != Some(id) {
                let there = known.map_or_else(|| "no such token".to_owned(), |known| format!("it with the id {known}"));
                return Err(format!(
                    "tokenizer_config.json has the token {name} with the id {id} in added_tokens_decoder, and \
                     tokenizer.json has {there}: use both files from the same model"
                ));
            }
        }
        Ok(())
    }

    /// Returns the value of `key` in `tokenizer_config.json`.
    fn named(&self, key: &str, names: &Names) -> Result<NamedToken, String> {
        let name = match &self.tokenizer[key] {
            Value::Null if self.tokenizer.get(key).is_some() => return Ok(NamedToken::None),
            Value::Null => return Ok(NamedToken::Absent),
            Value::Object(token) => token.get("content").unwrap_or(&Value::Null),
            name => name,
        };
        let name = name.as_str().ok_or_else(|| format!("{key} in tokenizer_config.json is no text"))?;
        (names.id_of)(name).map(NamedToken::Token).ok_or_else(|| {
            format!(
                "tokenizer_config.json names {name} as {key}, and tokenizer.json has no such token: use both files \
                 from the same model"
            )
        })
    }
}

/// The tokens that the configurations of a tokenizer name, completed by tokens with usual names.
struct FoundTokens {
    bos: Option<u32>,
    eos: Vec<u32>,
    pad: Option<u32>,
}

enum NamedToken {
    Token(u32),
    /// The file states that there is no such token.
    None,
    /// The file does not contain the key.
    Absent,
}

/// Returns the ids in `value`, a number or a list, that belong to `added_tokens`. Other ids are left out, because a
/// configuration that keeps the default ids of its class may name ordinary words.
fn added_ids<'a>(value: &'a Value, names: &'a Names) -> impl Iterator<Item = u32> + 'a {
    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let is_added = |id: &u32| names.added.keys().any(|name| (names.id_of)(name) == Some(*id));
    list.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).filter(is_added)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The token caches of all versions have these keys, so the keys must never change.
    #[test]
    fn the_keys_of_a_record_stay_the_same() {
        let ids = SpecialTokenIds {
            bos: Some(1),
            eos: vec![2, 3],
            pad: Some(4),
            other_than_before: true,
            has_names_of_job: true,
            pad_decides_texts: true,
            all_end_documents: true,
        };
        let record = json!({"bos": 1, "eos": [2, 3], "pad": 4, "otherThanBefore": true, "hasNamesOfJob": true,
            "padDecidesTexts": true, "allEndDocuments": true});
        assert_eq!(serde_json::to_value(ids).unwrap(), record);
    }
}
