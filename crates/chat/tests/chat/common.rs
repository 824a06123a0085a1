//! Seven model families for tests: their templates, with and without generation blocks, and small tokenizers with their
//! special tokens.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stagecoach_chat::{Chat, ChatTemplate, Conversation, ConversationError, TemplateSettings, Tokens, Vocabulary};
use tokenizers::Tokenizer;

use crate::tokenizers::{byte_level, with_metaspace};

pub const FAMILIES: [&str; 7] = ["chatml", "gemma", "llama3", "mistral", "phi3", "qwen2.5", "qwen3"];

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The tokenizer of a family, and the texts of the special tokens that the family's template may name.
pub struct TokenizerFamily {
    pub name: &'static str,
    pub definition: Value,
    pub named: Value,
}

pub fn family(name: &'static str) -> TokenizerFamily {
    let special = |tokens: &[&str]| tokens.iter().map(|token| (token.to_string(), "special")).collect::<Vec<_>>();
    let mut chatml = special(&["<|endoftext|>", "<|im_start|>", "<|im_end|>"]);
    let (definition, named) = match name {
        "chatml" => (byte_level(None, false, &chatml), json!({"eos_token": "<|im_end|>"})),
        "llama3" => {
            let tokens =
                ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"];
            (
                byte_level(Some(LLAMA_3), true, &special(&tokens)),
                json!({"bos_token": tokens[0], "eos_token": tokens[3]}),
            )
        }
        "qwen2.5" | "qwen3" => {
            let thoughts =
                ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"];
            chatml.extend(thoughts.map(|token| (token.to_owned(), "ordinary")));
            let pattern = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}");
            (
                byte_level(Some(&pattern), false, &chatml),
                json!({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}),
            )
        }
        "gemma" => {
            let tokens = special(&["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]);
            let normalizer = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
            let split =
                json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
            (with_metaspace(normalizer, split, &tokens), json!({"bos_token": "<bos>", "eos_token": "<eos>"}))
        }
        "mistral" => {
            let tokens = special(&["<s>", "</s>", "[INST]", "[/INST]"]);
            let first = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
            (with_metaspace(Value::Null, first, &tokens), json!({"bos_token": "<s>", "eos_token": "</s>"}))
        }
        _ => {
            let mut tokens = special(&["<s>", "<|endoftext|>"]);
            let roles = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"];
            tokens.extend(roles.map(|token| (token.to_owned(), "strips right")));
            let space = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
            let normalizer = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]});
            (
                with_metaspace(normalizer, Value::Null, &tokens),
                json!({"bos_token": "<s>", "eos_token": "<|endoftext|>"}),
            )
        }
    };
    TokenizerFamily { name, definition, named }
}

impl TokenizerFamily {
    pub fn tokenizer(&self) -> Tokenizer {
        Tokenizer::from_bytes(serde_json::to_vec(&self.definition).unwrap()).unwrap()
    }

    pub fn template(&self, has_generation: bool) -> String {
        let suffix = if has_generation { "-generation" } else { "" };
        std::fs::read_to_string(templates().join(format!("{}{suffix}.jinja", self.name))).unwrap()
    }

    pub fn settings(&self) -> TemplateSettings {
        let named: BTreeMap<String, String> = serde_json::from_value(self.named.clone()).unwrap();
        TemplateSettings {
            date: Some("2026-07-04".parse().unwrap()),
            special_tokens: named,
            ..TemplateSettings::default()
        }
    }

    pub fn chat(&self, has_generation: bool) -> Chat {
        chat(&self.template(has_generation), self.settings(), &self.tokenizer())
    }
}

pub fn templates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat/templates")
}

pub fn chat(template: &str, settings: TemplateSettings, tokenizer: &Tokenizer) -> Chat {
    Chat::new(Some(ChatTemplate::new(template, settings).unwrap()), Vocabulary::new(tokenizer).unwrap())
}

/// Returns a conversation from the role and the content of each message.
pub fn conversation(turns: &[(&str, &str)]) -> Conversation {
    Conversation::chat(&record(turns)).unwrap()
}

pub fn record(turns: &[(&str, &str)]) -> Value {
    let messages = turns.iter().map(|(role, content)| json!({"role": role, "content": content}));
    json!({"messages": messages.collect::<Vec<_>>()})
}

/// Returns the text of all tokens, and the text of each run of tokens that are trained on.
pub fn spelled(tokenizer: &Tokenizer, tokens: &Tokens) -> (String, Vec<String>) {
    let text = |ids: &[u32]| tokenizer.decode(ids, false).unwrap();
    let pairs: Vec<(u32, bool)> = tokens.ids.iter().copied().zip(tokens.trained.iter().copied()).collect();
    let runs = pairs.chunk_by(|one, next| one.1 == next.1).filter(|run| run[0].1);
    let runs = runs.map(|run| text(&run.iter().map(|pair| pair.0).collect::<Vec<_>>())).collect();
    (text(&tokens.ids), runs)
}

/// Returns the number of the turn at which a conversation is refused, and the reason.
pub fn unproven(refused: Result<Tokens, ConversationError>) -> (usize, String) {
    match refused {
        Err(ConversationError::Unproven { turn, problem }) => (turn.number, problem),
        other => panic!("{other:?}"),
    }
}
