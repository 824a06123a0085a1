//! The file `meta.json`: the contents of a finished cache, and the corpus files from which the cache was made.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::atomic_file::write_bytes_atomically;
use crate::config::{DocumentFormat, PrepareProgress};
use crate::corpus::{BYTE_ORDER_MARK, Contents, Corpus, CorpusFile};
use crate::error::DataError;
use crate::loss_mask::{MASK_FILE, mask_bytes};
use crate::mapped::{DOCUMENTS_FILE, TOKEN_IDS_FILE};
use crate::prepared::{PreparedCorpus, TOKENIZER_FILE};
use crate::source::FileStamp;

const META_FILE: &str = "meta.json";

#[derive(Serialize, Deserialize)]
pub(super) struct Meta {
    #[serde(flatten)]
    pub(super) prepared: PreparedCorpus,
    pub(super) sources: Vec<FileHash>,
}

/// The hash of a corpus file. A later start reuses the hash if the file has the same path and [`FileStamp`].
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(super) struct FileHash {
    path: String,
    #[serde(flatten)]
    stamp: FileStamp,
    /// The BLAKE3 hash of the contents in hexadecimal, or the digest that the source states.
    blake3: String,
    /// Whether the file begins with a byte order mark, which is not part of its text. The value is always false for a
    /// file whose source states a digest.
    #[serde(default)]
    byte_order_mark: bool,
}

impl FileHash {
    fn of(file: &CorpusFile, hash: String, byte_order_mark: bool) -> FileHash {
        FileHash { path: file.name.clone(), stamp: file.stamp, blake3: hash, byte_order_mark }
    }
}

impl Meta {
    /// Returns the `meta.json` of a complete cache, or `None` if the cache is incomplete or damaged and must be built.
    pub(super) fn load(folder: &Path) -> Option<Meta> {
        let meta: Meta = serde_json::from_slice(&fs::read(folder.join(META_FILE)).ok()?).ok()?;
        let prepared = &meta.prepared;
        let has = |file: &str, size: u64| fs::metadata(folder.join(file)).is_ok_and(|found| found.len() == size);
        // a damaged count gives a size that no file has
        let complete = has(TOKEN_IDS_FILE, prepared.tokens.saturating_mul(prepared.id_bytes as u64))
            && (prepared.chat_template.is_none() || has(MASK_FILE, mask_bytes(prepared.tokens)))
            && has(DOCUMENTS_FILE, prepared.documents.saturating_add(1).saturating_mul(8))
            && fs::read(folder.join(TOKENIZER_FILE)).is_ok_and(|bytes| hash_bytes(&bytes) == prepared.tokenizer_hash);
        complete.then_some(meta)
    }

    pub(super) fn write(&self, folder: &Path) -> Result<(), DataError> {
        let path = folder.join(META_FILE);
        let json = serde_json::to_vec_pretty(self).map_err(|error| DataError::io("write", &path)(error.into()))?;
        write_bytes_atomically(&path, &json)
    }

    /// Writes `sources` to `meta.json` if the paths or times of the same contents have changed. The next start can then
    /// reuse the hashes instead of reading the files again.
    pub(super) fn refresh(&self, folder: &Path, sources: Vec<FileHash>) -> Result<(), DataError> {
        if self.sources == sources {
            return Ok(());
        }
        Meta { prepared: self.prepared.clone(), sources }.write(folder)
    }
}

/// Returns the hash of every file. Reads a file only if its source states no digest and no finished cache has a hash
/// for the file's path and stamp.
pub(super) fn hash_files(
    corpus: &Corpus,
    cache_root: &Path,
    progress: &mut dyn FnMut(PrepareProgress),
) -> Result<Vec<FileHash>, DataError> {
    let known = known_hashes(cache_root);
    let (mut done, bytes_total) = (0, corpus.size());
    corpus
        .files
        .iter()
        .map(|file| {
            let hash = match (&file.digest, known.get(&(file.name.clone(), file.stamp))) {
                (Some(digest), _) => FileHash::of(file, digest.clone(), false),
                (None, Some(hash)) => hash.clone(),
                (None, None) => hash_file(file, &mut |read| {
                    let bytes_done = (done + read).min(bytes_total);
                    progress(PrepareProgress { phase: "hashing the corpus", bytes_done, bytes_total });
                })?,
            };
            done += file.stamp.size;
            Ok(hash)
        })
        .collect()
}

