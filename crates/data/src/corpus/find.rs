//! Finds the files of a corpus.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::formats::{Format, unknown_format, with_compression};
use super::{Corpus, CorpusFile};
use crate::config::DataConfig;
use crate::error::DataError;
use crate::source::{Listing, Source, SourceFile, Sources};

impl Corpus {
    /// The files of a job's sources.
    ///
    /// # Errors
    /// Like [`Corpus::of`].
    pub(crate) fn find(config: &DataConfig) -> Result<Corpus, DataError> {
        let mut sources = Sources::of_job(config)?;
        let corpus = Corpus::of(config, |pattern| sources.list(pattern))?;
        Ok(Corpus { remote_files: sources.into_remote_files(), ..corpus })
    }

    /// The files of a job's sources, whose patterns match what `list` returns.
    ///
    /// # Errors
    /// Fails if a source has no pattern, if `list` fails, if a file has an unknown format, or if two sources have a file
    /// in common.
    pub(super) fn of(
        config: &DataConfig,
        mut list: impl FnMut(&str) -> Result<(Arc<dyn Source>, Listing), DataError>,
    ) -> Result<Corpus, DataError> {
        let mut corpus = Corpus { on_bad_record: config.on_bad_record, ..Corpus::default() };
        let mut owners: BTreeMap<PathBuf, &str> = BTreeMap::new();
        for source in &config.sources {
            if source.paths.is_empty() {
                return Err(DataError::NoPaths);
            }
            let mut files = BTreeMap::new();
            for pattern in &source.paths {
                let (place, listing) = list(pattern)?;
                for file in listing.files {
                    let file = CorpusFile::new(&place, file, &source.text_field)?;
                    if let Some(owner) = owners.get(&file.path) {
                        let (file, sources) = (file.name.clone(), [(*owner).to_owned(), source.name.clone()]);
                        return Err(DataError::FileOfTwoSources { file, sources });
                    }
                    if let Some(file) = files.insert(file.path.clone(), file) {
                        corpus.repeated.insert(file.name.clone());
                    }
                }
                // `**` matches every folder, so only a folder with the extension of a corpus file is reported
                let folders = listing.folders.into_iter().filter(|name| Format::of(Path::new(name)).is_some());
                corpus.folders.extend(folders);
            }
            owners.extend(files.keys().map(|path| (path.clone(), source.name.as_str())));
            corpus.files.extend(files.into_values());
            corpus.source_ends.push(corpus.files.len());
        }
        Ok(corpus)
    }
}

impl CorpusFile {
    /// A file of `source`, whose text is in the field `text_field`.
    ///
    /// # Errors
    /// `UnknownFormat` if no format has the extension of the file.
    pub(crate) fn new(source: &Arc<dyn Source>, file: SourceFile, text_field: &str) -> Result<CorpusFile, DataError> {
        // a link may have the extension that its target lacks
        let found = Format::of(&file.path).or_else(|| Format::of(Path::new(&file.matched)));
        let (format, compression) = found.ok_or_else(|| unknown_format(&file.path))?;
        Ok(CorpusFile { file, format, compression, text_field: text_field.to_owned(), source: Arc::clone(source) })
    }

    /// The name of the format and the compression in corpus hashes, such as `Text.gz`.
    pub(crate) fn hashed_name(&self) -> String {
        with_compression(self.format.hashed_name, self.compression)
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

    /// Opens these bytes of the file for reading.
    ///
    /// # Errors
    /// Fails if the source can't be read.
    pub(in crate::corpus) fn open(&self, bytes: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        self.source.open(&self.file, bytes)
    }

    /// Checks that the file has not changed since it was found.
    ///
    /// # Errors
    /// `Changed` if it has changed.
    pub(crate) fn check_unchanged(&self) -> Result<(), DataError> {
        match self.source.is_unchanged(&self.file)? {
            true => Ok(()),
            false => Err(DataError::Changed { path: self.path.clone() }),
        }
    }
}
