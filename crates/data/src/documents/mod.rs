//! Finds the file and text of a document by its index in the token cache, and the index of a document by its name. The
//! cache stores no names of documents, so this module reads the corpus again, file by file, up to the last requested
//! document. The windows of a stream store the file and the record number of each document. For a stream, this module
//! reads only the row groups of the requested records from a Parquet file, and all records up to the last requested
//! record from any other file. It tokenises only the requested documents.

mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::config::{DataConfig, OnBadRecord, PrepareProgress};
use crate::corpus::few;
use crate::dataset::{DocumentPart, IGNORE_INDEX};
use crate::error::DataError;
use crate::prepared::PreparedCorpus;
use crate::streaming::DocumentId;
use crate::tokenizer::Tokenizer;
use walk::{Documents, PieceContent, Walk};

/// The name of a document in messages, such as `corpus/a.jsonl:17`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DocumentName {
    /// The path of the file, relative to the volume's root.
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
    /// The name of the document.
    pub name: DocumentName,
    /// The number of bytes of the document's text before the part. For a file of token ids and for a conversation, this
    /// is the number of bytes of the document's ids before the part.
    pub offset: u64,
    /// The text of the part's inputs and of the target after the last input.
    pub text: String,
    /// The number of tokens of the whole document, including the tokens that begin and end it.
    pub document_tokens: u64,
}

/// Returns the origin of each of `parts`, in the same order. Reads the corpus up to the last document of `parts`. If
/// the corpus is streamed, the function reads only the files of these documents.
///
/// # Errors
/// Fails if the corpus can't be read, or with `OtherTokens` if the tokenizer returns other ids than the token cache
/// has.
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
    let documents = match config.streaming {
        Some(_) => Documents::Records(wanted.keys().map(|&number| DocumentId::of_number(number)).collect()),
        None => Documents::UpTo(last),
    };
    let mut lengths: BTreeMap<u64, Length> = BTreeMap::new();
    let mut found: Vec<Option<PartText>> = vec![None; parts.len()];
    // the numbers of tokens and bytes of the document before the piece
    let (mut tokens, mut bytes) = (0, 0);
    walk.run(&documents, progress, &mut |piece| {
        let Some(of_document) = wanted.get(&piece.document) else { return Ok(()) };
        let with_ranges = |ids: &[u32], width: usize| {
            (ids.to_vec(), (0..ids.len()).map(|index| index * width..(index + 1) * width).collect())
        };
        let (ids, ranges) = match piece.content {
            PieceContent::Text(text) => walk.tokenizer.encode_with_bytes(text)?,
            PieceContent::Ids { ids, width } => with_ranges(ids, width),
            PieceContent::Conversation(ids) => with_ranges(ids, size_of::<u32>()),
        };
        let is_whole = matches!(piece.content, PieceContent::Conversation(_));
        if piece.is_first {
            (tokens, bytes) = (u64::from(!is_whole && walk.tokenizer.bos_before(&ids).is_some()), 0);
        }
        let last = ids.last().copied();
        lengths.insert(piece.document, Length { tokens: tokens + ids.len() as u64, last, is_whole });
        for &index in of_document {
            let part = &parts[index];
            let begin = part.tokens.start.max(tokens);
            // the last input of a part may have no target, for example if the rest of the document is held out
            let has_target = part.targets.last().is_some_and(|&target| target != IGNORE_INDEX);
            let end = (part.tokens.end + u64::from(has_target)).min(tokens + ids.len() as u64);
            let name = || DocumentName { file: piece.file.name.clone(), number: piece.number };
            let Some((first, last)) = (begin..end).next().zip((begin..end).next_back()) else { continue };
            let [first, last] = [first, last].map(|token| (token - tokens) as usize);
            let part_tokens = part.inputs.iter().chain(part.targets.last());
            let part_tokens = part_tokens.skip((begin - part.tokens.start) as usize);
            if !ids[first..=last].iter().zip(part_tokens).all(|(&id, &token)| i64::from(id) == token) {
                return Err(DataError::OtherTokens { name: name().to_string() });
            }
            let range = ranges[first].start..ranges[last].end;
            let text = match piece.content {
                PieceContent::Text(text) => text.get(range.clone()).unwrap_or_default().to_owned(),
                PieceContent::Ids { ids, .. } | PieceContent::Conversation(ids) => {
                    walk.tokenizer.decode(&ids[first..=last])?
                }
            };
            let offset = bytes + range.start as u64;
            let part_text = || PartText { name: name(), offset, text: String::new(), document_tokens: 0 };
            found[index].get_or_insert_with(part_text).text += &text;
        }
        tokens += ids.len() as u64;
        bytes += match piece.content {
            PieceContent::Text(text) => text.len() as u64,
            PieceContent::Ids { ids, width } => (ids.len() * width) as u64,
            PieceContent::Conversation(_) => 0,
        };
        Ok(())
    })?;
    let lost = |part: &DocumentPart| DataError::OtherTokens { name: walk.name_of(part.document, config) };
    let whole = |(found, part): (Option<PartText>, &DocumentPart)| {
        let document_tokens = lengths.get(&part.document).map_or(0, |length| length.with_end(&walk.tokenizer));
        Ok(PartText { document_tokens, ..found.ok_or_else(|| lost(part))? })
    };
    found.into_iter().zip(parts).map(whole).collect()
}

