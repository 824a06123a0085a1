//! Finds the files and texts of documents as the token cache counts them, and the reverse. The cache knows documents by
//! number alone, so the corpus is read again, file by file, up to the last requested document. Only the requested
//! documents are tokenised.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::config::{DataConfig, OnBadRecord, PrepareProgress};
use crate::corpus::{Content, Corpus, CorpusFile, Cursor, few};
use crate::dataset::{DocumentPart, IGNORE_INDEX};
use crate::error::DataError;
use crate::prepared::PreparedCorpus;
use crate::tokenizer::Tokenizer;

/// The name of a document for people, such as `corpus/a.jsonl:17`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DocumentName {
    /// Path of the file, relative to the volume's root.
    pub file: String,
    /// The number of the document's [`unit`](crate::Format::unit) in the file, from
    /// [`first_unit`](crate::Format::first_unit) on.
    pub number: u64,
}

impl fmt::Display for DocumentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.number)
    }
}

impl FromStr for DocumentName {
    type Err = String;

    fn from_str(text: &str) -> Result<DocumentName, String> {
        let parts = text.rsplit_once(':').and_then(|(file, number)| Some((file, number.parse().ok()?)));
        match parts {
            Some((file, number)) if !file.is_empty() => Ok(DocumentName { file: file.to_owned(), number }),
            _ => Err(format!("`{text}` is not FILE:DOC, such as corpus/a.jsonl:17 for the 17th line of a file")),
        }
    }
}

/// The origin of a part of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartText {
    /// The document.
    pub name: DocumentName,
    /// Bytes of the document's text before the part. For a file of token ids, bytes of the document's ids before the
    /// part.
    pub offset: u64,
    /// The text of the part's inputs and of the target after the last input.
    pub text: String,
}

/// The origin of each of `parts`, in the same order. Reads the corpus up to the last of the parts' documents.
///
/// # Errors
/// Fails if the corpus can't be read any more, or with `OtherTokens` if a tokenizer gives other ids than before.
pub fn part_texts(
    config: &DataConfig,
    prepared: &PreparedCorpus,
    parts: &[DocumentPart],
    progress: &mut dyn FnMut(PrepareProgress),
) -> Result<Vec<PartText>, DataError> {
    let walk = Walk::begin(config, prepared)?;
    let mut wanted: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (index, part) in parts.iter().enumerate() {
        wanted.entry(part.document).or_default().push(index);
    }
    let Some(last) = wanted.keys().next_back().copied() else { return Ok(Vec::new()) };
    let mut found: Vec<Option<PartText>> = vec![None; parts.len()];
    // tokens and bytes of the document before the piece
    let (mut tokens, mut bytes) = (0, 0);
    walk.run(progress, &mut |piece| {
        let Some(of_document) = wanted.get(&piece.document) else { return Ok(piece.document <= last) };
        let (ids, ranges) = match piece.content {
            PieceContent::Text(text) => walk.tokenizer.encode_with_bytes(text)?,
            PieceContent::Ids { ids, width } => {
                (ids.to_vec(), (0..ids.len()).map(|index| index * width..(index + 1) * width).collect())
            }
        };
        if piece.is_first {
            (tokens, bytes) = (u64::from(walk.tokenizer.bos_before(&ids).is_some()), 0);
        }
        for &index in of_document {
            let part = &parts[index];
            let begin = part.tokens.start.max(tokens);
            // a part of a document may end before the document, and then its last input has no target
            let has_target = part.targets.last().is_some_and(|&target| target != IGNORE_INDEX);
            let end = (part.tokens.end + u64::from(has_target)).min(tokens + ids.len() as u64);
            let name = || DocumentName { file: piece.file.name.clone(), number: piece.number };
            let Some((first, last)) = (begin..end).next().zip((begin..end).next_back()) else { continue };
            let [first, last] = [first, last].map(|token| (token - tokens) as usize);
            let of_part = part.inputs.iter().chain(part.targets.last());
            let of_part = of_part.skip((begin - part.tokens.start) as usize);
            if !ids[first..=last].iter().zip(of_part).all(|(&id, &token)| i64::from(id) == token) {
                return Err(DataError::OtherTokens { name: name().to_string() });
            }
            let range = ranges[first].start..ranges[last].end;
            let text = match piece.content {
                PieceContent::Text(text) => text.get(range.clone()).unwrap_or_default().to_owned(),
                PieceContent::Ids { ids, .. } => walk.tokenizer.decode(&ids[first..=last])?,
            };
            let offset = bytes + range.start as u64;
            found[index].get_or_insert_with(|| PartText { name: name(), offset, text: String::new() }).text += &text;
        }
        tokens += ids.len() as u64;
        bytes += match piece.content {
            PieceContent::Text(text) => text.len() as u64,
            PieceContent::Ids { ids, width } => (ids.len() * width) as u64,
        };
        Ok(true)
    })?;
    let lost = |part: &DocumentPart| DataError::OtherTokens { name: format!("document {}", part.document) };
    found.into_iter().zip(parts).map(|(found, part)| found.ok_or_else(|| lost(part))).collect()
}

