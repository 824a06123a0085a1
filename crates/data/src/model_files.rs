//! The files of a tokenizer that Hugging Face's libraries expect beside a model's weights.

use std::fs;
use std::path::Path;

use serde_json::Value;
use stagecoach_files::read_if_exists;

use crate::chat_template::{CHAT_TEMPLATE_FILE, read_template};
use crate::config::{DataConfig, TokenizerSource};
use crate::error::DataError;
use crate::named_tokens::NamedTokens;
use crate::prepared::{PreparedCorpus, TOKENIZER_FILE};
use crate::tokenizer::{TOKENIZER_CONFIG_FILE, parse_config};

const SPECIAL_TOKENS_FILE: &str = "special_tokens_map.json";

/// The names of a tokenizer's files in a model directory. All files but `tokenizer.json` may be absent.
pub const TOKENIZER_FILES: [&str; 4] = [TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, SPECIAL_TOKENS_FILE, CHAT_TEMPLATE_FILE];

/// Returns the names and contents of the tokenizer's files: `tokenizer.json`, and the files in the folder of the
/// tokenizer file that the job names. The cache does not hold the files of this folder, because jobs share the cache.
/// The template of `data.chatTemplate` replaces the template in this folder. If none of the files is a
/// `tokenizer_config.json`, the function adds one.
///
/// # Errors
/// Fails if a file can't be read.
pub fn tokenizer_files(config: &DataConfig, prepared: &PreparedCorpus) -> Result<Vec<(String, Vec<u8>)>, DataError> {
    let path = prepared.tokenizer_file(config);
    let mut files = vec![(TOKENIZER_FILE.to_owned(), fs::read(&path).map_err(DataError::io("read", &path))?)];
    if let TokenizerSource::File { path } = &config.tokenizer {
        for name in TOKENIZER_FILES.into_iter().filter(|name| *name != TOKENIZER_FILE) {
            let path = config.volume_root.join(path).with_file_name(name);
            let companion = read_if_exists(&path).map_err(DataError::io("read", &path))?;
            let with_names = companion.map(|bytes| with_named_tokens(&config.named_tokens, name, &path, bytes));
            files.extend(with_names.transpose()?.map(|bytes| (name.to_owned(), bytes)));
        }
    }
    if let Some(template) = config.conversations.template.as_ref().filter(|_| prepared.chat_template.is_some()) {
        files.retain(|(name, _)| name != CHAT_TEMPLATE_FILE);
        let template = read_template(&config.volume_root.join(template))?;
        files.push((CHAT_TEMPLATE_FILE.to_owned(), template.into_bytes()));
    }
    if files.iter().all(|(name, _)| name != TOKENIZER_CONFIG_FILE) {
        let written = format!("{:#}\n", prepared.tokenizer(config)?.config());
        files.push((TOKENIZER_CONFIG_FILE.to_owned(), written.into_bytes()));
    }
    Ok(files)
}

/// Returns `bytes`, the contents of the file `name`, with the tokens that the job names. The contents stay unchanged if
/// the job names no token, or if `name` is not a file that names tokens.
fn with_named_tokens(named: &NamedTokens, name: &str, path: &Path, bytes: Vec<u8>) -> Result<Vec<u8>, DataError> {
    let has_tokens = [TOKENIZER_CONFIG_FILE, SPECIAL_TOKENS_FILE].contains(&name);
    if !has_tokens || named.by_name().next().is_none() {
        return Ok(bytes);
    }
    let mut config = parse_config(path, &bytes)?;
    for (key, text) in named.by_name() {
        config.insert(key.to_owned(), text.into());
    }
    // a `bos` token that the job names begins each document, even if `add_bos_token` is false in the file
    if let (Some(_), Some(begins)) = (&named.bos, config.get_mut("add_bos_token")) {
        *begins = true.into();
    }
    Ok(format!("{:#}\n", Value::Object(config)).into_bytes())
}