/// The number of a document's tokens before the end-of-text token is added.
struct Length {
    tokens: u64,
    last: Option<u32>,
    /// Whether the document is a conversation, to whose tokens no end-of-text token is added.
    is_whole: bool,
}

impl Length {
    fn with_end(&self, tokenizer: &Tokenizer) -> u64 {
        self.tokens + u64::from(!self.is_whole && !tokenizer.is_ended_by(self.last.as_ref()))
    }
}

/// Returns the index of each document in `names`, as in [`DocumentPart::document`]. Reads the corpus up to the last
/// named file. If the corpus is streamed, the function reads no file.
///
/// # Errors
/// Fails with `NoDocument` if a named document doesn't exist or has no tokens. For a streamed corpus, the function
/// checks only the file and the range of the number. Also fails if the corpus can't be read.
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
    if config.streaming.is_some() {
        return names.iter().map(|name| walk.number_of(name)).collect();
    }
    let files: BTreeSet<&str> = names.iter().map(|name| name.file.as_str()).collect();
    let last_file = walk.corpus.files.iter().rposition(|file| files.contains(&*file.name));
    let Some(last_file) = last_file else { return Ok(Vec::new()) };
    let mut found: Vec<Option<u64>> = vec![None; names.len()];
    // the first and the last document number of each file
    let mut numbers: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    walk.run(&Documents::UpToFile(last_file), progress, &mut |piece| {
        if let Some(&file) = files.get(&*piece.file.name).filter(|_| piece.is_first) {
            numbers.entry(file).or_insert((piece.number, piece.number)).1 = piece.number;
            for (_, found) in
                names.iter().zip(&mut found).filter(|(name, _)| (&*name.file, name.number) == (file, piece.number))
            {
                *found = Some(piece.document);
            }
        }
        Ok(())
    })?;
    let missing = |name: &DocumentName| {
        let problem = match numbers.get(&*name.file) {
            Some((first, last)) if (first..=last).contains(&&name.number) => match config.on_bad_record {
                OnBadRecord::Fail => "it is empty".to_owned(),
                OnBadRecord::Skip => "it is empty or holds no text".to_owned(),
            },
            Some((first, last)) if first == last => format!("the file has one document, {}:{first}", name.file),
            Some((first, last)) => format!("the file has {}:{first} to {}:{last}", name.file, name.file),
            None => "the file has no document with text".to_owned(),
        };
        DataError::NoDocument { name: name.to_string(), problem }
    };
    found.into_iter().zip(names).map(|(found, name)| found.ok_or_else(|| missing(name))).collect()
}
