//! Windows on the volume. A window holds the tokens of a fixed number of sequences, and has its own folder. The
//! folder's name is the window's number once the window is complete.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::buffer::WindowTokens;
use super::position::StreamPosition;
use crate::atomic_file::{write_atomically, write_bytes_atomically};
use crate::config::Streaming;
use crate::error::DataError;
use crate::loss_mask::{MASK_FILE, id_of, write_mask};
use crate::mapped::{DOCUMENTS_FILE, TOKEN_IDS_FILE, TokenFiles, TokenForm};
use crate::stream::{Origins, TokenStream};

const HEADER_FILE: &str = "window.json";
/// The file with the number of each document, see [`DocumentId::number`](super::DocumentId::number).
const ORIGINS_FILE: &str = "origins.bin";
/// The name prefix of folders whose windows are still being written, or already being removed.
const UNFINISHED: &str = "unfinished-";

/// The windows of a source in a folder of the volume.
#[derive(Clone, Debug)]
pub(crate) struct WindowStore {
    folder: PathBuf,
    form: TokenForm,
}

/// The description of a window, without its tokens.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub(super) struct WindowHeader {
    pub(super) start: StreamPosition,
    /// The beginning of the next window.
    pub(super) next: StreamPosition,
    tokens: u64,
    documents: u64,
    /// The number of tokens that the first document has before the window.
    tokens_before: u64,
    /// The digest of the window, see [`WindowTokens::digest`].
    pub(super) digest: String,
}

impl WindowStore {
    /// Returns the windows of the source with the index `source`, for the token cache in `folder`.
    pub(crate) fn new(streaming: &Streaming, folder: &Path, source: usize, form: TokenForm) -> WindowStore {
        WindowStore { folder: streaming.folder.join(folder).join(source.to_string()), form }
    }

    /// Returns the header of a complete window, or `None` if the header is missing or damaged.
    ///
    /// # Errors
    /// Fails if the volume can't be read.
    pub(super) fn header(&self, window: u64) -> Result<Option<WindowHeader>, DataError> {
        let path = self.window_folder(window).join(HEADER_FILE);
        let bytes = stagecoach_files::read_if_exists(&path).map_err(DataError::io("read", &path))?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Returns the tokens of the window with the header `header`.
    ///
    /// # Errors
    /// Fails if the window's files can't be mapped.
    pub(super) fn open(&self, header: &WindowHeader) -> Result<TokenStream, DataError> {
        let folder = self.window_folder(header.start.window);
        let files = Arc::new(TokenFiles::open(&folder, header.tokens, header.documents, self.form)?);
        let path = folder.join(ORIGINS_FILE);
        let bytes = fs::read(&path).map_err(DataError::io("read", &path))?;
        let expected = header.documents * size_of::<u64>() as u64;
        if bytes.len() as u64 != expected {
            return Err(DataError::WrongSize { path, expected, found: bytes.len() as u64 });
        }
        let numbers = bytes.as_chunks().0.iter().map(|&number| u64::from_le_bytes(number)).collect();
        let origins = Origins { numbers, tokens_before: header.tokens_before };
        Ok(TokenStream::of_window(&files, 0..header.documents, origins))
    }

    /// Returns the header of the window at `start`, or `None` if the window is incomplete or does not match `start`.
    ///
    /// # Errors
    /// Fails if the volume can't be read.
    pub(super) fn complete(&self, start: &StreamPosition) -> Result<Option<WindowHeader>, DataError> {
        let header = self.header(start.window)?.filter(|header| header.start.is_at(start));
        // a window with other tokens than the window that training read is made again
        let header = header.filter(|header| start.check(&header.digest).is_ok());
        Ok(header.filter(|header| self.open(header).is_ok()))
    }

    /// Writes a window, unless it exists. The window's folder gets its final name only after all files are written.
    ///
    /// # Errors
    /// Fails if the volume can't be written.
    pub(crate) fn write(&self, window: &WindowTokens) -> Result<(), DataError> {
        let header = WindowHeader {
            start: window.start.clone(),
            next: window.next.clone(),
            tokens: window.ids.len() as u64,
            documents: window.starts.len() as u64,
            tokens_before: window.tokens_before,
            digest: window.digest(),
        };
        let unfinished = self.unfinished_folder();
        fs::create_dir_all(&self.folder).map_err(DataError::io("create", &self.folder))?;
        let written = self.write_unfinished(&unfinished, window, &header);
        let named = written.and_then(|()| self.name(&unfinished, &header));
        // after a failure, this frees the space of the incomplete window, because the volume may be full
        remove_unfinished_folder(&unfinished);
        named?;
        stagecoach_files::sync_dir(&self.folder).map_err(DataError::io("write", &self.folder))
    }

    /// Renames an unfinished folder to the folder of its window. If the same window is already complete, the function
    /// keeps the complete folder, because a process may use it. In this case, the next maker may already have removed
    /// the unfinished folder.
    fn name(&self, unfinished: &Path, header: &WindowHeader) -> Result<(), DataError> {
        let finished = self.window_folder(header.start.window);
        let rename = || fs::rename(unfinished, &finished);
        let renamed = match rename() {
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {
                if self.complete(&header.start)?.is_some_and(|found| found.digest == header.digest) {
                    return Ok(());
                }
                self.remove_window(&finished)?;
                rename()
            }
            renamed => renamed,
        };
        renamed.map_err(DataError::io("rename", unfinished))
    }

    fn write_unfinished(&self, folder: &Path, window: &WindowTokens, header: &WindowHeader) -> Result<(), DataError> {
        fs::create_dir(folder).map_err(DataError::io("create", folder))?;
        write_tokens(folder, &window.ids, &window.starts, self.form)?;
        let origins: Vec<u8> = window.documents.iter().flat_map(|document| document.number().to_le_bytes()).collect();
        write_bytes_atomically(&folder.join(ORIGINS_FILE), &origins)?;
        let path = folder.join(HEADER_FILE);
        let json = serde_json::to_vec(header).map_err(|error| DataError::io("write", &path)(error.into()))?;
        write_bytes_atomically(&path, &json)
    }

    /// Returns a random folder name. Threads and pods share the volume, and process ids are not unique across pods.
    fn unfinished_folder(&self) -> PathBuf {
        self.folder.join(format!("{UNFINISHED}{}", stagecoach_files::random_hex()))
    }

    /// Removes a window, if it exists. The function renames the folder first, so that no process opens a half-removed
    /// window.
    fn remove_window(&self, folder: &Path) -> Result<(), DataError> {
        let unfinished = self.unfinished_folder();
        match fs::rename(folder, &unfinished) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(DataError::io("remove", folder)(error)),
            Ok(()) => {
                remove_unfinished_folder(&unfinished);
                Ok(())
            }
        }
    }

