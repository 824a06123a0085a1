//! Files on the job's volume. Glob patterns select the files.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use glob::Pattern;
use stagecoach_remote::MATCH_OPTIONS;

use super::{FileStamp, Source, SourceFile, SourceListing};
use crate::config::DataConfig;
use crate::error::DataError;

/// The files of a volume. The path of a file is its real path, so that a file counts once even if several links lead to
/// it.
#[derive(Debug)]
pub(crate) struct LocalFiles {
    volume_root: PathBuf,
    real_root: PathBuf,
    /// The folder of the token caches, which holds no corpus files.
    cache_root: Option<PathBuf>,
    follow_links_out: bool,
}

impl LocalFiles {
    /// Returns the files below `volume_root`.
    ///
    /// # Errors
    /// Fails if the folder can't be opened.
    pub(crate) fn below(volume_root: &Path) -> Result<LocalFiles, DataError> {
        let real_root = fs::canonicalize(volume_root).map_err(DataError::io("open", volume_root))?;
        Ok(LocalFiles { volume_root: volume_root.to_owned(), real_root, cache_root: None, follow_links_out: false })
    }

    /// Returns the files of a job's volume.
    ///
    /// # Errors
    /// Fails if the root of the volume can't be opened.
    pub(crate) fn of_job(config: &DataConfig) -> Result<LocalFiles, DataError> {
        Ok(LocalFiles {
            cache_root: Some(config.cache_root.clone()),
            follow_links_out: config.follow_links_out,
            ..LocalFiles::below(&config.volume_root)?
        })
    }

    /// Returns the real path of the volume's root.
    pub(crate) fn real_root(&self) -> &Path {
        &self.real_root
    }

    /// Returns the file to which `path` leads after all links.
    ///
    /// # Errors
    /// Fails with `LeavesVolume` if a link leads out of the volume, or with `DanglingLink` if it leads to no file. Also
    /// fails if the file can't be read.
    pub(crate) fn file(&self, path: &Path) -> Result<SourceFile, DataError> {
        let real = match fs::canonicalize(path) {
            Ok(real) if self.follow_links_out || real.starts_with(&self.real_root) => real,
            Ok(target) => return Err(DataError::LeavesVolume { path: path.to_owned(), target }),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(DataError::DanglingLink { path: path.to_owned() });
            }
            Err(error) => return Err(DataError::io("read", path)(error)),
        };
        let matched = name_below(path, &self.volume_root);
        // a file outside of the volume has the name of the link
        let is_inside = real.starts_with(&self.real_root);
        let name = if is_inside { name_below(&real, &self.real_root) } else { matched.clone() };
        Ok(SourceFile { stamp: stamp(&real)?, path: real, name, matched, digest: None })
    }

    /// Returns the files and folders that `pattern` matches, except token caches.
    fn matching_paths(&self, pattern: &str) -> Result<Vec<PathBuf>, DataError> {
        let bad = |error: glob::PatternError| DataError::BadPattern {
            pattern: pattern.to_owned(),
            reason: error.msg.to_owned(),
        };
        let root = Pattern::escape(&self.volume_root.to_string_lossy());
        let absolute = Path::new(&root).join(pattern);
        let mut paths = Vec::new();
        for path in glob::glob_with(&absolute.to_string_lossy(), MATCH_OPTIONS).map_err(bad)? {
            let path = path.map_err(|error| {
                let path = error.path().to_owned();
                DataError::io("list", path)(error.into())
            })?;
            // Through a link to its own parent folder, a file has ever longer paths. A path with more links than the
            // system follows is no file here, and is skipped, because shorter paths to the same file match too.
            let is_missing = || matches!(fs::metadata(&path), Err(error) if error.kind() == ErrorKind::NotFound);
            let leads_nowhere = path.is_symlink() && is_missing();
            let is_cache = self.cache_root.as_ref().is_some_and(|cache_root| path.starts_with(cache_root));
            if (path.is_file() || path.is_dir() || leads_nowhere) && !is_cache {
                paths.push(path);
            }
        }
        Ok(paths)
    }
}

impl Source for LocalFiles {
    fn list(&self, pattern: &str) -> Result<SourceListing, DataError> {
        let (folders, files): (Vec<_>, Vec<_>) =
            self.matching_paths(pattern)?.into_iter().partition(|path| path.is_dir());
        if files.is_empty() {
            return Err(DataError::NoMatch { pattern: pattern.to_owned(), root: self.volume_root.clone() });
        }
        Ok(SourceListing {
            files: files.iter().map(|path| self.file(path)).collect::<Result<_, _>>()?,
            folders: folders.iter().map(|path| name_below(path, &self.volume_root)).collect(),
        })
    }

    fn is_unchanged(&self, file: &SourceFile) -> Result<bool, DataError> {
        Ok(stamp(&file.path)? == file.stamp)
    }

    fn open(&self, file: &SourceFile, bytes: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let mut file = File::open(&file.path)?;
        file.seek(SeekFrom::Start(bytes.start))?;
        Ok(Box::new(file.take(bytes.end.saturating_sub(bytes.start))))
    }
}

fn stamp(path: &Path) -> Result<FileStamp, DataError> {
    let metadata = fs::metadata(path).map_err(DataError::io("read", path))?;
    Ok(FileStamp {
        size: metadata.len(),
        modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
        changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        inode: metadata.ino(),
    })
}

/// Returns a file time in nanoseconds since 1970. Returns 0 for a time before 1970 or after 2554, which a damaged file
/// system may report.
fn nanoseconds(seconds: i64, rest: i64) -> u64 {
    u64::try_from(i128::from(seconds) * 1_000_000_000 + i128::from(rest)).unwrap_or_default()
}

/// Returns `path` relative to `folder`.
fn name_below(path: &Path, folder: &Path) -> String {
    path.strip_prefix(folder).unwrap_or(path).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_have_any_time() {
        assert_eq!(nanoseconds(1, 5), 1_000_000_005);
        assert_eq!(nanoseconds(10_000_000_000, 7), 10_000_000_000_000_000_007);
        for (seconds, rest) in [(-1, 0), (i64::MIN, 0), (i64::MAX, 999_999_999)] {
            assert_eq!(nanoseconds(seconds, rest), 0, "{seconds}");
        }
    }
}
