//! `meta.json`: what a finished cache holds, and the files it was made from.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{DOCUMENTS, IDS, Prepared, TOKENIZER, TOKENIZER_CONFIG, publish};
use crate::corpus::{Corpus, Kind, Source};
use crate::error::DataError;
use crate::settings::Progress;

const META: &str = "meta.json";

#[derive(Serialize, Deserialize)]
pub(super) struct Meta {
    #[serde(flatten)]
    pub(super) prepared: Prepared,
    pub(super) sources: Vec<SourceHash>,
}

/// A file of the corpus. Path, size and time tell that it is unchanged; the hash says what it holds.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq)]
pub(super) struct SourceHash {
    path: String,
    /// Bytes.
    size: u64,
    /// Nanoseconds since 1970.
    modified: u64,
    blake3: String,
}

impl Meta {
    /// That of a complete cache; `None` if it isn't complete, or is damaged, and must be built.
    pub(super) fn load(folder: &Path) -> Option<Meta> {
        let meta: Meta = serde_json::from_slice(&fs::read(folder.join(META)).ok()?).ok()?;
        let prepared = &meta.prepared;
        let has = |file: &str, size: u64| fs::metadata(folder.join(file)).is_ok_and(|found| found.len() == size);
        let complete = has(IDS, prepared.tokens * prepared.id_bytes as u64)
            && has(DOCUMENTS, (prepared.documents + 1) * 8)
            && folder.join(TOKENIZER_CONFIG).is_file()
            && fs::read(folder.join(TOKENIZER)).is_ok_and(|bytes| hash_of(&bytes) == prepared.tokenizer_hash);
        complete.then_some(meta)
    }

    pub(super) fn publish(&self, folder: &Path) -> Result<(), DataError> {
        let path = folder.join(META);
        let json = serde_json::to_vec_pretty(self).map_err(|error| DataError::io("write", &path)(error.into()))?;
        publish::publish_bytes(&path, &json)?;
        publish::sync(folder)
    }

    /// Notes that the same contents now lie in `sources`, so that the next start needn't read them.
    pub(super) fn refresh(&self, folder: &Path, sources: Vec<SourceHash>) -> Result<(), DataError> {
        if self.sources == sources {
            return Ok(());
        }
        Meta { prepared: self.prepared.clone(), sources }.publish(folder)
    }
}

/// The hash of every file: out of the cache where path, size and time are those of a file it was made from.
pub(super) fn hash_sources(
    corpus: &Corpus,
    cache: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<SourceHash>, DataError> {
    let known = known_hashes(cache);
    let (mut done, total) = (0, corpus.size());
    corpus
        .sources
        .iter()
        .map(|source| {
            let blake3 = match known.get(&(source.name.clone(), source.size, source.modified)) {
                Some(hash) => hash.clone(),
                None => hash(source, &mut |read| {
                    progress(Progress { what: "hashing the corpus", done: (done + read).min(total), total });
                })?,
            };
            done += source.size;
            Ok(SourceHash { path: source.name.clone(), size: source.size, modified: source.modified, blake3 })
        })
        .collect()
}

/// What the corpus holds, however its files are called: kinds and contents in order, and where their text lies.
pub(super) fn corpus_hash(corpus: &Corpus, sources: &[SourceHash]) -> String {
    let mut hasher = blake3::Hasher::new();
    for (source, hash) in corpus.sources.iter().zip(sources) {
        let field = match source.kind {
            Kind::JsonLines | Kind::Parquet => corpus.text_field.as_str(),
            Kind::Text | Kind::Ids32 | Kind::Ids16 => "",
        };
        hasher.update(format!("{:?} {field:?} {}\n", source.kind, hash.blake3).as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// By path, size and time: the hashes noted in any finished cache.
fn known_hashes(cache: &Path) -> HashMap<(String, u64, u64), String> {
    let folders = fs::read_dir(cache).into_iter().flatten().flatten();
    folders
        .filter_map(|folder| serde_json::from_slice::<Meta>(&fs::read(folder.path().join(META)).ok()?).ok())
        .flat_map(|meta| meta.sources)
        .map(|source| ((source.path, source.size, source.modified), source.blake3))
        .collect()
}

fn hash_of(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

fn hash(source: &Source, read: &mut dyn FnMut(u64)) -> Result<String, DataError> {
    let failed = || DataError::io("read", &source.path);
    let mut file = File::open(&source.path).map_err(failed())?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(failed())? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            bytes => hasher.update(&buffer[..bytes]),
        };
        read(hasher.count());
    }
}
