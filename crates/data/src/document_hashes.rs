//! A hash of the contents of each document, in a file of the token cache. Copies of a document have the same hash.

use std::io::Write;
use std::path::Path;

use crate::atomic_file::write_atomically;
use crate::config::PrepareProgress;
use crate::error::DataError;
use crate::loss_mask::id_of;
use crate::map_file::map_file;
use crate::mapped::TokenFiles;
use crate::prepared::PreparedCorpus;
use memmap2::Mmap;

const HASHES_FILE: &str = "hashes.bin";
const HASH_BYTES: usize = 8;

/// Returns the hash of a document: the first bytes of BLAKE3 over its ids, each as four little-endian bytes. The marks
/// of a loss mask have no effect.
pub(crate) fn document_hash(ids: &[u32]) -> u64 {
    let bytes: Vec<u8> = ids.iter().flat_map(|&token| id_of(token).to_le_bytes()).collect();
    let mut hash = [0; HASH_BYTES];
    hash.copy_from_slice(&blake3::hash(&bytes).as_bytes()[..HASH_BYTES]);
    u64::from_le_bytes(hash)
}

/// The hashes of a corpus's documents, memory-mapped.
pub(crate) struct DocumentHashes {
    map: Mmap,
}

impl DocumentHashes {
    /// Maps the file in the cache folder `folder`, which [`DocumentHashes::write`] wrote.
    pub(crate) fn open(folder: &Path, prepared: &PreparedCorpus) -> Result<DocumentHashes, DataError> {
        let map = map_file(&folder.join(HASHES_FILE), prepared.documents * HASH_BYTES as u64)?;
        Ok(DocumentHashes { map })
    }

    /// Writes the file, unless it is complete.
    pub(crate) fn write(
        folder: &Path,
        prepared: &PreparedCorpus,
        progress: &mut dyn FnMut(PrepareProgress),
    ) -> Result<(), DataError> {
        let path = folder.join(HASHES_FILE);
        let size = prepared.documents * HASH_BYTES as u64;
        if std::fs::metadata(&path).is_ok_and(|found| found.len() == size) {
            return Ok(());
        }
        let bytes_total = prepared.tokens * prepared.id_bytes as u64;
        let TokenFiles { ids: token_ids, offsets, .. } =
            TokenFiles::open(folder, prepared.tokens, prepared.documents, prepared.form())?;
        write_atomically(&path, |file| {
            let mut ids = Vec::new();
            for document in 0..prepared.documents {
                let (start, end) = (offsets.start(document), offsets.start(document + 1));
                ids.clear();
                ids.extend(token_ids.range(start, (end - start) as usize));
                let hash = document_hash(&ids).to_le_bytes();
                file.write_all(&hash).map_err(DataError::io("write", &path))?;
                let bytes_done = end * prepared.id_bytes as u64;
                progress(PrepareProgress { phase: "hashing the documents", bytes_done, bytes_total });
            }
            Ok(())
        })
    }

    /// Returns the hash of document `index`.
    pub(crate) fn get(&self, index: u64) -> u64 {
        let from = index as usize * HASH_BYTES;
        let mut bytes = [0; HASH_BYTES];
        bytes.copy_from_slice(&self.map[from..from + HASH_BYTES]);
        u64::from_le_bytes(bytes)
    }

    /// Returns hashes for tests.
    #[cfg(test)]
    pub(crate) fn of(hashes: &[u64]) -> DocumentHashes {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(HASHES_FILE);
        std::fs::write(&path, hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
        DocumentHashes { map: map_file(&path, (hashes.len() * HASH_BYTES) as u64).unwrap() }
    }
}
