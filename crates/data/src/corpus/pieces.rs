//! Splits a long text into pieces whose token ids together equal the ids of the whole text. Limits the size of text
//! that can't be split.

use serde_json::Value;
use stagecoach_chat::Conversation;

use super::{BadRecord, BadRecordReason, Content, ConversationRecord, CorpusFile, Cursor, Piece, PieceHandler};
use crate::config::DocumentFormat;
use crate::error::DataError;

/// The positions at which a text may be split such that the pieces have the ids of the whole text. At each position,
/// white space follows a character that is not white space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitPoints {
    /// At no position: the tokenizer receives whole documents.
    Never,
    /// Before any white space.
    BeforeWhitespace,
    /// Before white space that is not a line end, because a token may contain a line end and the characters before the
    /// line end.
    BeforeSpaces,
    /// Before the space U+0020, the only white space that separates words for SentencePiece.
    BeforeSpace,
}

/// The character that stands for a space in the vocabularies of SentencePiece.
pub(crate) const METASPACE: char = '\u{2581}';

/// The largest size in bytes of a text that can't be split and is tokenised in one piece. A tokenizer's working memory
/// is about a hundred times the size of its text.
pub(crate) const MAX_PIECE_BYTES: usize = 16 << 20;

/// The approximate size of a piece in bytes. It is small enough to spread pieces over processors, and large enough to
/// make the cost per piece negligible.
pub(super) const PIECE_BYTES: usize = 64 << 10;

/// Returns the last position at which `text` may be split, or `None` if it can't be split.
pub(super) fn last_split(text: &str, split: SplitPoints) -> Option<usize> {
    if split == SplitPoints::Never {
        return None;
    }
    let mut after = None;
    for (at, character) in text.char_indices().rev() {
        match (character.is_whitespace(), after) {
            // the tokenizer treats this character as a space, and several spaces may be one token
            (false, _) if split == SplitPoints::BeforeSpace && character == METASPACE => after = None,
            (false, Some(space)) => return Some(space),
            (true, _) => {
                let may = match split {
                    SplitPoints::Never => false,
                    SplitPoints::BeforeWhitespace => true,
                    SplitPoints::BeforeSpaces => !matches!(character, '\r' | '\n'),
                    SplitPoints::BeforeSpace => character == ' ',
                };
                after = may.then_some(at);
            }
            (false, None) => {}
        }
    }
    None
}

/// Passes the text of one record, which is a whole document, to `on_piece`. A long text is passed in pieces if `split`
/// allows it. `resume_at` and `bytes_read` are the values after the record.
///
/// # Errors
/// Fails with `TooLong`, or if `on_piece` fails.
pub(super) fn emit_record(
    corpus_file: &CorpusFile,
    text: &str,
    split: SplitPoints,
    resume_at: Cursor,
    bytes_read: u64,
    on_piece: &mut PieceHandler,
) -> Result<(), DataError> {
    let mut rest = text;
    let mut wanted = PIECE_BYTES;
    while split != SplitPoints::Never && rest.len() > 2 * wanted {
        let end = (0..=wanted).rev().find(|&at| rest.is_char_boundary(at)).unwrap_or(0);
        let Some(at) = last_split(&rest[..end], split) else {
            wanted *= 2;
            continue;
        };
        wanted = PIECE_BYTES;
        let content = Content::Text(&rest[..at]);
        on_piece(Piece { content, record: resume_at.record, is_last: false, resume_at: None, bytes_read })?;
        rest = &rest[at..];
    }
    check_length(rest.len(), split, || corpus_file.location(resume_at.record))?;
    let content = Content::Text(rest);
    on_piece(Piece { content, record: resume_at.record, is_last: true, resume_at: Some(resume_at), bytes_read })
}

/// Returns the conversation in the fields of a record.
///
/// # Errors
/// Fails with a message that names the invalid field or message of the conversation.
pub(super) fn conversation(
    record: &Value,
    documents: DocumentFormat,
) -> Result<Conversation, (BadRecordReason, String)> {
    let conversation = match documents {
        DocumentFormat::PromptCompletion => Conversation::prompt_completion(record),
        DocumentFormat::Text | DocumentFormat::Chat => Conversation::chat(record),
    };
    conversation.map_err(|refusal| (BadRecordReason::NoConversation, refusal.to_string()))
}

/// Passes a conversation to `on_piece`. `bytes` is the size of the record. `resume_at` and `bytes_read` are the values
/// after the record.
///
/// # Errors
/// Fails if `on_piece` fails.
pub(super) fn emit_conversation(
    corpus_file: &CorpusFile,
    conversation: Conversation,
    bytes: usize,
    resume_at: Cursor,
    bytes_read: u64,
    on_piece: &mut PieceHandler,
) -> Result<(), DataError> {
    if bytes > MAX_PIECE_BYTES {
        let reason = "a conversation is tokenised as a whole";
        let location = corpus_file.location(resume_at.record);
        let error = DataError::TooLong { location, limit: MAX_PIECE_BYTES, reason };
        return emit_bad_record((BadRecordReason::TooLong, error), resume_at.file, resume_at, bytes_read, on_piece);
    }
    let record = ConversationRecord {
        conversation,
        file: resume_at.file,
        path: corpus_file.path.clone(),
        unit: corpus_file.format.unit,
        number: corpus_file.format.number_of(resume_at.record),
        bytes,
    };
    let content = Content::Conversation(&record);
    on_piece(Piece { content, record: resume_at.record, is_last: true, resume_at: Some(resume_at), bytes_read })
}

/// Reports to `on_piece` the number of lone surrogates that were replaced in a record's text, unless the number is 0.
///
/// # Errors
/// Fails if `on_piece` fails.
pub(super) fn emit_lone_surrogates(
    count: u64,
    after_record: Cursor,
    bytes_read: u64,
    on_piece: &mut PieceHandler,
) -> Result<(), DataError> {
    if count == 0 {
        return Ok(());
    }
    let content = Content::LoneSurrogates(count);
    on_piece(Piece { content, record: after_record.record, is_last: false, resume_at: None, bytes_read })
}

/// Reports to `on_piece` that a record of the file with index `file` holds no document.
///
/// # Errors
/// Fails if `on_piece` fails.
pub(super) fn emit_bad_record(
    (reason, error): (BadRecordReason, DataError),
    file: usize,
    resume_at: Cursor,
    bytes_read: u64,
    on_piece: &mut PieceHandler,
) -> Result<(), DataError> {
    let content = Content::BadRecord(BadRecord { file, reason, error });
    let record = resume_at.record.max(1);
    on_piece(Piece { content, record, is_last: false, resume_at: Some(resume_at), bytes_read })
}

/// Fails if a text is too long to be tokenised in one piece.
pub(super) fn check_length(bytes: usize, split: SplitPoints, location: impl Fn() -> String) -> Result<(), DataError> {
    if bytes <= MAX_PIECE_BYTES {
        return Ok(());
    }
    let reason = match split {
        SplitPoints::Never => "its normalizer, pre-tokenizer or added tokens need whole texts",
        SplitPoints::BeforeWhitespace | SplitPoints::BeforeSpaces | SplitPoints::BeforeSpace => {
            "it splits a text only at white space"
        }
    };
    Err(DataError::TooLong { location: location(), limit: MAX_PIECE_BYTES, reason })
}

#[cfg(test)]
mod tests;
