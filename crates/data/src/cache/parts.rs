//! The file of one part of the tokenised corpus. It consists of a line of JSON, the offsets (in tokens) at which the
//! part's documents start, the token ids, and, for a corpus with conversations, a bitmap of the tokens that are trained
//! on.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::atomic_file::write_atomically;
use crate::corpus::Cursor;
use crate::document_tokens::{DocumentTokens, token_form};
use crate::error::DataError;
use crate::findings::Findings;
use crate::loss_mask::{MaskWriter, bit, id_of, mask_bytes, write_mask};
use crate::tokenizer::Tokenizer;

/// The first line of a part's file: the range of the corpus that the part covers, and the counts of its contents.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(super) struct PartHeader {
    pub(super) tokenizer: String,
    pub(super) from: PartStart,
    /// The beginning of the next part; `None` for the last part of the corpus.
    pub(super) to: Option<PartStart>,
    pub(super) tokens: u64,
    pub(super) documents: u64,
    pub(super) empty: u64,
    id_bytes: usize,
    /// Whether the bitmap of the tokens that are trained on follows the ids.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) has_mask: bool,
    #[serde(default)]
    pub(super) findings: Findings,
}

impl PartHeader {
    /// Returns the size in bytes of the data after the header. For damaged counts, returns a size that no file has.
    fn data_size(&self) -> u64 {
        let starts = self.documents.saturating_mul(8);
        starts.saturating_add(self.id_size()).saturating_add(self.mask_size())
    }

    /// Returns the size of the ids in bytes.
    fn id_size(&self) -> u64 {
        self.tokens.saturating_mul(self.id_bytes as u64)
    }

    /// Returns the size of the bitmap in bytes.
    fn mask_size(&self) -> u64 {
        if self.has_mask { mask_bytes(self.tokens) } else { 0 }
    }
}

/// The beginning of a part. It does not depend on the process that writes the parts, or on the part at which a run
/// resumed.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PartStart {
    pub(super) cursor: Cursor,
    /// The number of corpus bytes before the part.
    pub(super) done: u64,
    /// Whether the part begins within a document that began in an earlier part.
    inside: bool,
}

/// Collects a part in memory until the part is complete.
pub(super) struct PartWriter<'a> {
    from: PartStart,
    pub(super) documents: DocumentTokens<'a>,
}

impl<'a> PartWriter<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, from: PartStart) -> Result<PartWriter<'a>, DataError> {
        Ok(PartWriter { from, documents: DocumentTokens::new(tokenizer, from.inside)? })
    }

    /// Returns the number of collected tokens.
    pub(super) fn tokens(&self) -> u64 {
        self.documents.ids.len() as u64
    }

    /// Returns the beginning of the part.
    pub(super) fn from(&self) -> PartStart {
        self.from
    }

    /// Returns the beginning of the next part if this part ends at `cursor`, after `done` bytes of the corpus.
    pub(super) fn next_start(&self, cursor: Cursor, done: u64) -> PartStart {
        PartStart { cursor, done, inside: self.documents.is_inside() }
    }

    /// Writes the part to `path`. The next part begins at `to`.
    pub(super) fn finish(self, path: &Path, to: Option<PartStart>) -> Result<PartHeader, DataError> {
        let tokenizer = self.documents.tokenizer();
        let form = token_form(tokenizer);
        let DocumentTokens { ids, starts, empty, findings, .. } = self.documents;
        let header = PartHeader {
            tokenizer: tokenizer.hash().to_owned(),
            from: self.from,
            to,
            tokens: ids.len() as u64,
            documents: starts.len() as u64,
            empty,
            id_bytes: form.id_bytes,
            has_mask: form.has_mask,
            findings,
        };
        let failed = || DataError::io("write", path);
        write_atomically(path, |file| {
            serde_json::to_writer(&mut *file, &header).map_err(|error| failed()(error.into()))?;
            file.write_all(b"\n").map_err(failed())?;
            for start in &starts {
                file.write_all(&start.to_le_bytes()).map_err(failed())?;
            }
            for &token in &ids {
                file.write_all(&id_of(token).to_le_bytes()[..header.id_bytes]).map_err(failed())?;
            }
            if header.has_mask { write_mask(&ids, file).map_err(failed()) } else { Ok(()) }
        })?;
        Ok(header)
    }
}

