//! A volume in a temporary folder, and a tokenizer whose vocabulary is single letters.

pub mod examples;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use stagecoach_data::{
    BatchPlan, DataConfig, DataError, Dataset, OnWait, PreparedCorpus, StreamPosition, Tokenizer, TokenizerSource,
};
use stagecoach_test_wait::until;
use tempfile::TempDir;

pub use examples::{compressed, example, little_endian, parquet, parquet_columns};

pub const BOS: u32 = 0;
pub const EOS: u32 = 1;
pub const PAD: u32 = 2;
/// The ids of the letters a, b, c and d.
pub const A: u32 = 4;
pub const B: u32 = 5;
pub const C: u32 = 6;
pub const D: u32 = 7;

/// Prepares a streamed corpus, and opens it at `positions`.
pub fn open_stream(config: &DataConfig, positions: &[StreamPosition]) -> Dataset {
    let prepared = stagecoach_data::prepare(config, &mut |_| {}).unwrap();
    let mut dataset = Dataset::open(config, &prepared).unwrap();
    dataset.make_windows(config, &prepared, positions).unwrap();
    dataset
}

/// A volume with a corpus. Dropping this value waits until no clone of `config` exists, and then removes the folder. A
/// thread of a dropped dataset has a clone, and could write into the folder during the removal.
pub struct TestVolume {
    pub folder: TempDir,
    pub config: DataConfig,
    /// `config.on_wait` has a clone of this value, and all clones of `config` share that clone. If a test replaces
    /// `on_wait`, the drop does not wait.
    clones: Arc<()>,
}

impl TestVolume {
    /// Returns a volume with `files` (name, contents) as its corpus. Sequences have 4 tokens and are packed. Nothing is
    /// held out, and the tokenizer comes from [`letters`].
    pub fn new(files: &[(&str, &[u8])]) -> TestVolume {
        let folder = TempDir::new().unwrap();
        let tokenizer = TokenizerSource::File { path: "letters/tokenizer.json".into() };
        let mut config = DataConfig::new(folder.path(), "corpus/**/*", 4, tokenizer);
        let clones = Arc::new(());
        let of_config = Arc::clone(&clones);
        config.on_wait = OnWait::new(move |_| _ = &of_config);
        let volume = TestVolume { folder, config, clones };
        for (name, contents) in files {
            volume.write(&format!("corpus/{name}"), contents);
        }
        volume.write("letters/tokenizer.json", letters().to_string().as_bytes());
        volume
    }

    /// Returns a volume with a corpus in the format of `extension`, for example `0.jsonl`, `1.jsonl` and so on. `texts`
    /// are the documents.
    pub fn of_format(extension: &str, texts: &[&str]) -> TestVolume {
        let volume = TestVolume::new(&[]);
        for (index, contents) in (example(extension).files)(texts).iter().enumerate() {
            volume.write(&format!("corpus/{index}.{extension}"), contents);
        }
        volume
    }

    pub fn write(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        path
    }

    pub fn train(mut self, vocab_size: usize) -> TestVolume {
        self.config.tokenizer = TokenizerSource::Train { vocab_size };
        self
    }

    pub fn prepare(&self) -> Result<PreparedCorpus, DataError> {
        stagecoach_data::prepare(&self.config, &mut |_| {})
    }

    /// Returns the tokenizer of the corpus from the cache.
    pub fn tokenizer(&self) -> Tokenizer {
        Tokenizer::load(&self.prepare().unwrap().tokenizer_file(&self.config)).unwrap()
    }

    /// Returns the tokenizer's files that a checkpoint contains.
    pub fn tokenizer_files(&self) -> BTreeMap<String, Vec<u8>> {
        stagecoach_data::tokenizer_files(&self.config, &self.prepare().unwrap()).unwrap().into_iter().collect()
    }

    pub fn open(&self) -> Dataset {
        Dataset::open(&self.config, &self.prepare().unwrap()).unwrap()
    }

    /// Returns all ids in the cache, in order.
    pub fn ids(&self) -> Vec<u32> {
        let prepared = self.prepare().unwrap();
        let bytes = fs::read(self.config.cache_root.join(prepared.folder).join("ids.bin")).unwrap();
        let id = |bytes: &[u8]| bytes.iter().rev().fold(0, |id, &byte| id << 8 | u32::from(byte));
        bytes.chunks(prepared.id_bytes).map(id).collect()
    }

    /// Returns the error message of `prepare`. `VOLUME` replaces the volume's path.
    pub fn error_message(&self) -> String {
        let error = self.prepare().map(|prepared| format!("{prepared:?}")).unwrap_err();
        assert!(!error.is_storage());
        error.to_string().replace(&*self.folder.path().to_string_lossy(), "VOLUME")
    }
}

impl Drop for TestVolume {
    fn drop(&mut self) {
        self.config.on_wait = OnWait::default();
        if !std::thread::panicking() {
            let is_unused = || (Arc::strong_count(&self.clones) == 1).then_some(());
            until("the threads of data sets to end", is_unused);
        }
    }
}

/// Returns the plan of the only held-out set, or a plan without microbatches if nothing is held out.
pub fn evaluation_plan(dataset: &Dataset, rows: usize) -> BatchPlan {
    let sets = dataset.evaluation_sets(rows);
    assert!(sets.len() <= 1);
    sets.into_iter().next().map_or_else(|| dataset.step_plan(0, 0, 0, 0).unwrap(), |set| set.plan)
}

/// Returns the ids of BOS, EOS and PAD.
pub fn special(tokenizer: &Tokenizer) -> (Option<u32>, Vec<u32>, Option<u32>) {
    let special = tokenizer.special_tokens();
    (special.bos, special.eos.clone(), special.pad)
}

/// Returns an entry of `added_tokens`.
pub fn special_token(name: &str, id: usize) -> Value {
    json!({
        "id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true,
    })
}

/// Returns a tokenizer definition in which white space separates words. The vocabulary has the letters a to h.
pub fn letters() -> Value {
    let names = ["[BOT]", "[EOT]", "[PAD]", "[UNK]", "a", "b", "c", "d", "e", "f", "g", "h"];
    let vocabulary: serde_json::Map<String, Value> =
        names.iter().enumerate().map(|(id, name)| (name.to_string(), json!(id))).collect();
    let special = |id: usize| special_token(names[id], id);
    json!({
        "version": "1.0", "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}, "padding": null,
        "added_tokens": [special(0), special(1), special(2)],
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    })
}
