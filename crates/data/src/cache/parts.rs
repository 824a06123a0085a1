//! A part of the tokenised corpus: a line of JSON, then where documents start in it, then the ids.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::publish::publish;
use crate::corpus::{Content, Cursor};
use crate::error::DataError;
use crate::tokenizer::Tokenizer;

/// Between which places of the corpus a part lies, and how much it holds.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) tokenizer: String,
    pub(super) from: Place,
    /// `None` where the corpus ends.
    pub(super) to: Option<Place>,
    pub(super) tokens: u64,
    pub(super) documents: u64,
    pub(super) empty: u64,
    id_bytes: usize,
}

/// Where a part begins. Parts begin at the same places whoever makes them, and wherever they were taken up again.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) cursor: Cursor,
    /// Bytes of the corpus that lie before.
    pub(super) done: u64,
    /// Whether it is within a document whose first tokens lie before.
    inside: bool,
}

/// A part that is being filled.
pub(super) struct Part<'a> {
    tokenizer: &'a Tokenizer,
    begin_of_text: Option<u32>,
    end_of_text: u32,
    from: Place,
    inside: bool,
    ids: Vec<u32>,
    starts: Vec<u64>,
    empty: u64,
}

/// Bytes an id takes on disk.
pub(super) fn id_bytes(tokenizer: &Tokenizer) -> usize {
    if tokenizer.vocab_size() <= 1 << 16 { 2 } else { 4 }
}

impl<'a> Part<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, from: Place) -> Result<Part<'a>, DataError> {
        Ok(Part {
            tokenizer,
            begin_of_text: tokenizer.begin_of_text(),
            end_of_text: tokenizer.require_end_of_text()?,
            from,
            inside: from.inside,
            ids: Vec::new(),
            starts: Vec::new(),
            empty: 0,
        })
    }

    /// Adds ids of a document's text; the first ones begin it.
    pub(super) fn push(&mut self, ids: &[u32]) {
        if !self.inside && !ids.is_empty() {
            self.inside = true;
            self.starts.push(self.ids.len() as u64);
            self.ids.extend(self.begin_of_text);
        }
        self.ids.extend(ids);
    }

    /// Ends the document. One without text leaves nothing but a count.
    pub(super) fn end_document(&mut self) {
        if self.inside {
            self.inside = false;
            self.ids.push(self.end_of_text);
        } else {
            self.empty += 1;
        }
    }

    /// Adds the contents of a token file: documents end at ends of text, and also where a new one begins.
    pub(super) fn push_file(&mut self, content: &Content) -> Result<(), DataError> {
        let Content::Ids { ids, source, first } = content else { return Ok(()) };
        let vocab_size = self.tokenizer.vocab_size();
        for (index, &id) in (*first..).zip(*ids) {
            if id as usize >= vocab_size {
                return Err(DataError::BeyondVocabulary { path: source.path.clone(), index, id, vocab_size });
            }
            match id {
                _ if id == self.end_of_text || Some(id) == self.begin_of_text => self.end_of_file(),
                _ => self.push(&[id]),
            }
        }
        Ok(())
    }

    /// Ends a token file's last document, unless its end-of-text token has.
    pub(super) fn end_of_file(&mut self) {
        if self.inside {
            self.end_document();
        }
    }

    /// Where it begins.
    pub(super) fn from(&self) -> Place {
        self.from
    }

    /// Where the next part begins if this one ends now, `done` bytes into the corpus, and reading goes on at `cursor`.
    pub(super) fn place(&self, cursor: Cursor, done: u64) -> Place {
        Place { cursor, done, inside: self.inside }
    }

    /// Publishes the part as `path`; the next one begins at `to`.
    pub(super) fn publish(self, path: &Path, to: Option<Place>) -> Result<Header, DataError> {
        let header = Header {
            tokenizer: self.tokenizer.hash().to_owned(),
            from: self.from,
            to,
            tokens: self.ids.len() as u64,
            documents: self.starts.len() as u64,
            empty: self.empty,
            id_bytes: id_bytes(self.tokenizer),
        };
        let failed = || DataError::io("write", path);
        publish(path, |file| {
            serde_json::to_writer(&mut *file, &header).map_err(|error| failed()(error.into()))?;
            file.write_all(b"\n").map_err(failed())?;
            for start in &self.starts {
                file.write_all(&start.to_le_bytes()).map_err(failed())?;
            }
            for id in &self.ids {
                file.write_all(&id.to_le_bytes()[..header.id_bytes]).map_err(failed())?;
            }
            Ok(())
        })?;
        Ok(header)
    }
}

/// A part on disk, read up to its document starts.
pub(super) struct Published {
    pub(super) header: Header,
    path: PathBuf,
    file: BufReader<File>,
}

impl Published {
    /// `None` unless the part is there and whole.
    pub(super) fn open(path: &Path) -> Option<Published> {
        let mut file = BufReader::with_capacity(1 << 20, File::open(path).ok()?);
        let mut line = String::new();
        file.read_line(&mut line).ok()?;
        let header: Header = serde_json::from_str(&line).ok()?;
        let size = line.len() as u64 + header.documents * 8 + header.tokens * header.id_bytes as u64;
        (fs::metadata(path).ok()?.len() == size).then(|| Published { header, path: path.into(), file })
    }

    /// Writes the document starts to `into`, counted from the corpus's first token: `before` lie before this part.
    pub(super) fn copy_documents(&mut self, before: u64, into: &mut impl Write) -> Result<(), DataError> {
        for _ in 0..self.header.documents {
            let mut start = [0; 8];
            self.file.read_exact(&mut start).map_err(DataError::io("read", &self.path))?;
            let start = before + u64::from_le_bytes(start);
            into.write_all(&start.to_le_bytes()).map_err(DataError::io("write", &self.path))?;
        }
        Ok(())
    }

    /// Writes the ids to `into`.
    pub(super) fn copy_ids(&mut self, into: &mut impl Write) -> Result<(), DataError> {
        let behind = self.header.tokens * self.header.id_bytes as u64;
        self.file.seek(std::io::SeekFrom::End(-(behind as i64))).map_err(DataError::io("read", &self.path))?;
        std::io::copy(&mut self.file, into).map_err(DataError::io("copy", &self.path))?;
        Ok(())
    }
}
