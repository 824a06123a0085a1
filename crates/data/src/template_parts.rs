//! The template and the special tokens with which conversations were tokenised.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The variables of special tokens that transformers gives a template.
pub(crate) const TOKEN_NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The parts of a template's hash, by which a refusal says which of them is another.
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

    /// The difference between the template here and the one that the corpus was tokenised with. Older caches have no
    /// parts.
    pub(crate) fn difference(now: Option<&TemplateParts>, recorded: Option<&TemplateParts>) -> String {
        const CORPUS: &str = "the one that the corpus was tokenised with: put that one back";
        match (now, recorded) {
            (Some(now), Some(recorded)) if now.source == recorded.source => {
                let names = TOKEN_NAMES.iter().filter(|name| text(now, name) != text(recorded, name));
                let changed =
                    names.map(|name| format!("its {name} is {}, and was {}", text(now, name), text(recorded, name)));
                format!(
                    "the chat template gets another special token than {CORPUS} ({})",
                    changed.collect::<Vec<_>>().join("; ")
                )
            }
            (Some(_), None) => format!("its chat template, or a special token that it gets, is another than {CORPUS}"),
            _ => format!("its chat template is another than {CORPUS}"),
        }
    }
}

/// The text of a special token, for people.
fn text(parts: &TemplateParts, name: &str) -> String {
    parts.special_tokens.get(name).map_or_else(|| "missing".to_owned(), |text| format!("{text:?}"))
}