/// The index of each of `names` among the documents that have tokens. Reads the corpus up to the last named file.
///
/// # Errors
/// `NoDocument` if a named document doesn't exist or has no tokens. Also fails if the corpus can't be read any more.
pub fn document_indices(
    config: &DataConfig,
    prepared: &PreparedCorpus,
    names: &[DocumentName],
    progress: &mut dyn FnMut(PrepareProgress),
) -> Result<Vec<u64>, DataError> {
    let walk = Walk::begin(config, prepared)?;
    for name in names {
        if walk.corpus.files.iter().all(|file| file.name != name.file) {
            let problem = format!("data.paths matches {}", few(&walk.corpus.file_names()));
            return Err(DataError::NoDocument { name: name.to_string(), problem });
        }
    }
    let files: BTreeSet<&str> = names.iter().map(|name| name.file.as_str()).collect();
    let last_file = walk.corpus.files.iter().rev().find(|file| files.contains(&*file.name)).map(|file| &file.name);
    let mut found: Vec<Option<u64>> = vec![None; names.len()];
    // the first and the last document number of each file
    let mut numbers: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    walk.run(progress, &mut |piece| {
        if let Some(&file) = files.get(&*piece.file.name).filter(|_| piece.is_first) {
            numbers.entry(file).or_insert((piece.number, piece.number)).1 = piece.number;
            for (_, found) in
                names.iter().zip(&mut found).filter(|(name, _)| (&*name.file, name.number) == (file, piece.number))
            {
                *found = Some(piece.document);
            }
        }
        Ok(Some(&piece.file.name) != last_file)
    })?;
    let missing = |name: &DocumentName| {
        let problem = match numbers.get(&*name.file) {
            Some((first, last)) if (first..=last).contains(&&name.number) => match config.on_bad_record {
                OnBadRecord::Fail => "it is empty".to_owned(),
                OnBadRecord::Skip => "it is empty or holds no text".to_owned(),
            },
            Some((first, last)) if first == last => format!("the file has one, {}:{first}", name.file),
            Some((first, last)) => format!("the file has {}:{first} to {}:{last}", name.file, name.file),
            None => "the file has none with any text".to_owned(),
        };
        DataError::NoDocument { name: name.to_string(), problem }
    };
    found.into_iter().zip(names).map(|(found, name)| found.ok_or_else(|| missing(name))).collect()
}

/// A second reading of the corpus.
struct Walk {
    corpus: Corpus,
    tokenizer: Tokenizer,
}

/// A piece of a document that has tokens.
struct DocumentPiece<'a> {
    file: &'a CorpusFile,
    /// See [`DocumentName::number`].
    number: u64,
    /// Index among the documents that have tokens.
    document: u64,
    /// Whether the document begins with this piece.
    is_first: bool,
    content: PieceContent<'a>,
}

#[derive(Clone, Copy)]
enum PieceContent<'a> {
    Text(&'a str),
    Ids {
        ids: &'a [u32],
        /// Bytes per id in the file.
        width: usize,
    },
}

