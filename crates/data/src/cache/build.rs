//! Fills a cache folder: the tokenizer, then the parts, then the two files that training maps.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::parts::{Header, Part, Place, Published};
use super::publish::{TEMPORARY, publish, publish_bytes};
use super::{DOCUMENTS, IDS, TOKENIZER, TOKENIZER_CONFIG};
use crate::corpus::{Content, Corpus};
use crate::error::DataError;
use crate::settings::Progress;
use crate::tokenizer::Tokenizer;
use crate::train;

const PARTS: &str = "parts";

/// Bytes of text that are tokenised together, spread over the processors. A tokenizer's working memory is some hundred
/// times its text.
const BATCH: usize = 1 << 20;

pub(super) struct Build<'a> {
    pub(super) corpus: &'a Corpus,
    pub(super) origin: &'a Origin,
    pub(super) folder: &'a Path,
    /// Bytes of the corpus in a part.
    pub(super) part: u64,
}

/// The tokenizer to be used: [`TokenizerSource`] once its file has been read.
pub(super) enum Origin {
    Train { vocab_size: usize },
    File { path: PathBuf, bytes: Vec<u8>, hash: String },
}

pub(super) struct Built {
    pub(super) tokenizer: Tokenizer,
    pub(super) end_of_text: u32,
    pub(super) tokens: u64,
    pub(super) documents: u64,
    pub(super) empty: u64,
}

