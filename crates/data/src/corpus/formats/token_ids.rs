//! `.tokens` and `.u16`: token ids produced by another tool, little-endian, without a header.

use std::io::Read;

use super::{Contents, Format};
use crate::corpus::pieces::PIECE_BYTES;
use crate::corpus::{Content, CorpusFile, Cursor, Piece, PieceHandler};
use crate::error::DataError;

pub(super) const IDS_32: Format = Format {
    extension: "tokens",
    description: "32-bit little-endian token ids",
    unit: "document",
    first_unit: 1,
    may_be_compressed: false,
    can_be_divided: false,
    hashed_name: "Ids32",
    contents: Contents::TokenIds,
    read: |file, _, from, on_piece| read(file, 4, from, on_piece),
};

pub(super) const IDS_16: Format = Format {
    extension: "u16",
    description: "16-bit little-endian token ids",
    hashed_name: "Ids16",
    read: |file, _, from, on_piece| read(file, 2, from, on_piece),
    ..IDS_32
};

/// Reads the ids of a file. `width` is the number of bytes per id, 2 or 4.
fn read(corpus_file: &CorpusFile, width: usize, from: Cursor, on_piece: &mut PieceHandler) -> Result<(), DataError> {
    let failed = || DataError::io("read", &corpus_file.path);
    if !corpus_file.stamp.size.is_multiple_of(width as u64) {
        return Err(DataError::TruncatedIds {
            path: corpus_file.path.clone(),
            size: corpus_file.stamp.size,
            width: width as u64,
        });
    }
    let mut file = corpus_file.open_at(from.offset).map_err(failed())?;
    let mut offset = from.offset;
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        file.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut buffer).map_err(failed())?;
        let ids: Vec<u32> = buffer.chunks_exact(width).map(decode_id).collect();
        let first_index = offset / width as u64;
        offset += (ids.len() * width) as u64;
        let is_last = ids.is_empty();
        let resume_at =
            if is_last { Cursor { file: from.file + 1, ..Cursor::default() } } else { Cursor { offset, ..from } };
        let content = Content::Ids { ids: &ids, width, file: corpus_file, first_index };
        on_piece(Piece { content, record: 1, is_last, resume_at: Some(resume_at), bytes_read: offset })?;
        if is_last {
            return Ok(());
        }
    }
}

fn decode_id(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |id, &byte| id << 8 | u32::from(byte))
}
