//! Finds the files of a corpus.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::formats::{Format, unknown_format, with_compression};
use super::{Corpus, CorpusFile};
use crate::config::DataConfig;
use crate::error::DataError;
use crate::source::{LocalFiles, Source, SourceFile};

impl Corpus {
    /// The files that `config.paths` match, sorted by their paths.
    ///
    /// # Errors
    /// Like [`Corpus::of`].
    pub(crate) fn find(config: &DataConfig) -> Result<Corpus, DataError> {
        Corpus::of(Arc::new(LocalFiles::of_job(config)?), config)
    }

    /// The files of `source` that `config.paths` match, sorted by their paths. Each file appears once.
    ///
    /// # Errors
    /// Fails if there is no pattern, if the source can't list one, or if a file has an unknown format.
    pub(super) fn of(source: Arc<dyn Source>, config: &DataConfig) -> Result<Corpus, DataError> {
        if config.paths.is_empty() {
            return Err(DataError::NoPaths);
        }
        let (mut files, mut folders, mut repeated) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        for pattern in &config.paths {
            let listing = source.list(pattern)?;
            for file in listing.files {
                let file = CorpusFile::new(&source, file)?;
                if let Some(file) = files.insert(file.path.clone(), file) {
                    repeated.insert(file.name);
                }
            }
            // `**` matches every folder, so only a folder with the extension of a corpus file is reported
            folders.extend(listing.folders.into_iter().filter(|name| Format::of(Path::new(name)).is_some()));
        }
        Ok(Corpus {
            files: files.into_values().collect(),
            text_field: config.text_field.clone(),
            on_bad_record: config.on_bad_record,
            folders,
            repeated,
        })
    }
}

impl CorpusFile {
    /// A file of `source`.
    ///
    /// # Errors
    /// `UnknownFormat` if no format has the extension of the file.
    pub(crate) fn new(source: &Arc<dyn Source>, file: SourceFile) -> Result<CorpusFile, DataError> {
        let SourceFile { path, name, matched, stamp } = file;
        // a link may have the extension that its target lacks
        let found = Format::of(&path).or_else(|| Format::of(Path::new(&matched)));
        let (format, compression) = found.ok_or_else(|| unknown_format(&path))?;
        Ok(CorpusFile { path, name, format, compression, stamp, source: Arc::clone(source) })
    }

    /// The name of the format and the compression in corpus hashes, such as `Text.gz`.
    pub(crate) fn hashed_name(&self) -> String {
        with_compression(self.format.hashed_name, self.compression)
    }

    /// Opens the file for reading from `offset` on.
    ///
    /// # Errors
    /// Fails if the source can't be read.
    pub(crate) fn open_at(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        self.open(offset..self.stamp.size)
    }

    /// Opens these bytes of the file for reading.
    ///
    /// # Errors
    /// Fails if the source can't be read.
    pub(super) fn open(&self, bytes: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        self.source.open(&self.path, bytes)
    }

    /// Checks that the file has not changed since it was found.
    ///
    /// # Errors
    /// `Changed` if its stamp differs.
    pub(crate) fn check_unchanged(&self) -> Result<(), DataError> {
        match self.source.stamp(&self.path)? == self.stamp {
            true => Ok(()),
            false => Err(DataError::Changed { path: self.path.clone() }),
        }
    }
}
