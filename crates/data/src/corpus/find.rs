//! Finds the files of a corpus.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use glob::{MatchOptions, Pattern};

use super::{Corpus, CorpusFile, FileFormat};
use crate::config::DataConfig;
use crate::error::DataError;

const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

impl Corpus {
    /// The files that `config.paths` match, sorted by their real paths, each once however many links lead to it.
    ///
    /// # Errors
    /// A pattern that is invalid or matches nothing, a file of an unknown format, and a link that leads nowhere or out of
    /// the volume.
    pub(crate) fn find(config: &DataConfig) -> Result<Corpus, DataError> {
        if config.paths.is_empty() {
            return Err(DataError::NoPaths);
        }
        let root = fs::canonicalize(&config.volume_root).map_err(DataError::io("open", &config.volume_root))?;
        let (mut files, mut folders) = (BTreeMap::new(), BTreeSet::new());
        for pattern in &config.paths {
            let (of_folders, paths): (Vec<_>, Vec<_>) =
                matching_paths(config, pattern)?.into_iter().partition(|path| path.is_dir());
            if paths.is_empty() {
                return Err(DataError::NoMatch { pattern: pattern.clone(), root: config.volume_root.clone() });
            }
            for path in paths {
                let file = CorpusFile::of(real_path(path, &root)?, &root)?;
                files.insert(file.path.clone(), file);
            }
            // `**` matches every folder: what counts is whether somebody may take it for a text
            let of_folders = of_folders.into_iter().filter(|path| FileFormat::of(path).is_some());
            folders.extend(of_folders.map(|path| name_below(&path, &config.volume_root)));
        }
        Ok(Corpus { files: files.into_values().collect(), text_field: config.text_field.clone(), folders })
    }
}

impl CorpusFile {
    fn of(path: PathBuf, volume_root: &Path) -> Result<CorpusFile, DataError> {
        let format = FileFormat::of(&path).ok_or_else(|| DataError::UnknownFormat { path: path.clone() })?;
        let name = name_below(&path, volume_root);
        let (size, modified) = size_and_mtime(&path)?;
        Ok(CorpusFile { path, name, format, size, modified })
    }

    /// Checks that the file has not changed since it was found.
    ///
    /// # Errors
    /// `Changed` if its size or time of modification is another.
    pub(crate) fn check_unchanged(&self) -> Result<(), DataError> {
        match size_and_mtime(&self.path)? == (self.size, self.modified) {
            true => Ok(()),
            false => Err(DataError::Changed { path: self.path.clone() }),
        }
    }
}

impl FileFormat {
    pub(crate) fn of(path: &Path) -> Option<FileFormat> {
        match path.extension()?.to_str()? {
            "txt" => Some(FileFormat::Text),
            "jsonl" => Some(FileFormat::JsonLines),
            "parquet" => Some(FileFormat::Parquet),
            "tokens" => Some(FileFormat::Ids32),
            "u16" => Some(FileFormat::Ids16),
            _ => None,
        }
    }
}

/// `path` relative to `folder`.
fn name_below(path: &Path, folder: &Path) -> String {
    path.strip_prefix(folder).unwrap_or(path).to_string_lossy().into_owned()
}

/// The files and folders that `pattern` matches. Token caches are skipped.
fn matching_paths(config: &DataConfig, pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let bad = |reason: String| DataError::BadPattern { pattern: pattern.to_owned(), reason };
    let root = Pattern::escape(&config.volume_root.to_string_lossy());
    let absolute = Path::new(&root).join(pattern);
    let found = glob::glob_with(&absolute.to_string_lossy(), OPTIONS).map_err(|error| bad(error.msg.to_owned()))?;
    let mut paths = Vec::new();
    for path in found {
        let path = path.map_err(|error| {
            let path = error.path().to_owned();
            DataError::io("list", path)(error.into())
        })?;
        // what is behind more links than the system follows was found by a shorter path
        let is_missing = || matches!(fs::metadata(&path), Err(error) if error.kind() == ErrorKind::NotFound);
        let leads_nowhere = path.is_symlink() && is_missing();
        if (path.is_file() || path.is_dir() || leads_nowhere) && !path.starts_with(&config.cache_root) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Where a path leads after all links: `path` itself if there are none.
fn real_path(path: PathBuf, root: &Path) -> Result<PathBuf, DataError> {
    match fs::canonicalize(&path) {
        Ok(real) if real.starts_with(root) => Ok(real),
        Ok(target) => Err(DataError::LeavesVolume { path, target }),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(DataError::DanglingLink { path }),
        Err(error) => Err(DataError::io("read", path)(error)),
    }
}

/// Size in bytes, and time of the last modification in nanoseconds since 1970.
fn size_and_mtime(path: &Path) -> Result<(u64, u64), DataError> {
    let metadata = fs::metadata(path).map_err(DataError::io("read", path))?;
    let modified = metadata.modified().map_err(DataError::io("read", path))?;
    let nanoseconds = modified.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    Ok((metadata.len(), nanoseconds))
}
