//! `spec.data`: the corpus, and how text becomes sequences.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::object_name::object_name_rules;
use super::path::{SourcePath, VolumePath};
use super::{CacheSpec, DataSource, EvaluationSpec, OnExhausted, StreamingSpec, TokenizerSpec, default_true};

/// The corpus, and its division into sequences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataSpec {
    /// The files of the corpus, as paths or globs. A glob may contain `**`. An entry is a path relative to the volume's
    /// root, `hf://datasets/OWNER/NAME[@REVISION]/GLOB` for files of the Hugging Face hub, or `s3://BUCKET/GLOB`,
    /// `gs://BUCKET/GLOB` or `az://CONTAINER/GLOB` for files of object stores. The extension of a file selects its
    /// format. Mutually exclusive with `sources`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "Option<Vec<SourcePath>>",
        length(min = 1, max = 1000),
        extend("x-expected" = "name at least one file or glob")
    )]
    pub paths: Option<Vec<String>>,
    /// The parts of a mixture, each with its share of the sequences. Mutually exclusive with `paths`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 32),
        extend("x-expected" = "name at least one source", "x-kubernetes-validations" = [
            {
                "rule": "self.all(one, self.exists_one(other, other.name == one.name))",
                "message": "has two sources with the same name: give each a unique name",
            },
            {
                "rule": "self.exists(source, source.weight > 0)",
                "message": "every source has weight 0 from step 1 on: give at least one source a weight above 0",
            },
        ])
    )]
    pub sources: Option<Vec<DataSource>>,
    /// A Secret with environment variables for sources outside the volume, such as `HF_TOKEN`. In a cluster, stage 0 of
    /// each replica and the spares get the variables. On one machine, the trainer inherits the variables of the shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<CredentialsSpec>,
    /// The content of the records: texts, or conversations of which only some tokens count in the loss.
    #[serde(default)]
    pub format: DataFormat,
    /// The file with the chat template in Jinja, relative to the volume's root. Defaults to the chat template in the
    /// files beside the tokenizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<VolumePath>")]
    pub chat_template: Option<String>,
    /// The date, as YYYY-MM-DD, that a chat template gets when it asks for today's date. If unset, the job fails if the
    /// template asks for the date.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 10),
        extend("x-kubernetes-validations" = [{
            "rule": "self.matches('^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$')",
            "message": "is no date: write it as YYYY-MM-DD",
        }])
    )]
    pub chat_date: Option<String>,
    /// The action for a conversation that is longer than a training sequence.
    #[serde(default)]
    pub on_long_conversation: OnLongConversation,
    /// The field or column that holds the text, in files that have fields or columns.
    #[serde(default = "text_field")]
    #[schemars(length(min = 1), extend("x-expected" = "name the field or column that holds the text"))]
    pub text_field: String,
    /// Whether text that looks like a special token of the tokenizer, such as `<|im_start|>`, becomes that token.
    #[serde(default)]
    pub special_tokens: SpecialTokens,
    /// The action for a record that has no text. A record has no text if its field is missing or null, or if the record
    /// is not valid JSON or UTF-8.
    #[serde(default)]
    pub on_bad_record: OnBadRecord,
    /// The number of tokens in a training sequence.
    #[schemars(
        range(min = 2),
        extend("x-expected" = "a sequence needs at least 2 tokens, one to read and one to predict")
    )]
    pub sequence_length: u32,
    /// Whether the job fills each sequence with consecutive documents. If false, each document begins a new sequence,
    /// and its last sequence is padded.
    #[serde(default = "default_true")]
    pub packing: bool,
    /// The streaming of the corpus. A job that streams begins to train when it has tokenised the first window of
    /// sequences. Any other job tokenises the whole corpus first. If unset, the mode is Auto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streaming: Option<StreamingSpec>,
    /// The cache for the tokens of a streamed corpus, on the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheSpec>,
    /// The held-out part of the corpus, and its evaluation. If unset, the job holds out no data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<EvaluationSpec>,
    /// The source of the tokenizer.
    pub tokenizer: TokenizerSpec,
}

/// A Secret in the job's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CredentialsSpec {
    /// The name of the Secret, in the job's namespace. Each key of the Secret becomes an environment variable.
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
        /// A `prompt` with its `completion`. Both are texts, or both are lists of messages. Only the completion counts
        /// in the loss.
        PromptCompletion = "PromptCompletion",
        /// A conversation in `messages`, with `tools` if the template uses them. Only the assistant's messages count in
        /// the loss.
        Chat = "Chat",
    }
}

string_enum! {
    /// The action for a conversation that is longer than a training sequence.
    #[derive(Default)]
    pub enum OnLongConversation {
        /// The job fails and names the conversation.
        #[default]
        Fail = "Fail",
        /// The job cuts the conversation at the end of the last turn that fits.
        Truncate = "Truncate",
        /// The job leaves out the conversation and counts it.
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
    /// The action for a record that has no text.
    #[derive(Default)]
    pub enum OnBadRecord {
        /// The job fails and names the record.
        #[default]
        Fail = "Fail",
        /// The job leaves out the record, and counts it by file and reason.
        Skip = "Skip",
    }
}

impl DataSpec {
    /// Returns the sources. The files of `paths` count as one source without a name.
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

    /// Returns the formats that the sources and the held-out sets give, and then the default format.
    pub(crate) fn formats(&self) -> impl Iterator<Item = DataFormat> {
        let sources = self.sources.iter().flatten().filter_map(|source| source.format);
        let sets = self.evaluation.iter().flat_map(|evaluation| &evaluation.sets).filter_map(|set| set.format);
        sources.chain(sets).chain([self.format])
    }

    /// Whether a source or a held-out set has conversations.
    pub fn has_conversations(&self) -> bool {
        self.formats().any(|format| format != DataFormat::Text)
    }

    /// Returns all patterns of corpus files and of held-out files, each with its field, such as `spec.data.paths[0]`.
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

fn text_field() -> String {
    "text".into()
}