impl Build<'_> {
    /// Does what an earlier run left undone, and leaves all but `meta.json` in the folder.
    pub(super) fn run(&self, progress: &mut dyn FnMut(Progress)) -> Result<Built, DataError> {
        let parts = self.folder.join(PARTS);
        fs::create_dir_all(&parts).map_err(DataError::io("create", &parts))?;
        let tokenizer = self.tokenizer(progress)?;
        let headers = self.tokenise(&tokenizer, progress)?;
        for source in &self.corpus.sources {
            source.check_unchanged()?;
        }
        let sum = |count: fn(&Header) -> u64| headers.iter().map(count).sum();
        let built = Built {
            end_of_text: tokenizer.require_end_of_text()?,
            tokenizer,
            tokens: sum(|part| part.tokens),
            documents: sum(|part| part.documents),
            empty: sum(|part| part.empty),
        };
        if built.documents == 0 {
            return Err(DataError::Empty { files: self.corpus.sources.len() });
        }
        self.join(&headers, built.tokens)?;
        Ok(built)
    }

    /// Removes the parts, and what killed runs left; all of it is in the way, none of it does harm.
    pub(super) fn clean_up(&self) {
        fs::remove_dir_all(self.folder.join(PARTS)).ok();
        for file in fs::read_dir(self.folder).into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().ends_with(TEMPORARY) {
                fs::remove_file(file.path()).ok();
            }
        }
    }

    fn tokenizer(&self, progress: &mut dyn FnMut(Progress)) -> Result<Tokenizer, DataError> {
        let path = self.folder.join(TOKENIZER);
        let right = |found: &Tokenizer| match self.origin {
            Origin::Train { .. } => true,
            Origin::File { hash, .. } => hash == found.hash(),
        };
        let tokenizer = match Tokenizer::load(&path).ok().filter(right) {
            Some(tokenizer) => tokenizer,
            None => {
                match self.origin {
                    Origin::Train { vocab_size } => {
                        let total = self.corpus.size();
                        let mut read = |done| progress(Progress { what: "training the tokenizer", done, total });
                        publish_bytes(&path, &train::train(self.corpus, *vocab_size, &path, &mut read)?)?;
                    }
                    Origin::File { bytes, .. } => publish_bytes(&path, bytes)?,
                }
                Tokenizer::load(&path)?
            }
        };
        let theirs = match self.origin {
            Origin::Train { .. } => None,
            Origin::File { path, .. } => fs::read(path.with_file_name(TOKENIZER_CONFIG)).ok(),
        };
        let config = theirs.unwrap_or_else(|| format!("{:#}\n", tokenizer.config()).into_bytes());
        publish_bytes(&self.folder.join(TOKENIZER_CONFIG), &config)?;
        Ok(tokenizer)
    }

    /// The headers of all parts, of which those not there yet are made.
    fn tokenise(&self, tokenizer: &Tokenizer, progress: &mut dyn FnMut(Progress)) -> Result<Vec<Header>, DataError> {
        let mut headers: Vec<Header> = Vec::new();
        let mut place = Some(Place::default());
        while let Some(from) = place {
            let usable = |header: &Header| header.tokenizer == tokenizer.hash() && header.from == from;
            let found = Published::open(&self.part_path(headers.len())).map(|part| part.header).filter(usable);
            let Some(header) = found else { break };
            place = header.to;
            headers.push(header);
        }
        let Some(from) = place else { return Ok(headers) };

        let total = self.corpus.size();
        let mut part = Part::new(tokenizer, from)?;
        let mut batch = Batch::default();
        self.corpus.read(from.cursor, tokenizer.cuttable(), &mut |piece| {
            match piece.content {
                Content::Text(text) => batch.add(text, piece.ends),
                Content::Ids { .. } => {
                    batch.flush(&mut part, tokenizer)?;
                    part.push_file(&piece.content)?;
                    if piece.ends {
                        part.end_of_file();
                    }
                }
            }
            let full = piece.done - part.from().done >= self.part;
            if batch.bytes >= BATCH || full {
                batch.flush(&mut part, tokenizer)?;
            }
            if batch.bytes == 0 {
                progress(Progress { what: "tokenising", done: piece.done, total });
            }
            if let (true, Some(cursor)) = (full, piece.next) {
                let next = part.place(cursor, piece.done);
                let finished = std::mem::replace(&mut part, Part::new(tokenizer, next)?);
                headers.push(finished.publish(&self.part_path(headers.len()), Some(next))?);
            }
            Ok(())
        })?;
        batch.flush(&mut part, tokenizer)?;
        headers.push(part.publish(&self.part_path(headers.len()), None)?);
        progress(Progress { what: "tokenising", done: total, total });
        Ok(headers)
    }

    /// Lays the parts end to end.
    fn join(&self, headers: &[Header], tokens: u64) -> Result<(), DataError> {
        let open = |index: usize| {
            let path = self.part_path(index);
            let part = Published::open(&path).filter(|part| part.header == headers[index]);
            part.ok_or_else(|| DataError::io("read again", path)(std::io::ErrorKind::NotFound.into()))
        };
        let path = self.folder.join(DOCUMENTS);
        publish(&path, |file| {
            let mut before = 0;
            for (index, header) in headers.iter().enumerate() {
                open(index)?.copy_documents(before, file)?;
                before += header.tokens;
            }
            file.write_all(&tokens.to_le_bytes()).map_err(DataError::io("write", &path))
        })?;
        publish(&self.folder.join(IDS), |file| (0..headers.len()).try_for_each(|index| open(index)?.copy_ids(file)))
    }

    fn part_path(&self, index: usize) -> PathBuf {
        self.folder.join(PARTS).join(format!("{index:06}"))
    }
}

/// Texts that wait to be tokenised together, each with whether its document ends there.
#[derive(Default)]
struct Batch {
    texts: Vec<String>,
    ends: Vec<bool>,
    bytes: usize,
}

impl Batch {
    fn add(&mut self, text: &str, ends: bool) {
        self.bytes += text.len();
        self.texts.push(text.to_owned());
        self.ends.push(ends);
    }

    fn flush(&mut self, part: &mut Part, tokenizer: &Tokenizer) -> Result<(), DataError> {
        let batch = std::mem::take(self);
        for (ids, ends) in tokenizer.encode_all(batch.texts)?.iter().zip(batch.ends) {
            part.push(ids);
            if ends {
                part.end_document();
            }
        }
        Ok(())
    }
}
