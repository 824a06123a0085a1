//! `spec.data.tokenizer`: the source of the tokenizer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::path::ModelPath;
use crate::string_enum::Payload;

union! {
    /// The source of the tokenizer.
    pub enum TokenizerSpec (TokenizerTag, TokenizerFields) {
        /// A byte-level BPE trained on the corpus itself.
        Train = "Train" { train as "train": TokenizerTrainingSpec }
        /// A `tokenizer.json`.
        File = "File" { file as "file": TokenizerFile }
    }
}

/// A tokenizer that the leader, a stage 0, trains on the corpus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenizerTrainingSpec {
    /// The size of the vocabulary, including special tokens.
    #[schemars(range(min = 259), extend("x-expected" = "a vocabulary has at least 259 tokens: 256 bytes and 3 \
                                                        special tokens"))]
    pub vocab_size: u32,
}

/// A tokenizer in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenizerFile {
    /// The path of the `tokenizer.json`, relative to the volume's root, or `hf://OWNER/NAME[@REVISION]/tokenizer.json`
    /// for the tokenizer of a model of the Hugging Face hub.
    #[schemars(with = "ModelPath")]
    pub path: String,
    /// The text of the token that begins each document, such as `<s>`. Defaults to the token that is named in the files
    /// beside the tokenizer, or else to a special token with a usual name. If there is no such token, documents begin
    /// without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), extend("x-expected" = "name a token of the tokenizer"))]
    pub bos: Option<String>,
    /// The text of the token that ends each document, such as `<|im_end|>`. Defaults to the tokens that are named in
    /// the files beside the tokenizer, or else to a special token with a usual name. If there is no such token, the job
    /// fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), extend("x-expected" = "name a token of the tokenizer"))]
    pub eos: Option<String>,
    /// The text of the token that pads rows, such as `<pad>`. Defaults to the token that is named in the files beside
    /// the tokenizer, or else to a special token with a usual name. If there is no such token, the token of `eos` pads
    /// rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), extend("x-expected" = "name a token of the tokenizer"))]
    pub pad: Option<String>,
}

impl Payload for TokenizerTrainingSpec {}
impl Payload for TokenizerFile {}