/// Returns the identity of the corpus: a hash of the formats and contents of its files in order, and of each file's
/// text field or conversation format. File names don't count. Checkpoints record this hash, so every version of
/// Stagecoach must hash the same input.
pub(super) fn corpus_hash(corpus: &Corpus, hashes: &[FileHash]) -> String {
    let mut hasher = blake3::Hasher::new();
    for (file, hash) in corpus.files.iter().zip(hashes) {
        let format = file.format;
        let field = match (file.documents, &format.contents) {
            (DocumentFormat::Text, Contents::Fields(_)) => format!("{:?}", file.text_field),
            (DocumentFormat::Text, _) => "\"\"".to_owned(),
            (conversations, _) => conversations.name().to_owned(),
        };
        // earlier versions trained on the byte order mark as text, so the hash must differ from their hash
        let without = match format.contents {
            Contents::PlainText if hash.byte_order_mark => " without its byte order mark",
            _ => "",
        };
        hasher.update(format!("{} {field} {}{without}\n", file.hashed_name(), hash.blake3).as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// Returns the hashes in all finished caches, by path and stamp.
fn known_hashes(cache_root: &Path) -> HashMap<(String, FileStamp), FileHash> {
    let folders = fs::read_dir(cache_root).into_iter().flatten().flatten();
    folders
        .filter_map(|folder| serde_json::from_slice::<Meta>(&fs::read(folder.path().join(META_FILE)).ok()?).ok())
        .flat_map(|meta| meta.sources)
        .map(|file| ((file.path.clone(), file.stamp), file))
        .collect()
}

fn hash_bytes(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

fn hash_file(corpus_file: &CorpusFile, on_bytes_read: &mut dyn FnMut(u64)) -> Result<FileHash, DataError> {
    let failed = || DataError::io("read", &corpus_file.path);
    let mut file = corpus_file.open_at(0).map_err(failed())?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut byte_order_mark = false;
    loop {
        let bytes = file.read(&mut buffer).map_err(failed())?;
        if bytes == 0 {
            break;
        }
        byte_order_mark |= hasher.count() == 0 && buffer[..bytes].starts_with(BYTE_ORDER_MARK);
        hasher.update(&buffer[..bytes]);
        on_bytes_read(hasher.count());
    }
    Ok(FileHash::of(corpus_file, hasher.finalize().to_hex().to_string(), byte_order_mark))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::corpus::FORMATS;
    use crate::examples::example;
    use crate::source::{LocalFiles, Source, SourceFile};

    /// Checkpoints of older versions carry this hash. A job would refuse them if the same corpus gave another hash.
    #[test]
    fn corpus_hash_is_stable_across_versions() {
        let source: Arc<dyn Source> = Arc::new(LocalFiles::below(Path::new("/")).unwrap());
        let stamp = FileStamp::default();
        let file = |extension: &str| {
            let name = format!("a.{extension}");
            let file = SourceFile { path: name.clone().into(), matched: name.clone(), name, stamp, digest: None };
            CorpusFile::new(&source, file, DocumentFormat::Text, "text").unwrap()
        };
        for format in &FORMATS {
            assert_eq!(format.hashed_name, example(format.extension).hashed_name);
        }
        assert_eq!(["txt.gz", "jsonl.zst"].map(|name| file(name).hashed_name()), ["Text.gz", "JsonLines.zst"]);
        let files = ["txt", "jsonl", "parquet", "tokens", "u16"].map(file).to_vec();
        let corpus = Corpus { files, ..Corpus::default() };
        let hash = |blake3: &str| FileHash { path: "a".into(), stamp, blake3: blake3.into(), byte_order_mark: false };
        let hashed = "Text \"\" 0a\nJsonLines \"text\" 0b\nParquet \"text\" 0c\nIds32 \"\" 0d\nIds16 \"\" 0e\n";
        let expected = blake3::hash(hashed.as_bytes()).to_hex().to_string();
        assert_eq!(corpus_hash(&corpus, &["0a", "0b", "0c", "0d", "0e"].map(hash)), expected);
    }
}
