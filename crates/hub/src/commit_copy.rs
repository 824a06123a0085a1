//! The copy of a commit's model or tokenizer in a folder that processes share. A download has a temporary name until
//! all its bytes are verified. Each file of the copy is therefore complete.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use glob::Pattern;
use serde::{Deserialize, Serialize};
use stagecoach_files::{AtomicFile, create_durable_dir, remove_abandoned, write_atomically};

use crate::client::HubClient;
use crate::error::HubError;
use crate::file::HubFile;
use crate::repo::Repo;

const CONFIG_FILE: &str = "config.json";
const WEIGHTS_FILE: &str = "model.safetensors";
const WEIGHTS_INDEX_FILE: &str = "model.safetensors.index.json";

/// The files of a model without its weights. The reader of a tokenizer needs the settings in the tokenizer's folder,
/// because the settings name the special tokens. The reader of a model needs `adapter_config.json` to refuse an
/// adapter.
const SETTINGS: [&str; 7] = [
    CONFIG_FILE,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "adapter_config.json",
];

/// The endings of weight files. An error about a missing file lists some existing files, and names weight files first.
const WEIGHTS: [&str; 8] = [".safetensors", ".bin", ".pth", ".pt", ".gguf", ".h5", ".msgpack", ".onnx"];

/// The largest number of files that an error names.
const NAMED_FILES: usize = 3;

const BUFFER_BYTES: usize = 1 << 20;

/// The part of a repository that a caller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepoPart<'a> {
    /// A model without its weights.
    Settings,
    /// A model with weights in safetensors.
    Model,
    /// The tokenizer in the file at this path, and the settings in the same folder.
    Tokenizer(&'a str),
}

/// The progress of a download, in bytes. Files that the copy already has count as downloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchProgress {
    /// Bytes downloaded so far.
    pub bytes_done: u64,
    /// The total size of the files that are known to belong to the part. The shards of a model become known after the
    /// download of their index.
    pub bytes_total: u64,
}

/// The copy of a commit in a folder. Several processes may fetch its files at the same time.
#[derive(Clone, Debug)]
pub struct CommitCopy {
    repo: Repo,
    commit: String,
    folder: PathBuf,
}

/// The marker of a complete part. The marker lists the files of the part and their sizes. It is written after all files
/// of the part.
#[derive(Serialize, Deserialize)]
struct Marker {
    files: BTreeMap<String, u64>,
}

impl CommitCopy {
    /// Returns the copy of a commit in the folder `OWNER--NAME/COMMIT` of `root`.
    pub fn new(root: &Path, repo: &Repo, commit: &str) -> CommitCopy {
        let folder = root.join(repo.id.replace('/', "--")).join(commit);
        CommitCopy { repo: repo.clone(), commit: commit.to_owned(), folder }
    }

    /// Returns the folder of the copy. A file has the same relative path in this folder as in the repository.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the copy has all files of a part.
    pub fn has(&self, part: RepoPart<'_>) -> bool {
        self.has_marked(part) || part == RepoPart::Settings && self.has_marked(RepoPart::Model)
    }

    fn has_marked(&self, part: RepoPart<'_>) -> bool {
        let Ok(bytes) = fs::read(self.marker(part)) else { return false };
        let Ok(Marker { files }) = serde_json::from_slice(&bytes) else { return false };
        files.iter().all(|(path, size)| has_size(&self.folder.join(path), *size))
    }

    /// Returns the path of the marker of a part.
    fn marker(&self, part: RepoPart<'_>) -> PathBuf {
        match part {
            RepoPart::Settings => self.folder.join(".settings.complete"),
            RepoPart::Model => self.folder.join(".model.complete"),
            RepoPart::Tokenizer(path) => {
                let (folder, name) = split(path);
                self.folder.join(folder).join(format!(".{name}.complete"))
            }
        }
    }

