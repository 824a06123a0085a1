//! The chat template of a model, from the files beside its tokenizer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::civil::Date;
use serde_json::Value;
use stagecoach_chat::{Chat, ChatTemplate, SetupError, TemplateSettings, Vocabulary};
use stagecoach_files::read_if_exists;

use crate::config::{ConversationConfig, DataConfig, DocumentFormat};
use crate::conversations::ConversationEncoder;
use crate::error::DataError;
use crate::template_parts::{TOKEN_NAMES, TemplateParts};
use crate::tokenizer::{TOKENIZER_CONFIG_FILE, Tokenizer, read_config};

/// The name of the template's file beside a tokenizer.
pub(crate) const CHAT_TEMPLATE_FILE: &str = "chat_template.jinja";

/// The version of the rendering of conversations. Caches of other versions have other tokens for some conversations.
const RENDERING_VERSION: u32 = 2;

/// Returns whether [`read_chat`] finds a chat template beside the tokenizer file.
///
/// # Errors
/// Fails if a file can't be read.
pub fn has_chat_template(tokenizer: &Path) -> Result<bool, DataError> {
    let config = read_config(&tokenizer.with_file_name(TOKENIZER_CONFIG_FILE))?;
    Ok(template_source(tokenizer, &config)?.is_some())
}

/// Returns the encoder of conversations for `tokenizer`, with the chat template of its model, or `None` if the model
/// has no template. The template is in `chat_template.jinja`, or in the field `chat_template` of
/// `tokenizer_config.json`. Templates that write a date use `date`.
///
/// # Errors
/// Fails if a file can't be read, or if the template or the tokenizer can't be used for conversations.
pub fn read_chat(tokenizer: &Tokenizer, date: Option<Date>) -> Result<Option<Chat>, DataError> {
    let config = read_config(&tokenizer.path().with_file_name(TOKENIZER_CONFIG_FILE))?;
    let Some((source, place)) = template_source(tokenizer.path(), &config)? else { return Ok(None) };
    chat(tokenizer, Some((&source, &place)), special_tokens(tokenizer, &config), date).map(Some)
}

/// Returns the tokenizer, with an encoder of conversations if the corpus has conversations.
///
/// # Errors
/// Fails if a file can't be read, if conversations need a template and none exists, or if the template or the tokenizer
/// can't be used for conversations.
pub(crate) fn with_conversations(mut tokenizer: Tokenizer, config: &DataConfig) -> Result<Tokenizer, DataError> {
    if config.formats().all(|format| format == DocumentFormat::Text) {
        return Ok(tokenizer);
    }
    let ConversationConfig { template, date, on_long } = &config.conversations;
    let beside = read_config(&tokenizer.path().with_file_name(TOKENIZER_CONFIG_FILE))?;
    let source = match template {
        Some(path) => {
            let path = config.volume_root.join(path);
            Some((read_template(&path)?, path))
        }
        None => template_source(tokenizer.path(), &beside)?,
    };
    if source.is_none() && config.formats().any(|format| format == DocumentFormat::Chat) {
        let problem = "it has no chat template: add chat_template.jinja beside it, or give one with data.chatTemplate";
        return Err(DataError::Tokenizer { path: tokenizer.path().to_owned(), problem: problem.into() });
    }
    let source = source.as_ref().map(|(source, place)| (source.as_str(), place.as_path()));
    let text = source.map(|(source, _)| source);
    let names = special_tokens(&tokenizer, &beside);
    let template_hash = blake3::hash(format!("{text:?}\n{names:?}").as_bytes()).to_hex().to_string();
    let template_parts = TemplateParts::of(text.unwrap_or_default(), &names);
    let date_name = date.map(|date| date.to_string());
    tokenizer.conversations = Some(Arc::new(ConversationEncoder {
        chat: chat(&tokenizer, source, names, *date)?,
        bos: tokenizer.special_tokens().bos,
        eos: tokenizer.require_eos_token()?,
        max_tokens: config.sequence_length + 1,
        on_long: *on_long,
        on_bad: config.on_bad_record,
        lossy_encoding: tokenizer.lossy_encoding().clone(),
        key: format!("{RENDERING_VERSION} {template_hash} {date_name:?} {on_long:?} {}", config.sequence_length),
        template_hash,
        template_parts,
    }));
    Ok(tokenizer)
}

