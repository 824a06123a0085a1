//! The memory-mapped files of a tokenised corpus: token ids and document offsets, both little-endian, and the bitmap of
//! the tokens that are trained on.

use std::path::Path;

use memmap2::Mmap;

use crate::error::DataError;
use crate::loss_mask::LossMask;
use crate::map_file::map_file;

/// The file of the token ids in a folder of tokens.
pub(crate) const TOKEN_IDS_FILE: &str = "ids.bin";

/// The file of the document offsets in a folder of tokens.
pub(crate) const DOCUMENTS_FILE: &str = "documents.bin";

/// The form in which tokens are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenForm {
    /// The number of bytes per id.
    pub(crate) id_bytes: usize,
    /// Whether a bitmap shows the tokens that are trained on. Without a bitmap, all tokens are trained on.
    pub(crate) has_mask: bool,
}

/// The memory-mapped files of documents.
pub(crate) struct TokenFiles {
    pub(crate) ids: TokenIds,
    pub(crate) offsets: DocumentOffsets,
    pub(crate) mask: Option<LossMask>,
}

impl TokenFiles {
    /// Maps the files of a folder, which hold `tokens` tokens and `documents` documents.
    pub(crate) fn open(folder: &Path, tokens: u64, documents: u64, form: TokenForm) -> Result<TokenFiles, DataError> {
        Ok(TokenFiles {
            ids: TokenIds::open(&folder.join(TOKEN_IDS_FILE), tokens, form.id_bytes)?,
            offsets: DocumentOffsets::open(&folder.join(DOCUMENTS_FILE), documents)?,
            mask: if form.has_mask { Some(LossMask::open(folder, tokens)?) } else { None },
        })
    }
}

/// Memory-mapped token ids of 2 or 4 bytes.
pub(crate) struct TokenIds {
    map: Mmap,
    width: usize,
}

/// The index of the token at which each document starts, followed by the number of all tokens.
pub(crate) struct DocumentOffsets {
    map: Mmap,
}

impl TokenIds {
    /// Maps a file of `count` ids with `width` bytes each.
    pub(crate) fn open(path: &Path, count: u64, width: usize) -> Result<TokenIds, DataError> {
        // a count from a damaged header gives a size that no file has
        Ok(TokenIds { map: map_file(path, count.saturating_mul(width as u64))?, width })
    }

    /// Returns the ids `start..start + count`.
    pub(crate) fn range(&self, start: u64, count: usize) -> impl Iterator<Item = u32> + '_ {
        let from = start as usize * self.width;
        self.map[from..from + count * self.width].chunks_exact(self.width).map(|bytes| match *bytes {
            [a, b] => u32::from(u16::from_le_bytes([a, b])),
            [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
            _ => 0, // ids have no other width
        })
    }
}

impl DocumentOffsets {
    /// Maps a file with the offsets of `count` documents.
    pub(crate) fn open(path: &Path, count: u64) -> Result<DocumentOffsets, DataError> {
        Ok(DocumentOffsets { map: map_file(path, count.saturating_add(1).saturating_mul(8))? })
    }

    /// Returns the number of documents.
    pub(crate) fn count(&self) -> u64 {
        self.offsets().len() as u64 - 1
    }

    /// Returns the position of the first token of document `index`. For `count()`, returns the end of the last
    /// document.
    pub(crate) fn start(&self, index: u64) -> u64 {
        u64::from_le_bytes(self.offsets()[index as usize])
    }

    /// Returns the index of the document that contains `token`.
    pub(crate) fn containing(&self, token: u64) -> u64 {
        let starts = &self.offsets()[..self.count() as usize];
        starts.partition_point(|start| u64::from_le_bytes(*start) <= token) as u64 - 1
    }

    /// Returns the offsets as they are in the file.
    fn offsets(&self) -> &[[u8; 8]] {
        self.map.as_chunks().0
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns documents of the given lengths, whose ids count from 0.
    pub(crate) fn mapped(lengths: &[u64]) -> TokenFiles {
        let mut ends = lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        let starts: Vec<u64> = std::iter::once(0).chain(ends.by_ref()).collect();
        let tokens = starts[lengths.len()] as u32;
        files(&(0..tokens).collect::<Vec<_>>(), &starts[..lengths.len()])
    }

    /// Returns documents that start at the positions `starts` of `ids`.
    pub(crate) fn files(ids: &[u32], starts: &[u64]) -> TokenFiles {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: Vec<u8>| std::fs::write(folder.path().join(name), bytes).unwrap();
        write(TOKEN_IDS_FILE, ids.iter().flat_map(|id| id.to_le_bytes()).collect());
        write(
            DOCUMENTS_FILE,
            starts.iter().chain([&(ids.len() as u64)]).flat_map(|start| start.to_le_bytes()).collect(),
        );
        let form = TokenForm { id_bytes: 4, has_mask: false };
        TokenFiles::open(folder.path(), ids.len() as u64, starts.len() as u64, form).unwrap()
    }
}
