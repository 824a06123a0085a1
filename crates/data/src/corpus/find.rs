//! Finds the files of a corpus.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use glob::{MatchOptions, Pattern};

use super::{Corpus, Kind, Source};
use crate::error::DataError;
use crate::settings::Settings;

const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

impl Corpus {
    /// The files that `settings.paths` match, sorted by path, each once.
    ///
    /// # Errors
    /// A pattern that is none or matches nothing, and a file of an unknown kind.
    pub(crate) fn find(settings: &Settings) -> Result<Corpus, DataError> {
        if settings.paths.is_empty() {
            return Err(DataError::NoPaths);
        }
        let mut sources = BTreeMap::new();
        for pattern in &settings.paths {
            let files = matches(settings, pattern)?;
            if files.is_empty() {
                return Err(DataError::NoMatch { pattern: pattern.clone(), root: settings.root.clone() });
            }
            for path in files {
                let source = Source::of(path, &settings.root)?;
                sources.insert(source.path.clone(), source);
            }
        }
        Ok(Corpus { sources: sources.into_values().collect(), text_field: settings.text_field.clone() })
    }
}

impl Source {
    fn of(path: PathBuf, root: &Path) -> Result<Source, DataError> {
        let kind = Kind::of(&path).ok_or_else(|| DataError::UnknownKind { path: path.clone() })?;
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        let (size, modified) = stamp(&path)?;
        Ok(Source { path, name, kind, size, modified })
    }

    /// # Errors
    /// `Changed` if the file is no longer what it was when it was found.
    pub(crate) fn check_unchanged(&self) -> Result<(), DataError> {
        match stamp(&self.path)? == (self.size, self.modified) {
            true => Ok(()),
            false => Err(DataError::Changed { path: self.path.clone() }),
        }
    }
}

impl Kind {
    fn of(path: &Path) -> Option<Kind> {
        match path.extension()?.to_str()? {
            "txt" => Some(Kind::Text),
            "jsonl" => Some(Kind::JsonLines),
            "parquet" => Some(Kind::Parquet),
            "tokens" => Some(Kind::Ids32),
            "u16" => Some(Kind::Ids16),
            _ => None,
        }
    }
}

/// The files, not folders, that `pattern` matches. Token caches are no corpus, though they may lie below the root.
fn matches(settings: &Settings, pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let bad = |reason: String| DataError::BadPattern { pattern: pattern.to_owned(), reason };
    let root = Pattern::escape(&settings.root.to_string_lossy());
    let absolute = Path::new(&root).join(pattern);
    let found = glob::glob_with(&absolute.to_string_lossy(), OPTIONS).map_err(|error| bad(error.msg.to_owned()))?;
    let mut files = Vec::new();
    for path in found {
        let path = path.map_err(|error| {
            let path = error.path().to_owned();
            DataError::io("list", path)(error.into())
        })?;
        if path.is_file() && !path.starts_with(&settings.cache) {
            files.push(path);
        }
    }
    Ok(files)
}

/// Size in bytes, and time of the last change in nanoseconds since 1970.
fn stamp(path: &Path) -> Result<(u64, u64), DataError> {
    let metadata = fs::metadata(path).map_err(DataError::io("read", path))?;
    let modified = metadata.modified().map_err(DataError::io("read", path))?;
    let nanoseconds = modified.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    Ok((metadata.len(), nanoseconds))
}
