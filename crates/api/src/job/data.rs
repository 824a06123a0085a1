//! `spec.data`: the corpus, the tokenizer, and how text becomes sequences.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::object_name::object_name_rules;
use super::path::{ModelPath, SourcePath, VolumePath};
use super::source::SourceName;
use super::{CacheSpec, DataSource, OnExhausted, StreamingSpec, default_number, default_true};
use crate::string_enum::Payload;

/// The corpus, and its division into sequences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataSpec {
    /// Files or globs (`**` too): paths relative to the volume's root, `hf://datasets/OWNER/NAME[@REVISION]/GLOB` for
    /// files of the Hugging Face hub, or `s3://BUCKET/GLOB`, `gs://BUCKET/GLOB` and `az://CONTAINER/GLOB` for files of
    /// object stores. The extension of a file selects its format. Either this or `sources`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "Option<Vec<SourcePath>>",
        length(min = 1, max = 1000),
        extend("x-expected" = "name at least one file or glob")
    )]
    pub paths: Option<Vec<String>>,
    /// The parts of a mixture, each with its share of the sequences. Either this or `paths`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 32),
        extend("x-expected" = "name at least one source", "x-kubernetes-validations" = [
            {
                "rule": "self.all(one, self.exists_one(other, other.name == one.name))",
                "message": "has two sources of one name: give each a name of its own",
            },
            {
                "rule": "self.exists(source, source.weight > 0)",
                "message": "has no weight above 0 from step 1 on: nothing would be left to train on",
            },
        ])
    )]
    pub sources: Option<Vec<DataSource>>,
    /// Environment variables for sources outside the volume, such as `HF_TOKEN`: in a cluster, for stage 0 of each
    /// replica and for spares. On one machine the trainer has the shell's variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<CredentialsSpec>,
    /// The content of the records: texts, or conversations of which only some tokens are trained on.
    #[serde(default)]
    pub format: DataFormat,
    /// A file with a chat template in Jinja, which replaces the template of the tokenizer's model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<VolumePath>")]
    pub chat_template: Option<String>,
    /// The date that a chat template writes if it asks for today's date, as YYYY-MM-DD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 10),
        extend("x-kubernetes-validations" = [{
            "rule": "self.matches('^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$')",
            "message": "is no date: write it as YYYY-MM-DD",
        }])
    )]
    pub chat_date: Option<String>,
    /// The treatment of a conversation that is longer than a training sequence.
    #[serde(default)]
    pub on_long_conversation: OnLongConversation,
    /// The field or column that holds the text, in files that have fields or columns.
    #[serde(default = "text_field")]
    #[schemars(length(min = 1), extend("x-expected" = "name the field or column that holds the text"))]
    pub text_field: String,
    /// Whether text that looks like a special token of the tokenizer, such as `<|im_start|>`, is that token.
    #[serde(default)]
    pub special_tokens: SpecialTokens,
    /// The treatment of a record that has no text: without the field, with null, with invalid JSON or invalid UTF-8.
    #[serde(default)]
    pub on_bad_record: OnBadRecord,
    /// The number of tokens of a training sequence.
    #[schemars(
        range(min = 2),
        extend("x-expected" = "a sequence needs at least 2 tokens, one to read and one to predict")
    )]
    pub sequence_length: u32,
    /// Whether documents follow one another in full sequences. If false, each document has padded sequences of its own.
    #[serde(default = "default_true")]
    pub packing: bool,
    /// Training while the corpus is read: it begins with the first window of sequences, not once the whole corpus is
    /// tokenised. Absent: the mode is `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streaming: Option<StreamingSpec>,
    /// The tokens of a stream that the volume keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheSpec>,
    /// The held-out part of the corpus, and its evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<EvaluationSpec>,
    /// The source of the tokenizer.
    pub tokenizer: TokenizerSpec,
}

/// A Secret in the job's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CredentialsSpec {
    /// The Secret's name. Each of its keys becomes an environment variable.
    #[schemars(
        length(min = 1, max = 253),
        extend("x-expected" = "name a Secret in the job's namespace", "x-kubernetes-validations" = object_name_rules("Secret"))
    )]
    pub secret_name: String,
}

