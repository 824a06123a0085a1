//! Tests imitations of the tokenizers of eight model families, with their added tokens and configurations. The ids and
//! special tokens must equal those of Hugging Face's transformers. `make transformers` runs these tests with a Python
//! that has transformers.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use stagecoach_data::{Tokenizer, TokenizerSource};

use crate::common::*;

const FAMILIES: [&str; 8] = ["gpt2", "llama2", "llama3", "qwen3", "mistral", "gemma", "phi3", "deepseek"];

fn id(value: &Value) -> Option<u32> {
    value.as_u64().map(|id| id as u32)
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|value| id(value).unwrap()).collect()
}

/// Returns the ids that the token cache must have if each text is a document. `key` is `parsed` if the names of special
/// tokens in a text become special tokens, and `asText` if they are encoded as text.
fn framed(expected: &Value, key: &str) -> Vec<u32> {
    let (bos, eos) = (id(&expected["bos"]), id(&expected["eos"]).unwrap());
    let mut all = Vec::new();
    for case in expected["cases"].as_array().unwrap() {
        let text = ids(&case[key]);
        all.extend(bos.filter(|bos| text.first() != Some(bos)));
        all.extend(&text);
        all.extend((key == "asText" || !text.last().is_some_and(|last| ends(expected).contains(last))).then_some(eos));
    }
    all
}

/// Returns the ids of all tokens that end a text according to the configuration files.
fn ends(expected: &Value) -> Vec<u32> {
    ids(&expected["ends"])
}

#[test]
#[ignore = "needs a Python with transformers: make transformers"]
fn ids_and_special_tokens_are_those_of_transformers() {
    let python =
        std::env::var("STAGECOACH_TRANSFORMERS").expect("the Python with transformers: see `make transformers`");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/hugging_face/tokenizer_families.py");
    let made = tempfile::tempdir().unwrap();
    assert!(Command::new(python).arg(script).arg(made.path()).status().unwrap().success());
    for family in FAMILIES {
        let folder = made.path().join(family);
        let read = |name: &str| -> Value { serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap() };
        let mut expected = read("expected.json");
        let path = folder.join("tokenizer.json");
        let (as_text, parsing) = (Tokenizer::load(&path).unwrap(), Tokenizer::load_parsing(&path).unwrap());
        let special = as_text.special_tokens();
        let found = (special.bos, special.eos.first().copied(), special.pad);
        assert_eq!(found, (id(&expected["bos"]), id(&expected["eos"]), id(&expected["pad"])), "{family}");
        expected["ends"] = json!(special.eos);
        for case in expected["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            assert_eq!(as_text.encode(text).unwrap(), ids(&case["asText"]), "{family}: {text:?}");
            assert_eq!(parsing.encode(text).unwrap(), ids(&case["parsed"]), "{family}: {text:?}");
        }
        // the texts are also encoded as a corpus, whose long texts are read in pieces
        let lines = |case: &Value| format!("{}\n", json!({"text": case["text"]}));
        let lines: String = expected["cases"].as_array().unwrap().iter().map(lines).collect();
        let mut volume = TestVolume::new(&[("x.jsonl", lines.as_bytes())]);
        for name in ["tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"] {
            volume.write(&format!("{family}/{name}"), &fs::read(folder.join(name)).unwrap());
        }
        volume.config.tokenizer = TokenizerSource::File { path: format!("{family}/tokenizer.json").into() };
        let mut folders = BTreeMap::new();
        for (parse, key) in [(false, "asText"), (true, "parsed")] {
            volume.config.parse_special_tokens = parse;
            assert!(volume.ids() == framed(&expected, key), "{family}, {key}");
            folders.insert(volume.prepare().unwrap().folder, key);
        }
        assert_eq!(folders.len(), 2);
    }
}
