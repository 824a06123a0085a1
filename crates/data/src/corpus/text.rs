//! `.txt`: a file is one document, kept as it is, down to line ends and a byte order mark.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use super::pieces::{PIECE, last_cut};
use super::{Content, Cursor, Each, Piece, Source};
use crate::error::DataError;

pub(super) fn read(source: &Source, from: Cursor, cut: bool, each: &mut Each) -> Result<(), DataError> {
    let failed = || DataError::io("read", &source.path);
    let mut file = File::open(&source.path).map_err(failed())?;
    file.seek(SeekFrom::Start(from.offset)).map_err(failed())?;
    let mut offset = from.offset;
    let mut buffer = Vec::new();
    loop {
        // Filled up to a piece, so that the cuts depend on the offset alone and not on where reading began; doubled while
        // there is nowhere to cut, so that a text is looked at a few times and not once a piece.
        let wanted = match (cut, PIECE.saturating_sub(buffer.len())) {
            (false, _) => u64::MAX,
            (true, 0) => buffer.len() as u64,
            (true, room) => room as u64,
        };
        let more = file.by_ref().take(wanted).read_to_end(&mut buffer).map_err(failed())?;
        let ends = more == 0;
        let text = match std::str::from_utf8(&buffer) {
            Ok(text) => text,
            // The buffer may end within a character, the file may not.
            Err(error) if error.error_len().is_none() && !ends => {
                std::str::from_utf8(&buffer[..error.valid_up_to()]).unwrap_or_default()
            }
            Err(error) => {
                let offset = offset + error.valid_up_to() as u64;
                return Err(DataError::NotUtf8 { path: source.path.clone(), offset });
            }
        };
        let piece = match last_cut(text) {
            _ if ends => text,
            Some(at) if cut => &text[..at],
            _ => continue,
        };
        offset += piece.len() as u64;
        // After its end comes the next file; one that was killed in between goes on there, not with an empty rest.
        let next = if ends { Cursor { file: from.file + 1, ..Cursor::default() } } else { Cursor { offset, ..from } };
        each(Piece { content: Content::Text(piece), ends, next: Some(next), done: offset })?;
        if ends {
            return Ok(());
        }
        let sent = piece.len();
        buffer.drain(..sent);
    }
}
