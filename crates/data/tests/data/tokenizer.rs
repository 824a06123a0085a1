//! Tokenizers trained on a corpus, and those given as a file.

use std::fs;

use crate::common::*;
use serde_json::{Value, json};
use stagecoach_data::{PreparedCorpus, Tokenizer};

const TEXT: &str = "In the beginning was the word, and the word was with the reader, and the reader took the word. ";

fn files(volume: &TestVolume) -> (Vec<u8>, Value, PreparedCorpus) {
    let (tokenizer, config) = volume.open().tokenizer_files();
    let config = serde_json::from_slice(&fs::read(config).unwrap()).unwrap();
    (fs::read(tokenizer).unwrap(), config, volume.prepare().unwrap())
}

#[test]
fn the_same_corpus_gives_the_same_bytes() {
    let text = TEXT.repeat(10);
    let (first, config, prepared) = files(&TestVolume::new(&[("x.txt", text.as_bytes())]).train(300));
    let (again, _, same) = files(&TestVolume::new(&[("renamed.txt", text.as_bytes())]).train(300));
    assert!(first == again);
    assert_eq!(prepared, same, "names and times don't matter, contents do");
    assert_eq!(prepared.tokenizer_hash, blake3::hash(&first).to_string());
    assert_eq!(
        config,
        json!({
            "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false,
            "bos_token": "[BOT]", "eos_token": "[EOT]", "pad_token": "[PAD]",
        })
    );
}

#[test]
fn special_tokens_come_first_and_the_size_is_the_real_one() {
    for (wanted, got) in [(259, 259), (270, 270), (50_000, 0)] {
        let volume = TestVolume::new(&[("x.txt", TEXT.repeat(10).as_bytes())]).train(wanted);
        let tokenizer = Tokenizer::load(&volume.open().tokenizer_files().0).unwrap();
        assert_eq!(
            (tokenizer.bos_token_id(), tokenizer.eos_token_id(), tokenizer.pad_token_id()),
            (Some(0), Some(1), Some(2))
        );
        assert_eq!(tokenizer.vocab_size(), volume.prepare().unwrap().vocab_size);
        match got {
            0 => assert!((270..400).contains(&tokenizer.vocab_size()), "a short text can't fill {wanted}"),
            _ => assert_eq!(tokenizer.vocab_size(), got),
        }
    }
}

#[test]
fn special_token_text_is_encoded_as_text() {
    let volume = TestVolume::new(&[("x.txt", TEXT.repeat(10).as_bytes())]).train(300);
    let tokenizer = Tokenizer::load(&volume.open().tokenizer_files().0).unwrap();
    for text in ["the word [EOT] was [BOT]", "\0\u{7f}\u{1f600}\r\n", "", " "] {
        let ids = tokenizer.encode(text).unwrap();
        assert!(ids.iter().all(|&id| id > PAD));
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    }
    let marked = [vec![BOS], tokenizer.encode("the word").unwrap(), vec![EOS, PAD]].concat();
    assert_eq!(tokenizer.decode(&marked).unwrap(), "the word");
}

#[test]
fn a_given_tokenizer_is_copied_unchanged() {
    let volume = TestVolume::new(&[("x.txt", b"a b c d")]);
    let (tokenizer, config, prepared) = files(&volume);
    assert_eq!(tokenizer, letters().to_string().as_bytes());
    assert_eq!(config["bos_token"], "[BOT]");
    assert_eq!(prepared.tokens, 6, "its truncation to two tokens is switched off");

    // Its own configuration goes along, and another tokenizer is another cache.
    volume.write("letters/tokenizer_config.json", br#"{"tokenizer_class": "Their"}"#);
    let mut other = letters();
    other["model"]["vocab"]["z"] = 99.into();
    volume.write("letters/tokenizer.json", other.to_string().as_bytes());
    let (_, config, changed) = files(&volume);
    assert_eq!(config, json!({"tokenizer_class": "Their"}));
    assert_eq!((changed.vocab_size, changed.corpus_hash == prepared.corpus_hash), (100, true));
    assert_ne!(changed.folder, prepared.folder);
}

#[test]
fn special_tokens_under_their_other_names() {
    let volume = TestVolume::new(&[("x.txt", b"a b c d")]);
    let named = |vocabulary: Value| {
        let mut tokenizer = letters();
        tokenizer["added_tokens"] = json!([]);
        tokenizer["model"]["vocab"] = vocabulary;
        let path = volume.write("named.json", tokenizer.to_string().as_bytes());
        let tokenizer = Tokenizer::load(&path).unwrap();
        (tokenizer.bos_token_id(), tokenizer.eos_token_id(), tokenizer.pad_token_id())
    };
    assert_eq!(named(json!({"[UNK]": 0, "<s>": 1, "</s>": 2, "<pad>": 3})), (Some(1), Some(2), Some(3)));
    assert_eq!(named(json!({"[UNK]": 0, "<|endoftext|>": 7})), (None, Some(7), None));
    assert_eq!(named(json!({"[UNK]": 0, "<|begin_of_text|>": 8, "<|end_of_text|>": 9})), (Some(8), Some(9), None));
    assert_eq!(named(json!({"[UNK]": 0})), (None, None, None));
}
