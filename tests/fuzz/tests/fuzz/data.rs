//! Fuzzes the readers of corpus files and tokenizers.

use std::fs;
use std::path::Path;

use serde_json::json;
use stagecoach_data::{Compression, DataConfig, FORMATS, Tokenizer, TokenizerSource, prepare};

use crate::fuzz;

#[path = "../../../../crates/data/tests/data/common/examples.rs"]
mod examples;
use examples::{compressed, example};

/// Returns the file of a byte-level BPE tokenizer with a few merges.
fn tokenizer() -> Vec<u8> {
    let tokens = ["[BOT]", "[EOT]", "[PAD]", "a", "b", "c", "ab", "abc"];
    let vocab: serde_json::Map<String, serde_json::Value> =
        tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), id.into())).collect();
    let special = |id: usize| {
        json!({"id": id, "content": tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [special(0), special(1), special(2)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": [["a", "b"], ["ab", "c"]]},
    })
    .to_string()
    .into_bytes()
}

#[test]
fn tokenizers() {
    let path = Path::new("tokenizer.json");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(path);
    fuzz(1500, &[tokenizer()], 500, |bytes| {
        fs::write(&file, bytes).unwrap();
        let read = Tokenizer::load(&file);
        if let Ok(tokenizer) = &read {
            drop((
                tokenizer.encode("abc cab"),
                tokenizer.decode(&[0, 5, 7, 1 << 30]),
                tokenizer.special_tokens().identity(),
            ));
        }
        read.is_ok()
    });
}

/// Fuzzes the reader of a corpus file with this name.
fn corpus(name: &str, cases: u32, valid: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::write(root.join("tokenizer.json"), tokenizer()).unwrap();
    let tokenizer = TokenizerSource::File { path: "tokenizer.json".into() };
    let config = DataConfig::new(root, name, 4, tokenizer);
    fuzz(cases, &[valid.to_vec()], 200, |bytes| {
        fs::write(root.join(name), bytes).unwrap();
        let prepared = prepare(&config, &mut |_| {});
        assert!(prepared.as_ref().err().is_none_or(|error| !error.to_string().is_empty()));
        fs::remove_dir_all(root.join("cache")).unwrap_or_default();
        prepared.is_ok()
    });
}

#[test]
fn corpus_files() {
    stagecoach_data::hide_caught_panics();
    std::thread::scope(|scope| {
        for format in &FORMATS {
            scope.spawn(|| {
                let valid = (example(format.extension).files)(&["abc cab", "a b c", ""]);
                corpus(&format!("text.{}", format.extension), 1000, &valid[0]);
                let compressions = Compression::ALL.map(Compression::extension).into_iter();
                for extension in compressions.filter(|_| format.may_be_compressed) {
                    let file = compressed(&[&valid[0]], extension);
                    corpus(&format!("text.{}.{extension}", format.extension), 300, &file);
                }
            });
        }
    });
}