/// Returns the encoder of conversations for `tokenizer`. `template` is the source text of the chat template, if there
/// is one, and the file that contains this text.
fn chat(
    tokenizer: &Tokenizer,
    template: Option<(&str, &Path)>,
    special_tokens: BTreeMap<String, String>,
    date: Option<Date>,
) -> Result<Chat, DataError> {
    let failed =
        |error: SetupError| DataError::Tokenizer { path: tokenizer.path().to_owned(), problem: error.to_string() };
    let settings = TemplateSettings { date, special_tokens, ..TemplateSettings::default() };
    let compiled = |(source, place): (&str, &Path)| {
        ChatTemplate::new(source, settings)
            .map_err(|error| DataError::Invalid { problem: format!("{}: {error}", place.display()) })
    };
    let template = template.map(compiled).transpose()?;
    let vocabulary = Vocabulary::new(tokenizer.library()).map_err(failed)?;
    Ok(Chat::new(template, vocabulary))
}

/// Reads the template from the file that the job names.
///
/// # Errors
/// Fails if the file can't be read or is not UTF-8.
pub(crate) fn read_template(path: &Path) -> Result<String, DataError> {
    let bytes = read_if_exists(path).map_err(DataError::io("read", path))?;
    let problem = |what: &str| DataError::Invalid { problem: format!("data.chatTemplate: {} {what}", path.display()) };
    let bytes = bytes.ok_or_else(|| problem("does not exist: the path starts at the volume's root"))?;
    String::from_utf8(bytes).map_err(|_| problem("is not UTF-8: write it again"))
}

/// Returns the source text of the model's template and the file that contains it, or `None` if the model has no
/// template. A model with several templates uses the template named `default`.
fn template_source(tokenizer: &Path, config: &Value) -> Result<Option<(String, PathBuf)>, DataError> {
    let path = tokenizer.with_file_name(CHAT_TEMPLATE_FILE);
    let problem = |problem: &str| DataError::Tokenizer { path: path.clone(), problem: problem.to_owned() };
    if let Some(bytes) = read_if_exists(&path).map_err(DataError::io("read", &path))? {
        let source = String::from_utf8(bytes).map_err(|_| problem("it is not UTF-8: write it again"))?;
        return Ok(Some((source, path)));
    }
    let source = match &config["chat_template"] {
        Value::String(source) => Some(source.as_str()),
        Value::Array(all) => {
            let default = all.iter().find(|entry| entry["name"] == "default");
            default.and_then(|entry| entry["template"].as_str())
        }
        _ => None,
    };
    Ok(source.map(|source| (source.to_owned(), tokenizer.with_file_name(TOKENIZER_CONFIG_FILE))))
}

/// Returns the texts of special tokens, keyed by the names of the template's variables, such as `eos_token`. A token
/// that the job names overrides the token of `tokenizer_config.json`, which overrides the token of the tokenizer.
fn special_tokens(tokenizer: &Tokenizer, config: &Value) -> BTreeMap<String, String> {
    let own = tokenizer.special_tokens().by_name();
    let own = own.filter_map(|(name, id)| Some((name.to_owned(), tokenizer.library().id_to_token(id)?)));
    let named = TOKEN_NAMES.iter().filter_map(|name| {
        let text = config[name].as_str().or_else(|| config[name]["content"].as_str())?;
        Some(((*name).to_owned(), text.to_owned()))
    });
    let job_tokens = tokenizer.named_tokens().by_name().map(|(name, text)| (name.to_owned(), text.to_owned()));
    own.chain(named).chain(job_tokens).collect()
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