/// Receives every piece, in the order of the corpus. Returns whether it needs the pieces of the files after this one.
type OnPiece<'a> = dyn FnMut(&DocumentPiece) -> Result<bool, DataError> + 'a;

impl Walk {
    fn begin(config: &DataConfig, prepared: &PreparedCorpus) -> Result<Walk, DataError> {
        Ok(Walk { corpus: Corpus::find(config)?, tokenizer: prepared.tokenizer(config)? })
    }

    /// Passes on every piece. Documents are counted as the cache counts them: a document without tokens does not count.
    fn run(&self, progress: &mut dyn FnMut(PrepareProgress), on_piece: &mut OnPiece) -> Result<(), DataError> {
        let bytes_total = self.corpus.size();
        let (mut documents, mut bytes_before) = (0, 0);
        for (index, file) in self.corpus.files.iter().enumerate() {
            let from = Cursor { file: index, ..Cursor::default() };
            let mut reader = FileWalk { walk: self, file, documents, number: 0, is_open: false, goes_on: true };
            self.corpus.read_file(from, self.tokenizer.split(), &mut |piece| {
                match piece.content {
                    Content::Text(text) => reader.text(text, piece.record, piece.is_last, on_piece)?,
                    Content::Ids { ids, width, .. } => reader.ids(ids, width, piece.is_last, on_piece)?,
                    Content::LoneSurrogates(_) | Content::BadRecord(_) => {}
                }
                let bytes_done = bytes_before + piece.bytes_read.min(file.stamp.size);
                progress(PrepareProgress { phase: "finding documents", bytes_done, bytes_total });
                Ok(())
            })?;
            documents = reader.documents;
            bytes_before += file.stamp.size;
            if !reader.goes_on {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// The walk within a file.
struct FileWalk<'a> {
    walk: &'a Walk,
    file: &'a CorpusFile,
    /// Index of the current document among the documents of the corpus that have tokens.
    documents: u64,
    /// Number of the current document in a file of token ids, from 1.
    number: u64,
    /// Whether the document has begun.
    is_open: bool,
    goes_on: bool,
}

impl FileWalk<'_> {
    fn text(&mut self, text: &str, record: u64, is_last: bool, on_piece: &mut OnPiece) -> Result<(), DataError> {
        let number = self.file.format.first_unit + record - 1;
        // letters and digits are in every vocabulary; for other text, only the tokenizer knows whether it has tokens
        let has_tokens = || match text.contains(char::is_alphanumeric) {
            true => Ok(true),
            false => self.walk.tokenizer.encode(text).map(|ids| !ids.is_empty()),
        };
        if self.is_open || has_tokens()? {
            self.piece(PieceContent::Text(text), number, on_piece)?;
        }
        if is_last {
            self.end();
        }
        Ok(())
    }

    /// Passes on token ids. Documents end at end-of-text tokens and at begin-of-text tokens.
    fn ids(&mut self, ids: &[u32], width: usize, is_last: bool, on_piece: &mut OnPiece) -> Result<(), DataError> {
        let special = self.walk.tokenizer.special_tokens();
        let mut rest = ids;
        while !rest.is_empty() {
            let end = rest.iter().position(|&id| special.separates(id));
            let (of_document, behind) = rest.split_at(end.unwrap_or(rest.len()));
            if !of_document.is_empty() {
                self.number += u64::from(!self.is_open);
                self.piece(PieceContent::Ids { ids: of_document, width }, self.number, on_piece)?;
            }
            if end.is_some() {
                self.end();
            }
            rest = behind.get(1..).unwrap_or_default();
        }
        if is_last {
            self.end();
        }
        Ok(())
    }

    fn piece(&mut self, content: PieceContent, number: u64, on_piece: &mut OnPiece) -> Result<(), DataError> {
        let is_first = !std::mem::replace(&mut self.is_open, true);
        let piece = DocumentPiece { file: self.file, number, document: self.documents, is_first, content };
        self.goes_on = on_piece(&piece)?;
        Ok(())
    }

    fn end(&mut self) {
        self.documents += u64::from(std::mem::take(&mut self.is_open));
    }
}
