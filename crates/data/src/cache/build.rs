//! Fills the folder of a token cache: first the tokenizer, then the parts (consecutive ranges of the tokenised corpus),
//! then the files that training maps into memory.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::parts::{PartHeader, PartReader, PartStart, PartWriter};
use crate::atomic_file::{write_atomically, write_bytes_atomically};
use crate::config::{DocumentFormat, PrepareProgress};
use crate::corpus::{Content, Corpus, Cursor, SplitPoints};
use crate::error::DataError;
use crate::findings::Findings;
use crate::loss_mask::{MASK_FILE, MaskWriter};
use crate::mapped::{DOCUMENTS_FILE, TOKEN_IDS_FILE};
use crate::named_tokens::NamedTokens;
use crate::prepared::{PreparedSource, TOKENIZER_FILE};
use crate::text_batch::{ENCODE_BATCH_BYTES, TextBatch};
use crate::tokenizer::Tokenizer;
use crate::tokenizer_training;
use crate::without_documents::without_documents;

const PARTS_DIR: &str = "parts";

/// Fills the cache folder of one corpus and one tokenizer.
pub(super) struct CacheBuilder<'a> {
    pub(super) corpus: &'a Corpus,
    pub(super) tokenizer: &'a ResolvedTokenizer,
    pub(super) folder: &'a Path,
    /// The number of corpus bytes per part. Compressed text may expand to many more tokens, and memory holds a whole
    /// part. A part therefore also ends at about `2 * part_bytes` tokens.
    pub(super) part_bytes: u64,
}

/// A [`TokenizerSource`](crate::TokenizerSource). If the source names a tokenizer file, the file has been read.
pub(super) enum ResolvedTokenizer {
    Train { vocab_size: usize, parse: bool },
    File { tokenizer: Box<Tokenizer>, bytes: Vec<u8> },
}

impl ResolvedTokenizer {
    /// Returns the tokenizer, and writes its file to `folder`. If the tokenizer is to be trained, the function reads
    /// the file that an earlier run wrote to `folder`. If this file is missing or damaged, the function trains the
    /// tokenizer on the texts that `read` passes to its callback.
    ///
    /// # Errors
    /// Fails if `read` fails, if the tokenizers library reports an error, or if the volume can't be written.
    pub(super) fn prepare(
        &self,
        folder: &Path,
        read: impl FnOnce(&mut dyn FnMut(&str)) -> Result<(), DataError>,
    ) -> Result<Tokenizer, DataError> {
        let path = folder.join(TOKENIZER_FILE);
        match self {
            ResolvedTokenizer::File { tokenizer, bytes } => {
                write_bytes_atomically(&path, bytes)?;
                Ok(Tokenizer::clone(tokenizer))
            }
            &ResolvedTokenizer::Train { vocab_size, parse } => {
                match Tokenizer::read(&path, parse, &NamedTokens::default()) {
                    Ok((trained, _)) => Ok(trained),
                    Err(_) => {
                        let json = tokenizer_training::train(vocab_size, &path, read)?;
                        write_bytes_atomically(&path, &json)?;
                        Ok(Tokenizer::read(&path, parse, &NamedTokens::default())?.0)
                    }
                }
            }
        }
    }
}

/// The contents of a cache folder that lacks only `meta.json`.
pub(super) struct CacheContents {
    pub(super) tokenizer: Tokenizer,
    pub(super) eos_token_id: u32,
    pub(super) sources: Vec<PreparedSource>,
    pub(super) tokens: u64,
    pub(super) documents: u64,
    pub(super) empty_documents: u64,
    pub(super) findings: Findings,
}