    /// Removes windows until at most `max_bytes` remain: first the windows before `in_use`, from the oldest on, then
    /// the windows after `in_use`, from the last window back. The windows in use stay.
    ///
    /// # Errors
    /// Fails if the volume can't be read or written.
    pub(super) fn evict(&self, in_use: std::ops::RangeInclusive<u64>, max_bytes: u64) -> Result<(), DataError> {
        let mut total = 0;
        let mut windows = Vec::new();
        for window in self.windows()? {
            let bytes = folder_bytes(&self.window_folder(window));
            total += bytes;
            windows.push((window, bytes));
        }
        windows.sort_unstable();
        let (past, rest): (Vec<_>, Vec<_>) = windows.into_iter().partition(|(window, _)| window < in_use.start());
        let ahead = rest.into_iter().rev().filter(|(window, _)| window > in_use.end());
        for (window, bytes) in past.into_iter().chain(ahead) {
            if total <= max_bytes {
                break;
            }
            self.remove_window(&self.window_folder(window))?;
            total -= bytes;
        }
        Ok(())
    }

    /// Removes the windows that a process left unfinished.
    ///
    /// # Errors
    /// Fails if the volume can't be read or written.
    pub(crate) fn remove_unfinished(&self) -> Result<(), DataError> {
        for name in self.names()?.into_iter().filter(|name| name.starts_with(UNFINISHED)) {
            remove_unfinished_folder(&self.folder.join(name));
        }
        Ok(())
    }

    fn windows(&self) -> Result<Vec<u64>, DataError> {
        Ok(self.names()?.iter().filter_map(|name| name.parse().ok()).collect())
    }

    fn names(&self) -> Result<Vec<String>, DataError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(DataError::io("list", &self.folder)(error)),
        };
        Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
    }

    pub(super) fn window_folder(&self, window: u64) -> PathBuf {
        self.folder.join(format!("{window:010}"))
    }
}

/// Writes documents as files that are mapped later. A bit of each element of `ids` marks whether the token is trained
/// on, see [`crate::loss_mask`].
///
/// # Errors
/// Fails if the files can't be written.
pub(crate) fn write_tokens(folder: &Path, ids: &[u32], starts: &[u64], form: TokenForm) -> Result<(), DataError> {
    let path = folder.join(DOCUMENTS_FILE);
    write_atomically(&path, |file| {
        let ends = [ids.len() as u64];
        starts
            .iter()
            .chain(&ends)
            .try_for_each(|start| file.write_all(&start.to_le_bytes()).map_err(DataError::io("write", &path)))
    })?;
    let path = folder.join(TOKEN_IDS_FILE);
    write_atomically(&path, |file| {
        ids.iter().try_for_each(|&token| {
            file.write_all(&id_of(token).to_le_bytes()[..form.id_bytes]).map_err(DataError::io("write", &path))
        })
    })?;
    if !form.has_mask {
        return Ok(());
    }
    let path = folder.join(MASK_FILE);
    write_atomically(&path, |file| write_mask(ids, file).map_err(DataError::io("write", &path)))
}

/// Removes a folder that is not a window. The thread of a dropped maker may still write into the folder. Files that
/// remain cost only space, and the next maker removes them.
fn remove_unfinished_folder(folder: &Path) {
    let _ = fs::remove_dir_all(folder);
}

fn folder_bytes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}
