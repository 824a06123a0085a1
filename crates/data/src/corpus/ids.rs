//! `.tokens` and `.u16`: token ids that someone else's tokenisation left, little-endian, without a header.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use super::pieces::PIECE;
use super::{Content, Cursor, Each, Piece, Source};
use crate::error::DataError;

/// `width`: bytes of an id, 2 or 4.
pub(super) fn read(source: &Source, width: usize, from: Cursor, each: &mut Each) -> Result<(), DataError> {
    let failed = || DataError::io("read", &source.path);
    if !source.size.is_multiple_of(width as u64) {
        return Err(DataError::UnevenIds { path: source.path.clone(), size: source.size, width: width as u64 });
    }
    let mut file = File::open(&source.path).map_err(failed())?;
    file.seek(SeekFrom::Start(from.offset)).map_err(failed())?;
    let mut offset = from.offset;
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        file.by_ref().take(PIECE as u64).read_to_end(&mut buffer).map_err(failed())?;
        let ids: Vec<u32> = buffer.chunks_exact(width).map(little_endian).collect();
        let first = offset / width as u64;
        offset += (ids.len() * width) as u64;
        let ends = ids.is_empty();
        let next = if ends { Cursor { file: from.file + 1, ..Cursor::default() } } else { Cursor { offset, ..from } };
        let content = Content::Ids { ids: &ids, source, first };
        each(Piece { content, ends, next: Some(next), done: offset })?;
        if ends {
            return Ok(());
        }
    }
}

fn little_endian(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |id, &byte| id << 8 | u32::from(byte))
}
