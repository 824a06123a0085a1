//! Configuration of the data pipeline, and its progress reports.

use std::path::PathBuf;

/// Data configuration of a job.
#[derive(Clone, Debug)]
pub struct DataConfig {
    /// The root of the volume. Relative paths start here.
    pub volume_root: PathBuf,
    /// The folder of the token caches, with one folder per corpus and tokenizer. Jobs share it.
    pub cache_root: PathBuf,
    /// Glob patterns (`*`, `?`, `[a-z]`, `**`) of the corpus files. Hidden files match only a pattern that names the
    /// dot.
    pub paths: Vec<String>,
    /// The field or column that holds the text, in files of formats that have fields.
    pub text_field: String,
    /// The largest number of input tokens of a sequence. The target of each input is the token after it.
    pub sequence_length: usize,
    /// True: documents are concatenated and split every `sequence_length` tokens. False: a row holds one document, or a
    /// window of it, padded on the right.
    pub packing: bool,
    /// The share of the sequences, taken from the end, that is held out for evaluation: from 0 (none) to below 1.
    pub evaluation_fraction: f64,
    /// The largest number of held-out sequences that an evaluation reads, from the first one on; `None` for all.
    pub evaluation_max_sequences: Option<u64>,
    /// The source of the tokenizer.
    pub tokenizer: TokenizerSource,
    /// True: text that looks like a special token is encoded as that token. False: it stays text.
    pub parse_special_tokens: bool,
    /// What to do with a record that holds no text.
    pub on_bad_record: OnBadRecord,
    /// True: a link may lead to a file outside of the volume, as on a machine whose user owns both.
    pub follow_links_out: bool,
}

impl DataConfig {
    /// A configuration with the defaults of a job file: the text is in the field `text`, sequences of `sequence_length`
    /// tokens are packed, and nothing is held out. The token caches are in the folder `cache` of the volume.
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
            paths: vec![pattern.to_owned()],
            text_field: "text".to_owned(),
            sequence_length,
            packing: true,
            evaluation_fraction: 0.0,
            evaluation_max_sequences: None,
            tokenizer,
            parse_special_tokens: false,
            on_bad_record: OnBadRecord::Fail,
            follow_links_out: false,
        }
    }
}

/// What to do with a record that holds no text: its text is null, missing or not text, or the record is invalid JSON or
/// UTF-8. A file that is damaged as a whole is always refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBadRecord {
    /// The corpus is refused.
    #[default]
    Fail,
    /// The record is left out, and a note has the number of such records.
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
        /// Relative paths start at [`DataConfig::volume_root`].
        path: PathBuf,
    },
}

/// Progress of one pass of [`prepare`](crate::prepare) over the corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrepareProgress {
    /// The pass: "hashing the corpus", "training the tokenizer" or "tokenising".
    pub phase: &'static str,
    /// Bytes of the corpus that the pass has processed.
    pub bytes_done: u64,
    /// Bytes of the corpus in total.
    pub bytes_total: u64,
}
