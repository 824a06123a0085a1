//! What the data room is asked for, and how it reports progress.

use std::path::PathBuf;

/// The part of a job that decides the data.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The volume: relative paths start here.
    pub root: PathBuf,
    /// Where token caches live, one folder per corpus and tokenizer; shared by jobs.
    pub cache: PathBuf,
    /// Glob patterns (`*`, `?`, `[a-z]`, `**`) of the corpus files. Hidden files match only a pattern that names the dot.
    pub paths: Vec<String>,
    /// The field of a `.jsonl` line, or the column of a `.parquet` file, that holds the text.
    pub text_field: String,
    /// Tokens a sequence holds at most (inputs; each has the next token as its target).
    pub sequence_length: usize,
    /// True: documents are laid end to end and cut every `sequence_length` tokens. False: a row holds one document, or a
    /// window of it, padded on the right.
    pub packing: bool,
    /// The share of the sequences, taken from the end, that is held out for evaluation: from 0 (none) to below 1.
    pub evaluation_fraction: f64,
    /// Where the tokenizer comes from.
    pub tokenizer: TokenizerSource,
}

/// Where the tokenizer comes from.
#[derive(Clone, Debug)]
pub enum TokenizerSource {
    /// A byte-level BPE trained on the corpus.
    Train {
        /// Tokens at most, the three special ones and the 256 bytes included; a small corpus yields fewer.
        vocab_size: usize,
    },
    /// A `tokenizer.json` as the Hugging Face libraries write it.
    File {
        /// Relative paths start at [`Settings::root`].
        path: PathBuf,
    },
}

/// How far `prepare` has come with one of its passes over the corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The pass: "hashing the corpus", "training the tokenizer" or "tokenising".
    pub what: &'static str,
    /// Bytes of the corpus done.
    pub done: u64,
    /// Bytes of the corpus.
    pub total: u64,
}