impl CacheBuilder<'_> {
    /// Fills the folder except for `meta.json`. The function reuses the files that an earlier run completed.
    pub(super) fn run(&self, progress: &mut dyn FnMut(PrepareProgress)) -> Result<CacheContents, DataError> {
        let parts = self.folder.join(PARTS_DIR);
        fs::create_dir_all(&parts).map_err(DataError::io("create", &parts))?;
        let tokenizer = self.prepare_tokenizer(progress)?;
        let headers = self.tokenise(&tokenizer, progress)?;
        let mut findings = Findings::default();
        headers.iter().for_each(|part| findings.add(&part.findings));
        for file in &self.corpus.files {
            file.check_unchanged()?;
        }
        let sum = |count: fn(&PartHeader) -> u64| headers.iter().map(count).sum();
        let contents = CacheContents {
            eos_token_id: tokenizer.require_eos_token()?,
            tokenizer,
            sources: self.sources(&headers),
            tokens: sum(|part| part.tokens),
            documents: sum(|part| part.documents),
            empty_documents: sum(|part| part.empty),
            findings,
        };
        if contents.documents == 0 {
            return Err(without_documents(self.corpus, 0..self.corpus.files.len(), &contents.findings));
        }
        self.check_conversations(&headers, &contents.sources)?;
        self.concatenate_parts(&headers, contents.tokens)?;
        Ok(contents)
    }

    /// Removes the parts.
    pub(super) fn remove_parts(&self) {
        fs::remove_dir_all(self.folder.join(PARTS_DIR)).ok();
    }

    /// Calls [`ResolvedTokenizer::prepare`] with the texts of all training files.
    fn prepare_tokenizer(&self, progress: &mut dyn FnMut(PrepareProgress)) -> Result<Tokenizer, DataError> {
        let (bytes_total, end) = (self.corpus.size(), self.corpus.training_files);
        self.tokenizer.prepare(self.folder, |on_text| {
            self.corpus.read_until(Cursor::default(), end, SplitPoints::BeforeWhitespace, &mut |piece| {
                if let Content::Text(text) = piece.content {
                    on_text(text);
                }
                let bytes_done = piece.bytes_read;
                progress(PrepareProgress { phase: "training the tokenizer", bytes_done, bytes_total });
                Ok(())
            })
        })
    }

    /// Returns the headers of all parts, and writes the parts that don't exist.
    fn tokenise(
        &self,
        tokenizer: &Tokenizer,
        progress: &mut dyn FnMut(PrepareProgress),
    ) -> Result<Vec<PartHeader>, DataError> {
        let mut headers: Vec<PartHeader> = Vec::new();
        let mut start = Some(PartStart::default());
        while let Some(from) = start {
            let usable = |header: &PartHeader| header.tokenizer == tokenizer.hash() && header.from == from;
            let found = PartReader::open(&self.part_path(headers.len())).map(|part| part.header).filter(usable);
            let Some(header) = found else { break };
            start = header.to;
            headers.push(header);
        }
        let Some(from) = start else { return Ok(headers) };

        let bytes_total = self.corpus.size();
        let mut start = Some(from);
        while let Some(from) = start {
            start = self.tokenise_source(tokenizer, from, &mut headers, progress)?;
        }
        progress(PrepareProgress { phase: "tokenising", bytes_done: bytes_total, bytes_total });
        Ok(headers)
    }

    /// Writes the parts from `from` to the end of the source that contains `from`. Returns the start of the next
    /// source's first part, or `None` after the last source.
    fn tokenise_source(
        &self,
        tokenizer: &Tokenizer,
        from: PartStart,
        headers: &mut Vec<PartHeader>,
        progress: &mut dyn FnMut(PrepareProgress),
    ) -> Result<Option<PartStart>, DataError> {
        let bytes_total = self.corpus.size();
        let end = self.corpus.source_ends[self.corpus.source_at(from.cursor)];
        let mut part = PartWriter::new(tokenizer, from)?;
        let mut batch = TextBatch::default();
        self.corpus.read_until(from.cursor, end, tokenizer.split(), &mut |piece| {
            batch.add(&piece, &mut part.documents)?;
            let full = piece.bytes_read - part.from().done >= self.part_bytes || part.tokens() >= 2 * self.part_bytes;
            if batch.bytes() >= ENCODE_BATCH_BYTES || full {
                batch.flush(&mut part.documents)?;
            }
            if batch.bytes() == 0 {
                progress(PrepareProgress { phase: "tokenising", bytes_done: piece.bytes_read, bytes_total });
            }
            // the last part of a source is finished after the loop
            if let (true, Some(cursor)) = (full, piece.resume_at.filter(|cursor| cursor.file < end)) {
                let next = part.next_start(cursor, piece.bytes_read);
                let finished = std::mem::replace(&mut part, PartWriter::new(tokenizer, next)?);
                headers.push(finished.finish(&self.part_path(headers.len()), Some(next))?);
            }
            Ok(())
        })?;
        batch.flush(&mut part.documents)?;
        let next = (end < self.corpus.files.len()).then(|| {
            let cursor = Cursor { file: end, ..Cursor::default() };
            part.next_start(cursor, self.corpus.bytes_before(end))
        });
        headers.push(part.finish(&self.part_path(headers.len()), next)?);
        Ok(next)
    }

    /// Returns the numbers of documents and tokens of each source.
    fn sources(&self, headers: &[PartHeader]) -> Vec<PreparedSource> {
        let mut sources = vec![PreparedSource::default(); self.corpus.source_ends.len()];
        for header in headers {
            let source = &mut sources[self.corpus.source_at(header.from.cursor)];
            source.documents += header.documents;
            source.tokens += header.tokens;
        }
        sources
    }

    /// Fails if every record of a source with conversations is left out.
    fn check_conversations(&self, headers: &[PartHeader], sources: &[PreparedSource]) -> Result<(), DataError> {
        let has_conversations = |index: &usize| {
            let first = self.corpus.files.get(self.corpus.files_of(*index).start);
            first.is_some_and(|file| file.documents != DocumentFormat::Text)
        };
        let empty = sources.iter().enumerate().filter(|(_, source)| source.documents == 0).map(|(index, _)| index);
        for index in empty.filter(has_conversations) {
            let mut findings = Findings::default();
            let source_headers = headers.iter().filter(|header| self.corpus.source_at(header.from.cursor) == index);
            source_headers.for_each(|header| findings.add(&header.findings));
            if findings.most_frequent_reason().is_some() {
                return Err(without_documents(self.corpus, self.corpus.files_of(index), &findings));
            }
        }
        Ok(())
    }

    /// Concatenates the parts into the files that training maps into memory.
    fn concatenate_parts(&self, headers: &[PartHeader], tokens: u64) -> Result<(), DataError> {
        let open = |index: usize| {
            let path = self.part_path(index);
            let part = PartReader::open(&path).filter(|part| part.header == headers[index]);
            part.ok_or_else(|| DataError::io("read again", path)(std::io::ErrorKind::NotFound.into()))
        };
        let path = self.folder.join(DOCUMENTS_FILE);
        write_atomically(&path, |file| {
            let mut tokens_before = 0;
            for (index, header) in headers.iter().enumerate() {
                open(index)?.copy_documents(tokens_before, file)?;
                tokens_before += header.tokens;
            }
            file.write_all(&tokens.to_le_bytes()).map_err(DataError::io("write", &path))
        })?;
        let path = self.folder.join(TOKEN_IDS_FILE);
        write_atomically(&path, |file| (0..headers.len()).try_for_each(|index| open(index)?.copy_ids(file)))?;
        if headers.iter().all(|header| !header.has_mask) {
            return Ok(());
        }
        let path = self.folder.join(MASK_FILE);
        write_atomically(&path, |file| {
            let mut mask = MaskWriter::new(file);
            (0..headers.len()).try_for_each(|index| open(index)?.copy_mask(&mut mask))?;
            mask.finish().map_err(DataError::io("write", &path))
        })
    }

    fn part_path(&self, index: usize) -> PathBuf {
        self.folder.join(PARTS_DIR).join(format!("{index:06}"))
    }
}