    /// Returns the number of bytes in the folder of a part, including unfinished files. The number grows while a
    /// process fetches.
    pub fn bytes(&self, part: RepoPart<'_>) -> u64 {
        let entries = fs::read_dir(self.folder.join(folder_of(part))).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.metadata().ok()).filter(fs::Metadata::is_file).map(|file| file.len()).sum()
    }

    /// Downloads the files of a part that the copy does not have. After an interruption, the next call downloads the
    /// interrupted file from its beginning, and keeps the complete files.
    ///
    /// # Errors
    /// Returns `HubError::Lacks` if the commit does not have the part. Also fails if a file can't be read or written.
    pub fn fetch(
        &self,
        client: &HubClient,
        part: RepoPart<'_>,
        progress: &mut dyn FnMut(FetchProgress),
    ) -> Result<(), HubError> {
        if self.has(part) {
            return Ok(());
        }
        let from = folder_of(part);
        let pattern = if from.is_empty() { "*".to_owned() } else { format!("{}/*", Pattern::escape(from)) };
        let listed = client.files(&self.repo, &self.commit, &pattern)?;
        let path_of = |name: &str| if from.is_empty() { name.to_owned() } else { format!("{from}/{name}") };
        let find = |path: &str| listed.iter().find(|file| file.path == path);
        let required = match part {
            RepoPart::Settings | RepoPart::Model => CONFIG_FILE,
            RepoPart::Tokenizer(path) => path,
        };
        if find(required).is_none() {
            return Err(self.lacks(required, &listed));
        }
        let mut files: Vec<&HubFile> = SETTINGS.iter().filter_map(|name| find(&path_of(name))).collect();
        files.extend(find(required).filter(|required| !files.contains(required)));

        let folder = if from.is_empty() { self.folder.clone() } else { self.folder.join(from) };
        create_durable_dir(&folder).map_err(|error| HubError::file("make the folder", &folder, &error))?;
        remove_abandoned(&folder);
        if part == RepoPart::Model {
            if let Some(single) = find(WEIGHTS_FILE) {
                files.push(single);
            } else if let Some(index) = find(WEIGHTS_INDEX_FILE) {
                files.push(index);
                self.fetch_files(client, &files, progress)?;
                for shard in self.shards()? {
                    let file = find(&shard);
                    files.push(file.ok_or_else(|| self.lacks(&format!("{shard} (a shard of its index)"), &listed))?);
                }
            } else {
                return Err(self.lacks("weights in safetensors", &listed));
            }
        }
        self.fetch_files(client, &files, progress)?;
        // the download took time: temporary files of a process that was killed just before this call may now be old
        // enough to be removed
        remove_abandoned(&folder);
        let files = files.iter().map(|file| (file.path.clone(), file.size)).collect();
        let marker = self.marker(part);
        let json = serde_json::to_vec(&Marker { files }).map_err(Into::into);
        json.and_then(|json| write_atomically(&marker, &json)).map_err(|error| HubError::file("write", &marker, &error))
    }

    fn fetch_files(
        &self,
        client: &HubClient,
        files: &[&HubFile],
        progress: &mut dyn FnMut(FetchProgress),
    ) -> Result<(), HubError> {
        let bytes_total = files.iter().map(|file| file.size).sum();
        let mut bytes_done = 0;
        for file in files {
            let mut add = |count| {
                bytes_done += count;
                progress(FetchProgress { bytes_done, bytes_total });
            };
            // another process may have fetched the file since the check of the part
            match has_size(&self.folder.join(&file.path), file.size) {
                true => add(file.size),
                false => self.fetch_file(client, file, &mut add)?,
            }
        }
        Ok(())
    }

    fn fetch_file(&self, client: &HubClient, file: &HubFile, received: &mut dyn FnMut(u64)) -> Result<(), HubError> {
        let target = self.folder.join(&file.path);
        let failed = |error| HubError::file("write", &target, &error);
        let mut writer = AtomicFile::create(&target).map_err(failed)?;
        writer.try_lock();
        let mut reader = client.open(&self.repo, &self.commit, file, 0..file.size);
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let count = reader.read(&mut buffer).map_err(|error| match HubError::within(&error) {
                Some(error) => error.clone(),
                None => HubError::file("read", Path::new(&file.path), &error),
            })?;
            if count == 0 {
                break;
            }
            writer.write_all(&buffer[..count]).map_err(failed)?;
            received(count as u64);
        }
        writer.commit().map(drop).map_err(failed)
    }

    /// Returns the shards that the index names. Returns an empty list for an invalid index: the reader of the model
    /// reports the error.
    fn shards(&self) -> Result<Vec<String>, HubError> {
        #[derive(Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        let path = self.folder.join(WEIGHTS_INDEX_FILE);
        let bytes = fs::read(&path).map_err(|error| HubError::file("read", &path, &error))?;
        let index: Option<Index> = serde_json::from_slice(&bytes).ok();
        let mut shards: Vec<String> = index.into_iter().flat_map(|index| index.weight_map.into_values()).collect();
        shards.sort();
        shards.dedup();
        Ok(shards)
    }

    fn lacks(&self, what: &str, listed: &[HubFile]) -> HubError {
        let is_weights = |path: &str| WEIGHTS.iter().any(|ending| path.ends_with(ending));
        let mut paths: Vec<&str> = listed.iter().map(|file| file.path.as_str()).collect();
        paths.sort_by_key(|path| !is_weights(path));
        let named = paths[..paths.len().min(NAMED_FILES)].join(", ");
        let present = match paths.len().saturating_sub(NAMED_FILES) {
            0 => named,
            others => format!("{named} and {others} more"),
        };
        HubError::Lacks { repo: self.repo.clone(), commit: self.commit.clone(), what: what.to_owned(), present }
    }
}

/// Returns the folder of a part within the repository. For the root folder, the result is an empty string.
fn folder_of(part: RepoPart<'_>) -> &str {
    match part {
        RepoPart::Settings | RepoPart::Model => "",
        RepoPart::Tokenizer(path) => split(path).0,
    }
}

/// Splits a path into the folder and the name of the file.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn has_size(path: &Path, size: u64) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == size)
}
