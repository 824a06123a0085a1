//! The tokenizer's files that belong to a model, as Hugging Face's libraries expect them beside its weights.

use std::fs;
use std::io::ErrorKind;

use crate::config::{DataConfig, TokenizerSource};
use crate::error::DataError;
use crate::prepared::{PreparedCorpus, TOKENIZER_FILE};
use crate::tokenizer::Tokenizer;

const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";

/// Files beside a given `tokenizer.json` that belong to it.
const COMPANIONS: [&str; 3] = [TOKENIZER_CONFIG_FILE, "special_tokens_map.json", "chat_template.jinja"];

/// Names and contents of the tokenizer's files: `tokenizer.json`, and what is beside the job's own one. The cache is shared by jobs, and so has no
/// part in what is beside it.
///
/// # Errors
/// A file can't be read.
pub fn tokenizer_files(config: &DataConfig, prepared: &PreparedCorpus) -> Result<Vec<(String, Vec<u8>)>, DataError> {
    let path = prepared.tokenizer_file(config);
    let mut files = vec![(TOKENIZER_FILE.to_owned(), fs::read(&path).map_err(DataError::io("read", &path))?)];
    if let TokenizerSource::File { path } = &config.tokenizer {
        for name in COMPANIONS {
            let path = config.volume_root.join(path).with_file_name(name);
            match fs::read(&path) {
                Ok(bytes) => files.push((name.to_owned(), bytes)),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(DataError::io("read", path)(error)),
            }
        }
    }
    if files.iter().all(|(name, _)| name != TOKENIZER_CONFIG_FILE) {
        let written = format!("{:#}\n", Tokenizer::of(config, prepared)?.config());
        files.push((TOKENIZER_CONFIG_FILE.to_owned(), written.into_bytes()));
    }
    Ok(files)
}