string_enum! {
    /// The content of records.
    #[derive(Default)]
    pub enum DataFormat {
        /// A text in `textField`, or the text of a whole file.
        #[default]
        Text = "Text",
        /// A `prompt` with its `completion`, both of them texts or both of them lists of messages. The completion is
        /// trained on.
        PromptCompletion = "PromptCompletion",
        /// A conversation in `messages`, with `tools` if the template uses them. The assistant's messages are trained
        /// on.
        Chat = "Chat",
    }
}

string_enum! {
    /// The treatment of a conversation that is longer than a training sequence.
    #[derive(Default)]
    pub enum OnLongConversation {
        /// The job fails and names the conversation.
        #[default]
        Fail = "Fail",
        /// The conversation is cut at the end of the last turn that fits.
        Truncate = "Truncate",
        /// The conversation is left out and counted.
        Skip = "Skip",
    }
}

string_enum! {
    /// The meaning of text that looks like a special token.
    #[derive(Default)]
    pub enum SpecialTokens {
        /// The text stays text, so that a document can't forge a token. Documents still begin and end with special
        /// tokens.
        #[default]
        Text = "Text",
        /// The text becomes the token, as in texts that a chat template wrote.
        Parse = "Parse",
    }
}

string_enum! {
    /// The treatment of a record that has no text.
    #[derive(Default)]
    pub enum OnBadRecord {
        /// The job fails and names the record.
        #[default]
        Fail = "Fail",
        /// The record is left out, and counted by file and reason.
        Skip = "Skip",
    }
}

/// The held-out part of the corpus, and its evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvaluationSpec {
    /// The share of the documents of each source that is held out, drawn by seed and content. Absent: 0.01 if neither
    /// `paths` nor `sets` is given, otherwise 0. Either this or `paths`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "minimum" = 0, "exclusiveMinimum" = true, "maximum" = 1, "exclusiveMaximum" = true,
            "x-expected" = "the held-out share lies above 0 and below 1 (remove `evaluation` to hold nothing out)"
        )
    )]
    pub fraction: Option<f64>,
    /// Files that are held out as a whole: files or globs, as in `data.paths`. Either this or `fraction`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "Option<Vec<SourcePath>>",
        length(min = 1, max = 1000),
        extend("x-expected" = "name at least one file or glob")
    )]
    pub paths: Option<Vec<String>>,
    /// Further held-out sets, each with a curve of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-validations" = [{
            "rule": "self.all(one, self.exists_one(other, other.name == one.name))",
            "message": "has two sets of one name: give each a name of its own",
        }])
    )]
    pub sets: Vec<EvaluationSet>,
    /// Steps between two evaluations.
    #[serde(default = "default_number::<100>")]
    #[schemars(range(min = 1))]
    pub every_steps: u32,
    /// Sequences of each set that an evaluation reads at most; absent: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_sequences: Option<u32>,
    /// Whether the checkpoint with the lowest held-out loss is kept, besides those of `checkpoint.keepLast`. The loss
    /// is that of `fraction` or `paths`, or of the first of `sets` if neither is given.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_best: bool,
    /// Evaluations in a row without a lower held-out loss after which the job ends; absent: it trains all steps.
    /// The loss is the one that `keepBest` follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub patience: Option<u32>,
}

/// A held-out set with a curve of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvaluationSet {
    /// The name of the set, for messages and metrics: lower-case letters, digits and `-`.
    #[schemars(with = "SourceName", extend("x-expected" = "name the set"))]
    pub name: String,
    /// Files or globs, as in `data.paths`.
    #[schemars(
        with = "Vec<SourcePath>",
        length(min = 1, max = 100),
        extend("x-expected" = "name at least one file or glob")
    )]
    pub paths: Vec<String>,
    /// The content of the records. Absent: `data.format`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<DataFormat>,
    /// The field or column that holds the text. Absent: `data.textField`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1), extend("x-expected" = "name the field or column that holds the text"))]
    pub text_field: Option<String>,
}

union! {
    /// The source of the tokenizer.
    pub enum TokenizerSpec (TokenizerTag, TokenizerFields) {
        /// A byte-level BPE trained on the corpus itself.
        Train = "Train" { train as "train": TokenizerTrainingSpec }
        /// A `tokenizer.json`.
        File = "File" { file as "file": TokenizerFile }
    }
}

