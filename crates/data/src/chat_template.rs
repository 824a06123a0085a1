//! The chat template of a model, from the files beside its tokenizer.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::civil::Date;
use serde_json::Value;
use stagecoach_chat::{Chat, ChatTemplate, Settings, Vocabulary};
use stagecoach_files::read_if_exists;

use crate::error::DataError;
use crate::model_files::CHAT_TEMPLATE_FILE;
use crate::tokenizer::{TOKENIZER_CONFIG_FILE, Tokenizer, read_config};

/// The variables of special tokens that transformers gives a template.
const TOKEN_NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A tokenizer with the chat template of its model: `chat_template.jinja`, or `chat_template` of
/// `tokenizer_config.json`. `date` is the date for templates that write one. `None` for a model without a template.
///
/// # Errors
/// Fails if a file can't be read, or if the template or the tokenizer can't be used for conversations.
pub fn read_chat(tokenizer: &Tokenizer, date: Option<Date>) -> Result<Option<Chat>, DataError> {
    let config = read_config(&tokenizer.path().with_file_name(TOKENIZER_CONFIG_FILE))?;
    let failed = |error: stagecoach_chat::SetupError| DataError::Tokenizer {
        path: tokenizer.path().to_owned(),
        problem: error.to_string(),
    };
    let Some(source) = template_source(tokenizer.path(), &config)? else { return Ok(None) };
    let settings = Settings { date, special_tokens: special_tokens(tokenizer, &config), ..Settings::default() };
    let template = ChatTemplate::new(&source, settings).map_err(failed)?;
    let vocabulary = Vocabulary::new(tokenizer.library()).map_err(failed)?;
    Ok(Some(Chat::new(Some(template), vocabulary)))
}

/// The source of the template; `None` if the model has none. A model with several templates uses the template named
/// `default`.
fn template_source(tokenizer: &Path, config: &Value) -> Result<Option<String>, DataError> {
    let path = tokenizer.with_file_name(CHAT_TEMPLATE_FILE);
    let problem = |problem: &str| DataError::Tokenizer { path: path.clone(), problem: problem.to_owned() };
    if let Some(bytes) = read_if_exists(&path).map_err(DataError::io("read", &path))? {
        return String::from_utf8(bytes).map(Some).map_err(|_| problem("it is not UTF-8: write it again"));
    }
    Ok(match &config["chat_template"] {
        Value::String(source) => Some(source.clone()),
        Value::Array(all) => {
            let default = all.iter().find(|entry| entry["name"] == "default");
            default.and_then(|entry| entry["template"].as_str()).map(str::to_owned)
        }
        _ => None,
    })
}

/// The texts of special tokens by the names of their variables. The tokenizer supplies the names that the configuration
/// lacks, and the job's own names come before all.
fn special_tokens(tokenizer: &Tokenizer, config: &Value) -> BTreeMap<String, String> {
    let own = tokenizer.special_tokens().by_name();
    let own = own.filter_map(|(name, id)| Some((name.to_owned(), tokenizer.library().id_to_token(id)?)));
    let named = TOKEN_NAMES.iter().filter_map(|name| {
        let text = config[name].as_str().or_else(|| config[name]["content"].as_str())?;
        Some(((*name).to_owned(), text.to_owned()))
    });
    let of_job = tokenizer.named_tokens().by_name().map(|(name, text)| (name.to_owned(), text.to_owned()));
    own.chain(named).chain(of_job).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::named_tokens::NamedTokens;

    #[test]
    fn a_template_gets_the_tokens_of_the_job_then_of_the_files_then_of_the_tokenizer() {
        let folder = tempfile::tempdir().unwrap();
        let special = |id: u32, content: &str| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
        let tokenizer = json!({
            "version": "1.0", "added_tokens": [special(0, "<s>"), special(1, "</s>"), special(2, "<end>")],
            "model": {"type": "WordLevel", "vocab": {"<s>": 0, "</s>": 1, "<end>": 2}, "unk_token": "<s>"},
        });
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, tokenizer.to_string()).unwrap();
        let config = json!({"eos_token": {"content": "</s>"}, "unk_token": "<s>"});
        let texts = |eos: Option<&str>| {
            let named = NamedTokens { eos: eos.map(str::to_owned), ..NamedTokens::default() };
            let (tokenizer, _) = Tokenizer::read(&path, false, &named).unwrap();
            let texts = special_tokens(&tokenizer, &config);
            ["bos_token", "eos_token", "unk_token"].map(|name| texts[name].clone())
        };
        assert_eq!(texts(None), ["<s>", "</s>", "<s>"]);
        assert_eq!(texts(Some("<end>")), ["<s>", "<end>", "<s>"]);
    }
}
