//! Everything that can be wrong with the data, each in a sentence that says where, what was expected and what to do.

use std::io;
use std::path::PathBuf;

/// Why the data can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// `paths` is empty.
    #[error("data.paths is empty: name at least one file or pattern, such as \"corpus/**/*.txt\"")]
    NoPaths,
    /// A pattern isn't one.
    #[error("data.paths: \"{pattern}\" is not a valid pattern: {reason}")]
    BadPattern {
        /// As the user wrote it.
        pattern: String,
        /// What the pattern's parser says.
        reason: String,
    },
    /// A pattern matches no file.
    #[error(
        "data.paths: no file matches \"{pattern}\" below {}: check the spelling, and that the files are on the volume (a folder is matched by \"folder/**/*.txt\")",
        root.display()
    )]
    NoMatch {
        /// As the user wrote it.
        pattern: String,
        /// Where relative patterns start.
        root: PathBuf,
    },
    /// A matched file is of no kind that can be read.
    #[error(
        "{} is not a .txt, .jsonl, .parquet, .tokens or .u16 file: narrow data.paths so that it matches corpus files only",
        path.display()
    )]
    UnknownKind {
        /// The file.
        path: PathBuf,
    },
    /// All documents are empty.
    #[error("the corpus is empty: {files} files match data.paths, and none holds any text")]
    Empty {
        /// How many files match.
        files: usize,
    },
    /// Bytes that are not UTF-8.
    #[error(
        "{} is not valid UTF-8 at byte {offset}: convert it (iconv -f latin1 -t utf-8) or leave it out of data.paths",
        path.display()
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Bytes from the start of the file.
        offset: u64,
    },
    /// A line of a `.jsonl` file holds no text.
    #[error("{}, line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: u64,
        /// What was found, and what to do.
        problem: String,
    },
    /// A row of a `.parquet` file holds no text.
    #[error("{}, row {row}: {problem}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// From 0, as data-frame libraries count.
        row: u64,
        /// What was found, and what to do.
        problem: String,
    },
    /// A `.parquet` file lacks the text column.
    #[error(
        "{} has no column \"{column}\", only {}: set data.textField to the one that holds the text",
        path.display(),
        columns.join(", ")
    )]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The one asked for.
        column: String,
        /// Those there are.
        columns: Vec<String>,
    },
    /// A `.parquet` file can't be read, or its text column isn't text.
    #[error("{} can't be read as Parquet: {problem}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What was found.
        problem: String,
    },
    /// A token file whose size is no whole number of ids.
    #[error(
        "{} has {size} bytes, which is no whole number of {width}-byte token ids: is it cut off, or of another kind (.tokens holds 32-bit, .u16 16-bit little-endian ids)?",
        path.display()
    )]
    UnevenIds {
        /// The file.
        path: PathBuf,
        /// Bytes.
        size: u64,
        /// Bytes an id takes.
        width: u64,
    },
    /// A token file holds an id that the tokenizer doesn't have.
    #[error(
        "{}: token {index} is {id}, but the tokenizer has {vocab_size} tokens (ids 0 to {}): give the tokenizer that made this file as data.tokenizer.file",
        path.display(),
        vocab_size - 1
    )]
    BeyondVocabulary {
        /// The file.
        path: PathBuf,
        /// Tokens from the start of the file.
        index: u64,
        /// The id found.
        id: u32,
        /// Tokens the tokenizer has.
        vocab_size: usize,
    },
    /// Token files, and no tokenizer that could have made them.
    #[error(
        "{} holds token ids, which a tokenizer still to be trained can't have made: give theirs with data.tokenizer {{type: File, file: {{path: ...}}}}",
        path.display()
    )]
    IdsWithoutTokenizer {
        /// The first such file.
        path: PathBuf,
    },
    /// A byte-level vocabulary needs room for the bytes.
    #[error(
        "data.tokenizer.train.vocabSize is {found}: a byte-level tokenizer needs at least {least} (256 bytes and 3 special tokens)"
    )]
    VocabularyTooSmall {
        /// Asked for.
        found: usize,
        /// What it takes.
        least: usize,
    },
    /// A tokenizer that can't be read, trained or used.
    #[error("the tokenizer {}: {problem}", path.display())]
    Tokenizer {
        /// Its file.
        path: PathBuf,
        /// What went wrong.
        problem: String,
    },
    /// A tokenizer without an end-of-text token.
    #[error(
        "the tokenizer {} has no end-of-text token, so the end of a document could not be learned: add one of {} to its added_tokens",
        path.display(),
        known.join(", ")
    )]
    NoEndOfText {
        /// Its file.
        path: PathBuf,
        /// The names that are understood.
        known: Vec<String>,
    },
    /// Too little text for a sequence to train on beside the held-out part.
    #[error(
        "the corpus is too short: {tokens} tokens in {documents} documents make {sequences} sequences of {sequence_length} tokens, of which {held_out} held out, and none is left to train on: add text, or lower data.sequenceLength or data.evaluation.fraction"
    )]
    TooShort {
        /// Tokens of the corpus.
        tokens: u64,
        /// Documents of the corpus.
        documents: u64,
        /// Sequences it makes.
        sequences: u64,
        /// Tokens a sequence holds.
        sequence_length: usize,
        /// Sequences kept for evaluation.
        held_out: u64,
    },
    /// Settings that make no sense.
    #[error("{problem}")]
    Invalid {
        /// Which, and what to write instead.
        problem: String,
    },
    /// A corpus file was written to while it was read.
    #[error("{} changed while it was being read: wait until it is complete and run again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The token cache on the volume isn't what stage 0 prepared.
    #[error(
        "{} should have {expected} bytes and has {found}: the token cache is damaged; remove its folder, and the next start builds it again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Bytes.
        expected: u64,
        /// Bytes.
        found: u64,
    },
    /// The file system refused.
    #[error("can't {action} {}: {source}", path.display())]
    Io {
        /// "read", "write" and the like.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl DataError {
    /// Whether the volume is at fault, so that trying again may help; everything else is for the user to put right.
    pub fn is_storage(&self) -> bool {
        matches!(self, DataError::Io { .. } | DataError::Damaged { .. })
    }

    /// For `map_err`: wraps what the system says about `action` on `path`.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> DataError {
        let path = path.into();
        move |source| DataError::Io { action, path, source }
    }
}
