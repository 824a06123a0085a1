//! The record of a job's remote files: the matches of each remote pattern when the job began. A restart reads the same
//! files without listing a source again, even if a branch has moved or a bucket has got more files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::SourceFile;
use crate::error::DataError;

/// The record of a job's remote files, by pattern.
#[derive(Default)]
pub(crate) struct RemoteFiles {
    /// The file of the record; `None` if the matches are not recorded.
    path: Option<PathBuf>,
    recorded: Recorded,
    is_changed: bool,
}

#[derive(Serialize, Deserialize, Default)]
struct Recorded {
    patterns: BTreeMap<String, Vec<SourceFile>>,
}

impl RemoteFiles {
    /// Reads the record from the file `path`. The record is empty if the file does not exist.
    ///
    /// # Errors
    /// Fails if the file can't be read or is not a record.
    pub(super) fn read(path: Option<&Path>) -> Result<RemoteFiles, DataError> {
        let Some(path) = path else { return Ok(RemoteFiles::default()) };
        let bytes = stagecoach_files::read_if_exists(path).map_err(DataError::io("read", path))?;
        let recorded = match bytes {
            None => Recorded::default(),
            Some(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| DataError::RemoteFiles { path: path.to_owned(), problem: error.to_string() })?,
        };
        Ok(RemoteFiles { path: Some(path.to_owned()), recorded, is_changed: false })
    }

    /// Returns the recorded matches of `pattern`, or `None` if the record lacks the pattern.
    pub(super) fn of(&self, pattern: &str) -> Option<&[SourceFile]> {
        self.recorded.patterns.get(pattern).map(Vec::as_slice)
    }

    /// Adds the matches of `pattern`.
    pub(super) fn add(&mut self, pattern: &str, files: &[SourceFile]) {
        self.recorded.patterns.insert(pattern.to_owned(), files.to_vec());
        self.is_changed = true;
    }

    /// Writes the record if it has changed and the job's folder exists. A command that only reads a job does not create
    /// the folder.
    ///
    /// # Errors
    /// Fails if the record can't be written.
    pub(crate) fn write(&self) -> Result<(), DataError> {
        let has_folder = |path: &&PathBuf| path.parent().is_some_and(Path::is_dir);
        let Some(path) = self.path.as_ref().filter(has_folder).filter(|_| self.is_changed) else { return Ok(()) };
        let failed = || DataError::io("write", path);
        let json = serde_json::to_vec_pretty(&self.recorded).map_err(|error| failed()(error.into()))?;
        stagecoach_files::write_atomically(path, &json).map_err(failed())
    }
}
