//! Configuration of the data pipeline, and its progress reports.

use std::path::PathBuf;

use jiff::civil::Date;

use crate::named_tokens::NamedTokens;
use crate::sequences::Packing;
use crate::surroundings::{EnvironmentVariables, OnWait};

/// The data configuration of a job.
#[derive(Clone, Debug)]
pub struct DataConfig {
    /// The root of the volume. Relative paths start here.
    pub volume_root: PathBuf,
    /// The folder of the token caches, with one folder per corpus and tokenizer. Jobs share this folder.
    pub cache_root: PathBuf,
    /// The sources of the corpus, at least one.
    pub sources: Vec<CorpusSource>,
    /// The largest number of input tokens of a sequence. The target of each input is the token after it.
    pub sequence_length: usize,
    /// If true, documents are concatenated and split every `sequence_length` tokens. If false, each row of a microbatch
    /// has the tokens of one document, or of a part of one document, with padding on the right.
    pub packing: bool,
    /// The part of each source that is held out for evaluation.
    pub held_out: HeldOut,
    /// Files that are held out as a whole. The job does not train on these files, even if a source matches them.
    pub held_out_files: Vec<HeldOutFiles>,
    /// The largest number of sequences of a held-out set that an evaluation reads; `None` for all.
    pub evaluation_max_sequences: Option<u64>,
    /// The seed by which documents and sequences are drawn for evaluation, and by which a streamed corpus is permuted.
    pub seed: u64,
    /// The source of the tokenizer.
    pub tokenizer: TokenizerSource,
    /// The special tokens that the job names for a tokenizer file.
    pub named_tokens: NamedTokens,
    /// The settings of a streamed corpus. `None` for a corpus that is tokenised before training.
    pub streaming: Option<Streaming>,
    /// If true, text that looks like a special token is encoded as that token. If false, such text stays text.
    pub parse_special_tokens: bool,
    /// The encoding of conversations, for sources and held-out files with conversations.
    pub conversations: ConversationConfig,
    /// The treatment of a record that holds no document.
    pub on_bad_record: OnBadRecord,
    /// If true, a link may lead to a file outside of the volume. The trainer sets this field outside of a cluster,
    /// where the user owns the volume and the file.
    pub follow_links_out: bool,
    /// The file that records which remote files the job's patterns matched when the job began. If `None`, each call
    /// lists the remote sources again.
    pub remote_files: Option<PathBuf>,
    /// The environment variables with which users configure the clients of remote sources, such as `HF_TOKEN`.
    pub variables: EnvironmentVariables,
    /// The callback that receives a sentence for the user whenever a remote source makes its reader wait.
    pub on_wait: OnWait,
}

impl DataConfig {
    /// Returns a configuration with the defaults of a job file: the text is in the field `text`, sequences of
    /// `sequence_length` tokens are packed, and nothing is held out. The token caches are in the folder `cache` of the
    /// volume.
    pub fn new(
        volume_root: impl Into<PathBuf>,
        pattern: &str,
        sequence_length: usize,
        tokenizer: TokenizerSource,
    ) -> DataConfig {
        let volume_root = volume_root.into();
        DataConfig {
            cache_root: volume_root.join("cache"),
            volume_root,
            sources: vec![CorpusSource::new(pattern)],
            sequence_length,
            packing: true,
            held_out: HeldOut::Nothing,
            held_out_files: Vec::new(),
            evaluation_max_sequences: None,
            seed: 0,
            tokenizer,
            named_tokens: NamedTokens::default(),
            streaming: None,
            parse_special_tokens: false,
            conversations: ConversationConfig::default(),
            on_bad_record: OnBadRecord::Fail,
            follow_links_out: false,
            remote_files: None,
            variables: EnvironmentVariables::default(),
            on_wait: OnWait::default(),
        }
    }

    /// Returns the smallest number of tokens that may be held out of a source with documents of this format.
    pub(crate) fn least_held_out_tokens(&self, format: DocumentFormat) -> u64 {
        match self.cut(format) {
            // the last input of a packed sequence needs a target
            Packing::Packed => self.sequence_length as u64 + 1,
            Packing::Unpacked | Packing::WholeDocuments => 2,
        }
    }

    /// Returns the rule by which documents of this format become sequences.
    pub(crate) fn cut(&self, format: DocumentFormat) -> Packing {
        match (self.packing, format) {
            (false, _) => Packing::Unpacked,
            (true, DocumentFormat::Text) => Packing::Packed,
            (true, DocumentFormat::PromptCompletion | DocumentFormat::Chat) => Packing::WholeDocuments,
        }
    }

    /// Returns the formats of all sources and held-out files.
    pub(crate) fn formats(&self) -> impl Iterator<Item = DocumentFormat> {
        let sources = self.sources.iter().map(|source| source.format);
        sources.chain(self.held_out_files.iter().map(|files| files.format))
    }
}

/// The settings of a streamed corpus, which training reads in windows.
#[derive(Clone, Debug)]
pub struct Streaming {
    /// The folder of the windows on the volume, which all stages can read. Each job has a separate folder.
    pub folder: PathBuf,
    /// The number of sequences of a window. The sequences are permuted within their window.
    pub window_sequences: u64,
    /// The approximate number of bytes of a block, the unit in which the files of a source are permuted. A file that
    /// can't be divided is one block.
    pub block_bytes: u64,
    /// The largest total size of all windows in `folder`, in bytes. Windows in use are kept even if they exceed this
    /// size.
    pub max_bytes: u64,
}