/// The open file of a part, positioned at the document starts.
pub(super) struct PartReader {
    pub(super) header: PartHeader,
    path: PathBuf,
    file: BufReader<File>,
}

impl PartReader {
    /// Opens the part at `path`. Returns `None` if the file doesn't exist or isn't complete.
    pub(super) fn open(path: &Path) -> Option<PartReader> {
        let mut file = BufReader::with_capacity(1 << 20, File::open(path).ok()?);
        let mut line = String::new();
        file.read_line(&mut line).ok()?;
        let header: PartHeader = serde_json::from_str(&line).ok()?;
        let size = header.data_size().saturating_add(line.len() as u64);
        (fs::metadata(path).ok()?.len() == size).then(|| PartReader { header, path: path.into(), file })
    }

    /// Writes the document starts to `into`, as offsets from the first token of the corpus. `tokens_before` is the
    /// number of tokens before this part.
    pub(super) fn copy_documents(&mut self, tokens_before: u64, into: &mut impl Write) -> Result<(), DataError> {
        for _ in 0..self.header.documents {
            let mut start = [0; 8];
            self.file.read_exact(&mut start).map_err(DataError::io("read", &self.path))?;
            let start = tokens_before + u64::from_le_bytes(start);
            into.write_all(&start.to_le_bytes()).map_err(DataError::io("write", &self.path))?;
        }
        Ok(())
    }

    /// Writes the ids to `into`.
    pub(super) fn copy_ids(&mut self, into: &mut impl Write) -> Result<(), DataError> {
        let size = self.header.id_size();
        self.seek_before_end(size + self.header.mask_size())?;
        std::io::copy(&mut (&mut self.file).take(size), into).map_err(DataError::io("copy", &self.path))?;
        Ok(())
    }

    /// Writes the bits of the part's mask to `into`. All tokens of a part without a mask are trained on.
    pub(super) fn copy_mask(&mut self, into: &mut MaskWriter<impl Write>) -> Result<(), DataError> {
        let mut bytes = vec![u8::MAX; mask_bytes(self.header.tokens) as usize];
        if self.header.has_mask {
            self.seek_before_end(self.header.mask_size())?;
            self.file.read_exact(&mut bytes).map_err(DataError::io("read", &self.path))?;
        }
        let mut bits = (0..self.header.tokens).map(|token| bit(&bytes, token));
        bits.try_for_each(|bit| into.push(bit)).map_err(DataError::io("copy", &self.path))
    }

    fn seek_before_end(&mut self, bytes: u64) -> Result<(), DataError> {
        let sought = self.file.seek(std::io::SeekFrom::End(-(bytes as i64)));
        sought.map(drop).map_err(DataError::io("read", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A damaged header may still be valid JSON.
    #[test]
    fn a_part_with_counts_that_no_file_can_have_is_incomplete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("000000");
        let header = PartHeader {
            tokenizer: String::new(),
            from: PartStart::default(),
            to: None,
            tokens: 0,
            documents: 0,
            empty: 0,
            id_bytes: 4,
            has_mask: false,
            findings: Findings::default(),
        };
        let is_complete = |header: &PartHeader| {
            fs::write(&path, format!("{}\n", serde_json::to_string(header).unwrap())).unwrap();
            PartReader::open(&path).is_some()
        };
        assert!(is_complete(&header));
        for (documents, tokens) in [(0, u64::MAX), (u64::MAX, 0), (u64::MAX / 8, u64::MAX / 4)] {
            assert!(!is_complete(&PartHeader { documents, tokens, ..header.clone() }), "{documents}, {tokens}");
        }
    }
}
