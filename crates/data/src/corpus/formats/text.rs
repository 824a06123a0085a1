//! `.txt`: a file is one document. All bytes are kept, including line ends, except for a byte order mark.

use std::io::Read;

use super::{Contents, Format, ReadOptions};
use crate::config::OnBadRecord;
use crate::corpus::pieces::{self, MAX_PIECE_BYTES, PIECE_BYTES, SplitPoints, check_length, last_split};
use crate::corpus::{BadRecordReason, Content, CorpusFile, Cursor, Piece, PieceHandler};
use crate::error::DataError;

pub(super) const TEXT: Format = Format {
    extension: "txt",
    description: "one document",
    unit: "document",
    first_unit: 1,
    may_be_compressed: true,
    can_be_divided: false,
    hashed_name: "Text",
    contents: Contents::PlainText,
    read,
};

fn read(
    corpus_file: &CorpusFile,
    options: &ReadOptions,
    from: Cursor,
    on_piece: &mut PieceHandler,
) -> Result<(), DataError> {
    let split = options.split;
    let next_file = Cursor { file: from.file + 1, ..Cursor::default() };
    let not_utf8 = |offset| DataError::NotUtf8 { path: corpus_file.path.clone(), offset };
    // `Skip` leaves out the whole file, so the whole file is checked before its first piece
    if options.on_bad_record == OnBadRecord::Skip
        && from.offset == 0
        && let Some(offset) = find_invalid(corpus_file)?
    {
        let bad = (BadRecordReason::NotUtf8, not_utf8(offset));
        return pieces::emit_bad_record(bad, from.file, next_file, corpus_file.stamp.size, on_piece);
    }
    let mut reader = corpus_file.open_text(from.offset)?;
    let mut offset = reader.offset();
    let mut buffer = Vec::new();
    loop {
        // Each read fills the buffer up to one piece, so that the splits depend only on the offset, not on where
        // reading began. While the buffer has no position for a split, each read doubles it, so that a text is scanned
        // a few times, not once per piece.
        let wanted = match (split, PIECE_BYTES.saturating_sub(buffer.len())) {
            (SplitPoints::Never, _) => MAX_PIECE_BYTES as u64 + 1,
            (_, 0) => buffer.len() as u64,
            (_, missing) => missing as u64,
        };
        let more = reader.by_ref().take(wanted).read_to_end(&mut buffer).map_err(corpus_file.read_failed())?;
        let is_last = more == 0;
        let text = match std::str::from_utf8(&buffer) {
            Ok(text) => text,
            // The buffer may end within a character, but the file may not.
            Err(error) if error.error_len().is_none() && !is_last => {
                std::str::from_utf8(&buffer[..error.valid_up_to()]).unwrap_or_default()
            }
            Err(error) => {
                let bad = (BadRecordReason::NotUtf8, not_utf8(offset + error.valid_up_to() as u64));
                return pieces::emit_bad_record(bad, from.file, next_file, corpus_file.stamp.size, on_piece);
            }
        };
        let piece = match last_split(text, split) {
            _ if is_last => text,
            Some(at) => &text[..at],
            None => {
                check_length(buffer.len(), split, || corpus_file.path.display().to_string())?;
                continue;
            }
        };
        offset += piece.len() as u64;
        // After the last piece, reading resumes with the next file, not with an empty piece of this file.
        let resume_at = if is_last { next_file } else { Cursor { offset, ..from } };
        let content = Content::Text(piece);
        let bytes_read = reader.file_bytes(offset);
        on_piece(Piece { content, record: 1, is_last, resume_at: Some(resume_at), bytes_read })?;
        if is_last {
            return Ok(());
        }
        let emitted = piece.len();
        buffer.drain(..emitted);
    }
}

/// Returns the position of the first byte that is not valid UTF-8 in a file, or `None` if the whole file is valid
/// UTF-8.
fn find_invalid(corpus_file: &CorpusFile) -> Result<Option<u64>, DataError> {
    let mut reader = corpus_file.open_text(0)?;
    let mut offset = reader.offset();
    let mut buffer = Vec::new();
    loop {
        let more = reader.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut buffer);
        let is_last = more.map_err(corpus_file.read_failed())? == 0;
        let valid = match std::str::from_utf8(&buffer) {
            Ok(text) => text.len(),
            Err(error) if error.error_len().is_none() && !is_last => error.valid_up_to(),
            Err(error) => return Ok(Some(offset + error.valid_up_to() as u64)),
        };
        if is_last {
            return Ok(None);
        }
        buffer.drain(..valid);
        offset += valid as u64;
    }
}
