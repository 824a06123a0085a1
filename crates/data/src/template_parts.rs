//! The template and the special tokens with which conversations were tokenised.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The names of the variables for special tokens that the library transformers passes to a template.
pub(crate) const TOKEN_NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The inputs of the hash of a chat template. If the hash has changed, an error message names the inputs that differ.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TemplateParts {
    /// The hash of the template's text.
    source: String,
    /// The texts of special tokens by the names of their variables.
    special_tokens: BTreeMap<String, String>,
}

impl TemplateParts {
    pub(crate) fn of(source: &str, special_tokens: &BTreeMap<String, String>) -> TemplateParts {
        let source = blake3::hash(source.as_bytes()).to_hex().to_string();
        TemplateParts { source, special_tokens: special_tokens.clone() }
    }

    /// Returns a message about the difference between the template `now` and the template with which the corpus was
    /// tokenised. Caches of older versions record no parts.
    pub(crate) fn difference(now: Option<&TemplateParts>, recorded: Option<&TemplateParts>) -> String {
        const OTHER: &str = "is not the one with which the corpus was tokenised: restore that one";
        match (now, recorded) {
            (Some(now), Some(recorded)) if now.source == recorded.source => {
                let names = TOKEN_NAMES.iter().filter(|name| text(now, name) != text(recorded, name));
                let changed =
                    names.map(|name| format!("its {name} is {}, and was {}", text(now, name), text(recorded, name)));
                format!("a special token of the chat template {OTHER} ({})", changed.collect::<Vec<_>>().join("; "))
            }
            (Some(_), None) => format!("its chat template, or a special token of the template, {OTHER}"),
            _ => format!("its chat template {OTHER}"),
        }
    }
}

/// Returns the text of a special token as messages show it.
fn text(parts: &TemplateParts, name: &str) -> String {
    parts.special_tokens.get(name).map_or_else(|| "missing".to_owned(), |text| format!("{text:?}"))
}