/// A tokenizer that stage 0 trains on the corpus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenizerTrainingSpec {
    /// The size of the vocabulary, including special tokens.
    #[schemars(range(min = 259), extend("x-expected" = "256 bytes and 3 special tokens make 259 tokens the least"))]
    pub vocab_size: u32,
}

/// A tokenizer in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenizerFile {
    /// The `tokenizer.json`, relative to the volume's root, or `hf://OWNER/NAME[@REVISION]/tokenizer.json` for that of
    /// a model of the Hugging Face hub.
    #[schemars(with = "ModelPath")]
    pub path: String,
    /// The text of the token that begins each document, such as `<s>`. Absent: the token that the files beside the
    /// tokenizer name, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), extend("x-expected" = "name a token of the tokenizer"))]
    pub bos: Option<String>,
    /// The text of the token that ends each document, such as `<|im_end|>`. Absent: the token that the files beside the
    /// tokenizer name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), extend("x-expected" = "name a token of the tokenizer"))]
    pub eos: Option<String>,
    /// The text of the token that pads rows, such as `<pad>`. Absent: the token that the files beside the tokenizer
    /// name, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), extend("x-expected" = "name a token of the tokenizer"))]
    pub pad: Option<String>,
}

impl DataSpec {
    /// The sources. The files of `paths` are one source without a name.
    pub fn all_sources(&self) -> Vec<DataSource> {
        let unnamed = self.paths.iter().map(|paths| DataSource {
            name: String::new(),
            paths: paths.clone(),
            format: None,
            text_field: None,
            weight: 1,
            weight_schedule: Vec::new(),
            on_exhausted: OnExhausted::Repeat,
        });
        unnamed.chain(self.sources.iter().flatten().cloned()).collect()
    }

    /// The formats of the sources and of the held-out sets, and the format of those that give none.
    pub(crate) fn formats(&self) -> impl Iterator<Item = DataFormat> {
        let sources = self.sources.iter().flatten().filter_map(|source| source.format);
        let sets = self.evaluation.iter().flat_map(|evaluation| &evaluation.sets).filter_map(|set| set.format);
        sources.chain(sets).chain([self.format])
    }

    /// Whether a source or a held-out set has conversations.
    pub fn has_conversations(&self) -> bool {
        self.formats().any(|format| format != DataFormat::Text)
    }

    /// All patterns, those of held-out files included, each with its place, such as `spec.data.paths[0]`.
    pub(crate) fn patterns(&self) -> Vec<(String, &str)> {
        let evaluation = self.evaluation.as_ref();
        let plain = self.paths.iter().map(|paths| ("spec.data".to_owned(), paths));
        let sources = self.sources.iter().flatten().enumerate();
        let source_paths = sources.map(|(index, source)| (format!("spec.data.sources[{index}]"), &source.paths));
        let held_out = evaluation.and_then(|evaluation| evaluation.paths.as_ref());
        let held_out = held_out.map(|paths| ("spec.data.evaluation".to_owned(), paths));
        let sets = evaluation.into_iter().flat_map(|evaluation| &evaluation.sets).enumerate();
        let set_paths = sets.map(|(index, set)| (format!("spec.data.evaluation.sets[{index}]"), &set.paths));
        let mut patterns = Vec::new();
        for (at, paths) in plain.chain(source_paths).chain(held_out).chain(set_paths) {
            let pattern = |(index, pattern): (usize, _)| (format!("{at}.paths[{index}]"), String::as_str(pattern));
            patterns.extend(paths.iter().enumerate().map(pattern));
        }
        patterns
    }
}

impl EvaluationSpec {
    /// The share of the documents of each source that is held out: 0 if only whole files are.
    pub fn held_out_fraction(&self) -> f64 {
        self.fraction.unwrap_or_else(|| self.default_fraction())
    }

    pub(crate) fn default_fraction(&self) -> f64 {
        if self.paths.is_none() && self.sets.is_empty() { 0.01 } else { 0.0 }
    }
}

impl Payload for TokenizerTrainingSpec {}
impl Payload for TokenizerFile {}

fn text_field() -> String {
    "text".into()
}
