//! Finds the files of a corpus.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};

use super::{Corpus, CorpusFile, FileFormat, FileStamp};
use crate::config::DataConfig;
use crate::error::DataError;

const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

impl Corpus {
    /// The files that `config.paths` match, sorted by their real paths. Each file appears once, however many links lead
    /// to it.
    ///
    /// # Errors
    /// Fails if a pattern is invalid or matches no file, if a file has an unknown format, or if a link leads nowhere.
    /// Also fails if a link leads out of the volume and `config.follow_links_out` is false.
    pub(crate) fn find(config: &DataConfig) -> Result<Corpus, DataError> {
        if config.paths.is_empty() {
            return Err(DataError::NoPaths);
        }
        let root = fs::canonicalize(&config.volume_root).map_err(DataError::io("open", &config.volume_root))?;
        let (mut files, mut folders, mut repeated) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        for pattern in &config.paths {
            let (of_folders, paths): (Vec<_>, Vec<_>) =
                matching_paths(config, pattern)?.into_iter().partition(|path| path.is_dir());
            if paths.is_empty() {
                return Err(DataError::NoMatch { pattern: pattern.clone(), root: config.volume_root.clone() });
            }
            for path in paths {
                let name = name_below(&path, &config.volume_root);
                let file = CorpusFile::of(real_path(path, &root, config.follow_links_out)?, &root, name)?;
                if let Some(file) = files.insert(file.path.clone(), file) {
                    repeated.insert(file.name);
                }
            }
            // `**` matches every folder, so only a folder with the extension of a corpus file is reported
            let of_folders = of_folders.into_iter().filter(|path| FileFormat::of(path).is_some());
            folders.extend(of_folders.map(|path| name_below(&path, &config.volume_root)));
        }
        Ok(Corpus { files: files.into_values().collect(), text_field: config.text_field.clone(), folders, repeated })
    }
}

impl CorpusFile {
    /// The file at the real path `path`. `link` is the path that a pattern matched, which names a file outside of the
    /// volume.
    fn of(path: PathBuf, volume_root: &Path, link: String) -> Result<CorpusFile, DataError> {
        // a link may have the extension that its target lacks
        let format = FileFormat::of(&path).or_else(|| FileFormat::of(Path::new(&link)));
        let format = format.ok_or_else(|| DataError::UnknownFormat { path: path.clone() })?;
        let name = if path.starts_with(volume_root) { name_below(&path, volume_root) } else { link };
        let stamp = FileStamp::of(&path)?;
        Ok(CorpusFile { path, name, format, stamp })
    }

    /// Checks that the file has not changed since it was found.
    ///
    /// # Errors
    /// `Changed` if its stamp differs.
    pub(crate) fn check_unchanged(&self) -> Result<(), DataError> {
        match FileStamp::of(&self.path)? == self.stamp {
            true => Ok(()),
            false => Err(DataError::Changed { path: self.path.clone() }),
        }
    }
}

impl FileStamp {
    fn of(path: &Path) -> Result<FileStamp, DataError> {
        let metadata = fs::metadata(path).map_err(DataError::io("read", path))?;
        let nanoseconds = |seconds: i64, rest: i64| u64::try_from(seconds * 1_000_000_000 + rest).unwrap_or_default();
        Ok(FileStamp {
            size: metadata.len(),
            modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
            inode: metadata.ino(),
        })
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
        // a path with more links than the system follows is skipped: a shorter path to the same file matches too
        let is_missing = || matches!(fs::metadata(&path), Err(error) if error.kind() == ErrorKind::NotFound);
        let leads_nowhere = path.is_symlink() && is_missing();
        if (path.is_file() || path.is_dir() || leads_nowhere) && !path.starts_with(&config.cache_root) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// The target of `path` after all links, or `path` itself if it has none.
fn real_path(path: PathBuf, root: &Path, follow_out: bool) -> Result<PathBuf, DataError> {
    match fs::canonicalize(&path) {
        Ok(real) if follow_out || real.starts_with(root) => Ok(real),
        Ok(target) => Err(DataError::LeavesVolume { path, target }),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(DataError::DanglingLink { path }),
        Err(error) => Err(DataError::io("read", path)(error)),
    }
}
