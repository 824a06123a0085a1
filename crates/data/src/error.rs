//! Errors of the data pipeline. Each message names the file or the setting, the expectation and the remedy.

use std::io;
use std::path::{Path, PathBuf};

use stagecoach_hub::HubError;
use stagecoach_objects::ObjectError;

/// The reason why the data can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// `paths` is empty.
    #[error("data.paths is empty: name at least one file or pattern, such as \"corpus/**/*.txt\"")]
    NoPaths,
    /// A pattern is invalid.
    #[error("data.paths: \"{pattern}\" is not a valid pattern: {reason}")]
    BadPattern {
        /// The pattern as written in the job.
        pattern: String,
        /// The message of the pattern's parser.
        reason: String,
    },
    /// Two sources have a file in common.
    #[error(
        "data.sources: {file} belongs to {} and to {}: keep it in one of them, and set `weight` to read it more often",
        sources[0],
        sources[1]
    )]
    FileOfTwoSources {
        /// The name of the file.
        file: String,
        /// The names of the sources.
        sources: [String; 2],
    },
    /// Two held-out sets have a file in common.
    #[error("data.evaluation: {file} belongs to {} and to {}: keep it in one of them", sets[0], sets[1])]
    FileOfTwoSets {
        /// The name of the file.
        file: String,
        /// The two sets.
        sets: [String; 2],
    },
    /// A pattern is a URI with a scheme that no source has.
    #[error(
        "data.paths: \"{pattern}\" has the scheme {scheme}://, which is none of hf, s3, gs and az: copy the files to \
         the volume"
    )]
    UnknownScheme {
        /// The pattern as written in the job.
        pattern: String,
        /// The scheme of the pattern.
        scheme: String,
    },
    /// The record of a job's remote files is damaged.
    #[error(
        "{} is not a record of remote files ({problem}): remove this file, and the job lists its sources again; the \
         job resumes only if the sources still have the same files",
        path.display()
    )]
    RemoteFiles {
        /// The file of the record.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A pattern matches no file.
    #[error(
        "data.paths: no file matches \"{pattern}\" below {}: check the spelling, and that the files are on the \
         volume (a folder is matched by \"folder/**/*.txt\")",
        root.display()
    )]
    NoMatch {
        /// The pattern as written in the job.
        pattern: String,
        /// The folder at which relative patterns start.
        root: PathBuf,
    },
    /// A matched file has an extension that is not one of the known formats.
    #[error(
        "{} is not a {known} file ({compressible}): narrow data.paths so that it matches corpus files only",
        path.display()
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// The extensions of the known formats.
        known: String,
        /// The formats that may be compressed.
        compressible: String,
    },
    /// A matched file is a compressed file of a format that is only read uncompressed.
    #[error(
        "{path} is a compressed .{extension} file, which can't be read ({compressible}): decompress it ({command} \
         {path}), or narrow data.paths",
        path = path.display()
    )]
    NotCompressible {
        /// The file.
        path: PathBuf,
        /// The extension of the format.
        extension: &'static str,
        /// The command that prints the contents of the file.
        command: &'static str,
        /// The formats that may be compressed.
        compressible: String,
    },
    /// A compressed file is damaged.
    #[error("{} can't be decompressed: {problem}: copy it or compress it again", path.display())]
    Compressed {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A matched link leads out of the volume.
    #[error(
        "{} is a link to {}, which is not on the volume: copy the file there, or narrow data.paths",
        path.display(),
        target.display()
    )]
    LeavesVolume {
        /// The link, or a path that contains the link.
        path: PathBuf,
        /// The target of the link.
        target: PathBuf,
    },
    /// A matched link leads nowhere.
    #[error("{} is a link to a file that does not exist: remove it, or narrow data.paths", path.display())]
    DanglingLink {
        /// The link.
        path: PathBuf,
    },
    /// All documents are empty.
    #[error(
        "the corpus is empty: {files} files match data.paths, and none holds any text{}",
        notes.iter().map(|note| format!("; {note}")).collect::<String>()
    )]
    Empty {
        /// The number of files that match.
        files: usize,
        /// Sentences about texts that have no tokens.
        notes: Vec<String>,
    },
    /// All records of conversations are left out.
    #[error(
        "all {records} conversations of {file} and the files after it are left out, most of them {reason}: {remedy}"
    )]
    NoConversations {
        /// The name of the first file.
        file: String,
        /// The number of records that are left out.
        records: u64,
        /// The most frequent reason.
        reason: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// A file that holds no records belongs to a source of conversations.
    #[error(
        "{} has no records, and data.format {format} reads conversations from {known} files: narrow data.paths, or \
         set format to Text",
        path.display()
    )]
    NoRecords {
        /// The file.
        path: PathBuf,
        /// The format in the job.
        format: &'static str,
        /// The extensions of files with records.
        known: String,
    },
    /// A `.parquet` file lacks a column of conversations.
    #[error("{} has no column \"{column}\", which data.format {format} reads, only {}", path.display(), columns.join(", "))]
    NoConversationColumn {
        /// The file.
        path: PathBuf,
        /// The missing column.
        column: &'static str,
        /// The format in the job.
        format: &'static str,
        /// The names of the existing columns.
        columns: Vec<String>,
    },
    /// A file has bytes that are not UTF-8.
    #[error(
        "{} is not valid UTF-8 at byte {offset}: convert it (iconv -f latin1 -t utf-8) or leave it out of data.paths",
        path.display()
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The number of decompressed bytes before the invalid byte.
        offset: u64,
    },
    /// A file is in UTF-16 or UTF-32 according to its byte order mark.
    #[error(
        "{path} is in {encoding} according to its byte order mark, not in UTF-8: convert it ({}) or leave it out of \
         data.paths",
        conversion(path, encoding, *decompress),
        path = path.display()
    )]
    OtherEncoding {
        /// The file.
        path: PathBuf,
        /// The encoding as `iconv` spells it.
        encoding: &'static str,
        /// The command that prints the contents of the file; `None` if the file is not compressed.
        decompress: Option<&'static str>,
    },
    /// Text that must be held in one piece is too long.
    #[error(
        "{location} has more than {limit} bytes that the tokenizer must get in one piece ({reason}): split it into \
         several documents, such as lines of a .jsonl file"
    )]
    TooLong {
        /// The file, and the document in it.
        location: String,
        /// The limit in bytes.
        limit: usize,
        /// The reason why the text must be in one piece.
        reason: &'static str,
    },
    /// A record that must be held in memory is too long.
    #[error(
        "{location} has more than {limit} bytes, and a record must fit into memory as a whole: split it into several \
         records"
    )]
    RecordTooLong {
        /// The file, and the record in it.
        location: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// A record of a file holds no document that can be used.
    #[error("{}, {unit} {number}: {problem}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The unit in which the file's records are numbered, such as "line".
        unit: &'static str,
        /// The number of the record.
        number: u64,
        /// The problem, and the remedy.
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
        /// The requested column.
        column: String,
        /// The names of the existing columns.
        columns: Vec<String>,
    },
    /// A `.parquet` file can't be read, or its text column isn't text.
    #[error("{} can't be read as Parquet: {problem}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The size of a token file is not a multiple of the size of an id.
    #[error(
        "{} has {size} bytes, which is no whole number of {width}-byte token ids: is it cut off, or of another kind \
         (.tokens holds 32-bit, .u16 16-bit little-endian ids)?",
        path.display()
    )]
    TruncatedIds {
        /// The file.
        path: PathBuf,
        /// The size of the file in bytes.
        size: u64,
        /// The number of bytes per id.
        width: u64,
    },
    /// A token file holds an id that the tokenizer doesn't have.
    #[error(
        "{}: token {index} is {id}, but the tokenizer has {vocab_size} tokens (ids 0 to {}): give the tokenizer that \
         made this file as data.tokenizer.file",
        path.display(),
        vocab_size - 1
    )]
    IdOutOfRange {
        /// The file.
        path: PathBuf,
        /// The number of tokens before the id in the file.
        index: u64,
        /// The id.
        id: u32,
        /// The size of the tokenizer's vocabulary.
        vocab_size: usize,
    },
    /// The corpus has token files, but the job names no tokenizer file.
    #[error(
        "{} holds token ids, but data.tokenizer trains a new tokenizer, which can't have made these ids: give the \
         tokenizer that made them with data.tokenizer {{type: File, file: {{path: ...}}}}",
        path.display()
    )]
    IdsWithoutTokenizer {
        /// The first token file.
        path: PathBuf,
    },
    /// The vocabulary is too small. A byte-level vocabulary has at least the 256 bytes and the special tokens.
    #[error(
        "data.tokenizer.train.vocabSize is {found}: a byte-level tokenizer needs at least {least} (256 bytes and 3 \
         special tokens)"
    )]
    VocabularyTooSmall {
        /// The requested size.
        found: usize,
        /// The smallest possible size.
        least: usize,
    },
    /// A tokenizer can't be read, trained or used.
    #[error("the tokenizer {}: {problem}", path.display())]
    Tokenizer {
        /// The tokenizer's file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A tokenizer has no end-of-text token.
    #[error(
        "the tokenizer {} has no end-of-text token, so the end of a document could not be learned: name it as \
         data.tokenizer.file.eos or as eos_token in tokenizer_config.json, or add one of {} to its added_tokens as a \
         special token",
        path.display(),
        known.join(", ")
    )]
    NoEndOfText {
        /// The tokenizer's file.
        path: PathBuf,
        /// The known names of such a token.
        known: Vec<String>,
    },
    /// The corpus, or one of its sources, has too little text for a training sequence in addition to the held-out part.
    #[error(
        "{subject} is too short: {tokens} tokens in {documents} documents make {sequences} sequences of \
         {sequence_length} tokens, of which {held_out} are held out, and none is left to train on: add text, or \
         lower data.sequenceLength or data.evaluation.fraction"
    )]
    TooShort {
        /// The corpus or the source.
        subject: String,
        /// The number of tokens of the corpus or the source.
        tokens: u64,
        /// The number of documents of the corpus or the source.
        documents: u64,
        /// The number of sequences that these documents make.
        sequences: u64,
        /// The number of tokens per sequence.
        sequence_length: usize,
        /// The number of sequences that are held out.
        held_out: u64,
    },
    /// A held-out set has too little text for a sequence.
    #[error(
        "{subject} is too short: {tokens} tokens make no sequence of {sequence_length} tokens to evaluate: add text, \
         or lower data.sequenceLength"
    )]
    HeldOutTooShort {
        /// The set.
        subject: String,
        /// The number of tokens of the set.
        tokens: u64,
        /// The number of tokens per sequence.
        sequence_length: usize,
    },
    /// All files of a source are held out.
    #[error("data.evaluation holds out all files of {subject}: leave at least one of these files to train on")]
    AllHeldOut {
        /// The source.
        subject: String,
    },
    /// The corpus does not have a named document.
    #[error("{name} is no document of the corpus: {problem}")]
    NoDocument {
        /// The name as it was given.
        name: String,
        /// The problem, such as the documents that exist.
        problem: String,
    },
    /// The token ids of a document's text differ from its ids in the cache.
    #[error(
        "the tokenizer gives {name} other token ids than the token cache has, so the text of its tokens can't be \
         found: remove the folder of the token cache, and the next start builds it again; if this message stays, \
         the ids of this tokenizer depend on more than the text of a document, and their text can't be found"
    )]
    OtherTokens {
        /// The name of the document.
        name: String,
    },
    /// The settings or the data are invalid for a reason that has no variant of its own.
    #[error("{problem}")]
    Invalid {
        /// The problem, and the remedy.
        problem: String,
    },
    /// A corpus file was written to while it was read.
    #[error("{} changed while it was being read: wait until it is complete and run again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The size of a token cache file differs from the size that was written.
    #[error(
        "{} should have {expected} bytes and has {found}: the token cache is damaged; remove its folder, and the \
         next start builds it again",
        path.display()
    )]
    WrongSize {
        /// The file.
        path: PathBuf,
        /// The size in bytes that was written.
        expected: u64,
        /// The size in bytes that was found.
        found: u64,
    },
    /// A window of a stream has another number of sequences than the job's windows.
    #[error("{} is no window of this job: remove its folder, and the next start makes it again", path.display())]
    OtherWindow {
        /// The window's folder.
        path: PathBuf,
    },
    /// A rebuilt window has other tokens than the window on which the job trained.
    #[error(
        "window {window} of the streamed corpus has other tokens than when the job trained on it: bytes of a file \
         were damaged in transfer, in the earlier attempt or in this one. Another attempt reads them again. If this \
         message stays, the job trained on damaged bytes: start a new one, from an earlier checkpoint \
         (checkpoint.initFrom) or from the beginning"
    )]
    WindowDiffers {
        /// The number of the window, from 0.
        window: u64,
    },
    /// A stream has too few documents to draw held-out documents from.
    #[error(
        "with data.evaluation.fraction {fraction}, the {documents} documents of {subject} give no held-out sequence: \
         name files in data.evaluation.paths, or set data.streaming.mode to Never"
    )]
    NothingDrawn {
        /// The source.
        subject: String,
        /// The fraction.
        fraction: f64,
        /// The number of documents of the source.
        documents: u64,
    },
    /// The caller ended its wait for data. Readers of this crate also return this error to end a read early.
    #[error("the wait for the data was ended")]
    WaitEnded,
    /// The hub refuses a request or can't be reached, or its files differ from the listed files.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// An object store refuses a request or can't be reached, or its objects differ from the listed objects.
    #[error(transparent)]
    Objects(#[from] ObjectError),
    /// A file-system call failed.
    #[error("can't {action} {}: {source}", path.display())]
    Io {
        /// The action that failed, such as "read" or "write".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

impl DataError {
    /// Whether the volume or a remote source failed, so that a retry may help. All other errors need a change by the
    /// user.
    pub fn is_storage(&self) -> bool {
        match self {
            // after `WindowDiffers`, another attempt reads the bytes of the window again
            DataError::Io { .. } | DataError::WrongSize { .. } | DataError::WindowDiffers { .. } => true,
            DataError::Hub(error) => error.is_temporary(),
            DataError::Objects(error) => error.is_temporary(),
            _ => false,
        }
    }

    /// Returns a function for `map_err` that wraps an error of `action` on `path`. An error of a remote source is not
    /// wrapped, because it already names its file.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> DataError {
        let path = path.into();
        move |source| match (HubError::within(&source), ObjectError::within(&source)) {
            (Some(error), _) => DataError::Hub(error.clone()),
            (_, Some(error)) => DataError::Objects(error.clone()),
            (None, None) => DataError::Io { action, path, source },
        }
    }
}

/// Returns the command that prints a text in UTF-8.
fn conversion(path: &Path, encoding: &str, decompress: Option<&str>) -> String {
    match decompress {
        Some(command) => format!("{command} {} | iconv -f {encoding} -t utf-8", path.display()),
        None => format!("iconv -f {encoding} -t utf-8 {}", path.display()),
    }
}