/// A source: files of the corpus, with a weight that sets their share of the training sequences.
#[derive(Clone, Debug)]
pub struct CorpusSource {
    /// The name of the source in messages; empty for the only source of a corpus.
    pub name: String,
    /// Glob patterns (`*`, `?`, `[a-z]`, `**`) of the files: paths below [`DataConfig::volume_root`], or URIs. Hidden
    /// files match only a pattern that names the dot.
    pub paths: Vec<String>,
    /// The content of the records.
    pub format: DocumentFormat,
    /// The field or column that holds the text, in files of formats that have fields.
    pub text_field: String,
    /// Pairs of a position in the training order, in sequences, and the weight that applies from this position on. The
    /// positions ascend, and the first is 0. A source's share of the sequences is its weight divided by the sum of all
    /// sources' weights.
    pub weights: Vec<(u64, u64)>,
    /// If true, training ends before it would read a sequence of this source a second time. If false, the source
    /// repeats, in another order.
    pub stops: bool,
}

impl CorpusSource {
    /// Returns the phrase by which messages refer to the source.
    pub(crate) fn subject(&self) -> String {
        if self.name.is_empty() { "the corpus".to_owned() } else { format!("the source {}", self.name) }
    }

    /// Returns the only source of a corpus, with the defaults of a job file.
    pub fn new(pattern: &str) -> CorpusSource {
        CorpusSource {
            name: String::new(),
            paths: vec![pattern.to_owned()],
            format: DocumentFormat::Text,
            text_field: "text".to_owned(),
            weights: vec![(0, 1)],
            stops: false,
        }
    }
}

/// The part of each source that is held out. Fractions lie above 0 and below 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeldOut {
    /// Nothing is held out.
    Nothing,
    /// This share of the documents, drawn by seed and content. A source with few documents holds out this share of its
    /// tokens instead. In this case, only the end of the last document drawn is held out.
    Documents(f64),
    /// This share of the sequences, from the end of the source. Only jobs that began under an older version of
    /// Stagecoach have this rule.
    LastSequences(f64),
}

/// A set of files that are held out as a whole, with a separate loss.
#[derive(Clone, Debug)]
pub struct HeldOutFiles {
    /// The name of the set; empty for the set whose loss is the job's held-out loss.
    pub name: String,
    /// Patterns, as in [`CorpusSource::paths`].
    pub paths: Vec<String>,
    /// The content of the records.
    pub format: DocumentFormat,
    /// The field or column that holds the text, in files of formats that have fields.
    pub text_field: String,
}

impl HeldOutFiles {
    /// Returns the phrase by which messages refer to the set.
    pub(crate) fn subject(&self) -> String {
        if self.name.is_empty() {
            "data.evaluation.paths".to_owned()
        } else {
            format!("the held-out set {}", self.name)
        }
    }
}

/// The content of the records of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DocumentFormat {
    /// A text in a field, or the text of a whole file.
    #[default]
    Text,
    /// A `prompt` and its `completion`: either two texts or two lists of messages.
    PromptCompletion,
    /// A conversation in the field `messages`.
    Chat,
}

impl DocumentFormat {
    /// The fields that a record of a conversation may lack.
    pub(crate) const OPTIONAL: [&str; 2] = ["tools", "documents"];

    /// Returns the fields that are read from a record. There are none for a text, whose field the job names.
    pub(crate) fn fields(self) -> &'static [&'static str] {
        match self {
            DocumentFormat::Text => &[],
            DocumentFormat::PromptCompletion => &["prompt", "completion", "tools", "documents"],
            DocumentFormat::Chat => &["messages", "tools", "documents"],
        }
    }

    /// Returns the format's name in a job.
    pub(crate) fn name(self) -> &'static str {
        match self {
            DocumentFormat::Text => "Text",
            DocumentFormat::PromptCompletion => "PromptCompletion",
            DocumentFormat::Chat => "Chat",
        }
    }
}

/// The encoding of conversations.
#[derive(Clone, Debug, Default)]
pub struct ConversationConfig {
    /// The file of a chat template that replaces the template of the tokenizer's model. Relative paths start at
    /// [`DataConfig::volume_root`].
    pub template: Option<PathBuf>,
    /// The date for templates that write a date. Without a date, such a template is refused.
    pub date: Option<Date>,
    /// The treatment of a conversation that is longer than a sequence.
    pub on_long: OnLongConversation,
}

/// The treatment of a conversation that is longer than a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLongConversation {
    /// The corpus is refused.
    #[default]
    Fail,
    /// The conversation is cut at the end of the last turn that fits.
    Truncate,
    /// The conversation is left out.
    Skip,
}

/// The treatment of a record that holds no document: its text is null, missing or not text, or the record is invalid
/// JSON or UTF-8. A file that is damaged as a whole is always refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBadRecord {
    /// The corpus is refused.
    #[default]
    Fail,
    /// The record is left out, and a note states the number of such records.
    Skip,
}

/// The source of the tokenizer.
#[derive(Clone, Debug)]
pub enum TokenizerSource {
    /// A byte-level BPE trained on the corpus.
    Train {
        /// The largest number of tokens, including the three special tokens and the 256 bytes. A small corpus yields
        /// fewer.
        vocab_size: usize,
    },
    /// A `tokenizer.json` as the Hugging Face libraries write it.
    File {
        /// The path of the file. Relative paths start at [`DataConfig::volume_root`].
        path: PathBuf,
    },
}

/// Progress of one pass of [`prepare`](crate::prepare) over the corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrepareProgress {
    /// The pass, such as "hashing the corpus", "training the tokenizer" or "tokenising".
    pub phase: &'static str,
    /// Bytes of the corpus that the pass has processed.
    pub bytes_done: u64,
    /// Bytes of the corpus in total.
    pub bytes_total: u64,
}
