//! Finds the files of a corpus.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::formats::{self, Format, unknown_format, with_compression};
use super::{Corpus, CorpusFile};
use crate::config::{DataConfig, DocumentFormat};
use crate::error::DataError;
use crate::source::{Source, SourceFile, SourceListing, Sources};

impl Corpus {
    /// Finds the files of a job's sources and held-out sets.
    ///
    /// # Errors
    /// Fails like [`Corpus::of`].
    pub(crate) fn find(config: &DataConfig) -> Result<Corpus, DataError> {
        let mut sources = Sources::of_job(config)?;
        let corpus = Corpus::of(config, |pattern| sources.list(pattern))?;
        Ok(Corpus { remote_files: sources.into_remote_files(), ..corpus })
    }

    /// Finds the files of a job's sources and held-out sets. `list` returns the matches of a pattern.
    ///
    /// # Errors
    /// Fails if a source has no pattern, if `list` fails, if a file has an unknown format, if two sources or two
    /// held-out sets have a file in common, or if all files of a source are held out.
    pub(super) fn of(
        config: &DataConfig,
        mut list: impl FnMut(&str) -> Result<(Arc<dyn Source>, SourceListing), DataError>,
    ) -> Result<Corpus, DataError> {
        let mut corpus = Corpus { on_bad_record: config.on_bad_record, ..Corpus::default() };
        let mut held_out = Vec::new();
        let mut owners: BTreeMap<PathBuf, String> = BTreeMap::new();
        for set in &config.held_out_files {
            let files = corpus.match_files(&set.paths, (set.format, &set.text_field), &mut list)?;
            own_files(&mut owners, &set.subject(), &files, |file, sets| DataError::FileOfTwoSets { file, sets })?;
            held_out.push(files);
        }
        let is_held_out: BTreeSet<PathBuf> = owners.keys().cloned().collect();
        for source in &config.sources {
            let mut files = corpus.match_files(&source.paths, (source.format, &source.text_field), &mut list)?;
            let all = files.len();
            files.retain(|path, file| {
                let is_held_out = is_held_out.contains(path);
                corpus.held_out.extend(is_held_out.then(|| file.name.clone()));
                !is_held_out
            });
            if all > 0 && files.is_empty() {
                return Err(DataError::AllHeldOut { subject: source.subject() });
            }
            let error = |file, sources| DataError::FileOfTwoSources { file, sources };
            own_files(&mut owners, &source.name, &files, error)?;
            corpus.files.extend(files.into_values());
            corpus.source_ends.push(corpus.files.len());
        }
        corpus.training_files = corpus.files.len();
        for files in held_out {
            corpus.files.extend(files.into_values());
            corpus.source_ends.push(corpus.files.len());
        }
        Ok(corpus)
    }

    /// Returns the files that `paths` match, keyed by path.
    fn match_files(
        &mut self,
        paths: &[String],
        (documents, text_field): (DocumentFormat, &str),
        list: &mut impl FnMut(&str) -> Result<(Arc<dyn Source>, SourceListing), DataError>,
    ) -> Result<BTreeMap<PathBuf, CorpusFile>, DataError> {
        if paths.is_empty() {
            return Err(DataError::NoPaths);
        }
        let mut files = BTreeMap::new();
        for pattern in paths {
            let (place, listing) = list(pattern)?;
            for file in listing.files {
                let file = CorpusFile::new(&place, file, documents, text_field)?;
                if let Some(file) = files.insert(file.path.clone(), file) {
                    self.repeated.insert(file.name.clone());
                }
            }
            // `**` matches every folder, so only a folder with the extension of a corpus file is reported
            let folders = listing.folders.into_iter().filter(|name| Format::of(Path::new(name)).is_some());
            self.folders.extend(folders);
        }
        Ok(files)
    }
}

/// Records `owner`, a source or a held-out set, as the owner of `files`.
///
/// # Errors
/// Fails with the result of `error` if a file already has an owner. `error` receives the name of the file and its two
/// owners.
fn own_files(
    owners: &mut BTreeMap<PathBuf, String>,
    owner: &str,
    files: &BTreeMap<PathBuf, CorpusFile>,
    error: fn(String, [String; 2]) -> DataError,
) -> Result<(), DataError> {
    for (path, file) in files {
        if let Some(first) = owners.insert(path.clone(), owner.to_owned()) {
            return Err(error(file.name.clone(), [first, owner.to_owned()]));
        }
    }
    Ok(())
}

impl CorpusFile {
    /// Returns a file of `source` whose records have the content `documents`. A text is in the field `text_field`.
    ///
    /// # Errors
    /// Fails with `UnknownFormat` if no format has the file's extension. Fails with `NoRecords` if the records are
    /// conversations and the file's format has no records.
    pub(crate) fn new(
        source: &Arc<dyn Source>,
        file: SourceFile,
        documents: DocumentFormat,
        text_field: &str,
    ) -> Result<CorpusFile, DataError> {
        // a link may have an extension that its target lacks
        let found = Format::of(&file.path).or_else(|| Format::of(Path::new(&file.matched)));
        let (format, compression) = found.ok_or_else(|| unknown_format(&file.path))?;
        if documents != DocumentFormat::Text && !format.has_records() {
            let (path, format) = (file.path.clone(), documents.name());
            return Err(DataError::NoRecords { path, format, known: formats::with_records() });
        }
        let (text_field, source) = (text_field.to_owned(), Arc::clone(source));
        Ok(CorpusFile { file, format, compression, documents, text_field, source })
    }

    /// Returns the name of the format and the compression in corpus hashes, such as `Text.gz`.
    pub(crate) fn hashed_name(&self) -> String {
        with_compression(self.format.hashed_name, self.compression)
    }

    /// Whether a part of the file can be read without reading the whole file.
    pub(crate) fn can_be_divided(&self) -> bool {
        self.format.can_be_divided && self.compression.is_none()
    }

    /// Opens the file for reading from `offset` to its end.
    ///
    /// # Errors
    /// Fails if the source can't be read.
    pub(crate) fn open_at(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        if !self.source.verifies_whole_files() {
            return self.open(offset..self.stamp.size);
        }
        let mut file = self.open(0..self.stamp.size)?;
        io::copy(&mut file.by_ref().take(offset), &mut io::sink())?;
        Ok(file)
    }

    /// Opens the range `bytes` of the file for reading.
    ///
    /// # Errors
    /// Fails if the source can't be read.
    pub(in crate::corpus) fn open(&self, bytes: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        self.source.open(&self.file, bytes)
    }

    /// Checks that the file has not changed since it was found.
    ///
    /// # Errors
    /// Fails with `Changed` if the file has changed, or if the source can't be read.
    pub(crate) fn check_unchanged(&self) -> Result<(), DataError> {
        match self.source.is_unchanged(&self.file)? {
            true => Ok(()),
            false => Err(DataError::Changed { path: self.path.clone() }),
        }
    }
}
