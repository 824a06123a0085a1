//! Tests tokenizers that are trained on a corpus or given as a file.

use crate::common::*;
use serde_json::{Value, json};
use stagecoach_data::{PreparedCorpus, Tokenizer, TokenizerSource};

const TEXT: &str = "In the beginning was the word, and the word was with the reader, and the reader took the word. ";

fn files(volume: &TestVolume) -> (Vec<u8>, Value, PreparedCorpus) {
    let files = volume.tokenizer_files();
    let config = serde_json::from_slice(&files["tokenizer_config.json"]).unwrap();
    (files["tokenizer.json"].clone(), config, volume.prepare().unwrap())
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
        let tokenizer = volume.tokenizer();
        assert_eq!(special(&tokenizer), (Some(0), vec![1], Some(2)));
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
    let tokenizer = volume.tokenizer();
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

    // The configuration beside the tokenizer is copied, too. Another tokenizer has another cache.
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
fn a_job_gets_the_files_of_its_own_tokenizer() {
    let mut volume = TestVolume::new(&[("x.txt", b"a b c d")]);
    volume.write("letters/tokenizer_config.json", br#"{"model": "base"}"#);
    let first = volume.prepare().unwrap();
    for (name, contents) in [
        ("tokenizer.json", letters().to_string().into_bytes()),
        ("tokenizer_config.json", br#"{"model": "instruct"}"#.to_vec()),
        ("special_tokens_map.json", b"{}".to_vec()),
        ("chat_template.jinja", b"{{ messages }}".to_vec()),
    ] {
        volume.write(&format!("instruct/{name}"), &contents);
    }
    volume.config.tokenizer = TokenizerSource::File { path: "instruct/tokenizer.json".into() };
    assert_eq!(volume.prepare().unwrap().folder, first.folder, "the ids are the same");
    let files = volume.tokenizer_files();
    assert_eq!(files["tokenizer_config.json"], br#"{"model": "instruct"}"#);
    assert_eq!(files["chat_template.jinja"], b"{{ messages }}");
    assert_eq!(files.len(), 4);
}

/// Returns the special tokens of a tokenizer with the given `added_tokens` and configuration files.
fn named(added: Value, configs: &[(&str, Value)]) -> (Option<u32>, Vec<u32>, Option<u32>) {
    let volume = TestVolume::new(&[]);
    let mut tokenizer = letters();
    tokenizer["added_tokens"] = added;
    // the vocabulary contains these names as ordinary words, as Qwen's vocabulary does
    tokenizer["model"]["vocab"] = json!({"[UNK]": 0, "<s>": 1, "</s>": 2, "<pad>": 3});
    let path = volume.write("named/tokenizer.json", tokenizer.to_string().as_bytes());
    for (name, config) in configs {
        volume.write(&format!("named/{name}"), config.to_string().as_bytes());
    }
    special(&Tokenizer::load(&path).unwrap())
}

#[test]
fn configurations_name_the_special_tokens() {
    let config = |config: Value| ("tokenizer_config.json", config);
    let model = |config: Value| ("config.json", config);
    let qwen =
        || json!([special_token("<|endoftext|>", 4), special_token("<|im_start|>", 5), special_token("<|im_end|>", 6)]);
    let of_base = config(json!({"bos_token": null, "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}));
    assert_eq!(named(qwen(), &[of_base]), (None, vec![4], Some(4)));
    // Qwen's config.json names a begin-of-text token, but its tokenizer_config.json says that there is none
    let of_chat =
        || config(json!({"bos_token": null, "eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>"}));
    let model_config = || model(json!({"bos_token_id": 4, "eos_token_id": 6}));
    let generation_config = || ("generation_config.json", json!({"eos_token_id": [6, 4]}));
    assert_eq!(named(qwen(), &[of_chat(), model_config(), generation_config()]), (None, vec![6, 4], Some(4)));
    assert_eq!(named(qwen(), &[model_config()]), (None, vec![6], None));
    // In GPT-2, one token is both begin and end. In Phi-3, `add_bos_token` turns off the begin token of documents.
    let gpt_2 = config(json!({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}));
    assert_eq!(named(json!([special_token("<|endoftext|>", 4)]), &[gpt_2]), (None, vec![4], None));
    let phi_3 = || json!([special_token("<s>", 1), special_token("<|endoftext|>", 4)]);
    let none = config(json!({"add_bos_token": false, "bos_token": "<s>", "eos_token": "<|endoftext|>"}));
    assert_eq!(named(phi_3(), &[none]), (None, vec![4], None));
    let added = config(json!({"bos_token": "<s>", "eos_token": "<|endoftext|>"}));
    assert_eq!(named(phi_3(), &[added]), (Some(1), vec![4], None));
    // the default ids of a model's configuration class are ids of ordinary words here, and are ignored
    assert_eq!(named(qwen(), &[model(json!({"bos_token_id": 1, "eos_token_id": 2}))]), (None, vec![4], None));
    let deepseek = json!([special_token("<｜begin▁of▁sentence｜>", 4), special_token("<｜end▁of▁sentence｜>", 5)]);
    assert_eq!(named(deepseek, &[model(json!({"bos_token_id": 4, "eos_token_id": 5}))]), (Some(4), vec![5], None));
}

#[test]
fn without_configurations_special_tokens_have_usual_names() {
    let added = |names: &[(&str, usize)]| names.iter().map(|(name, id)| special_token(name, *id)).collect::<Value>();
    assert_eq!(named(added(&[("<s>", 1), ("</s>", 2), ("<pad>", 3)]), &[]), (Some(1), vec![2], Some(3)));
    assert_eq!(named(added(&[("<|endoftext|>", 4)]), &[]), (None, vec![4], None));
    assert_eq!(named(added(&[("<|begin_of_text|>", 4), ("<|end_of_text|>", 5)]), &[]), (Some(4), vec![5], None));
    assert_eq!(named(json!([]), &[]), (None, vec![], None), "words of the vocabulary are no special tokens");
    let mut ordinary = added(&[("</s>", 2)]);
    ordinary[0]["special"] = false.into();
    assert_eq!(named(ordinary, &[]), (None, vec![], None));
}

#[test]
fn configurations_that_fit_no_tokenizer_are_refused() {
    let mut volume = TestVolume::new(&[("x.txt", b"a b c d")]);
    volume.write("letters/tokenizer_config.json", br#"{"eos_token": "<end>"}"#);
    assert_eq!(
        volume.error_message(),
        "the tokenizer VOLUME/letters/tokenizer.json: tokenizer_config.json names <end> as eos_token, and \
         tokenizer.json has no such token: use both files from the same model"
    );
    volume.write("letters/tokenizer_config.json", b"[");
    assert!(volume.error_message().contains("tokenizer_config.json: it is not JSON"), "{}", volume.error_message());
    volume.write("letters/tokenizer_config.json", b"{}");
    let mut random = letters();
    random["model"] = json!({"type": "BPE", "dropout": 0.1, "vocab": {"a": 4}, "merges": []});
    volume.write("letters/tokenizer.json", random.to_string().as_bytes());
    assert_eq!(
        volume.error_message(),
        "the tokenizer VOLUME/letters/tokenizer.json: its model.dropout is 0.1, so that a text has other tokens in \
         each run: set it to null"
    );
    // another tokenizer replaces the tokenizer with which the corpus was tokenised
    volume.write("letters/tokenizer.json", letters().to_string().as_bytes());
    let prepared = volume.prepare().unwrap();
    volume.write("letters/tokenizer.json", format!("{} ", letters()).as_bytes());
    volume.config.sources[0].paths = vec!["corpus/x.txt".into()];
    let error = stagecoach_data::document_indices(&volume.config, &prepared, &[], &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("it differs from the tokenizer with which the corpus was tokenised"), "{error}");
}

/// Returns a BPE tokenizer without an unknown token and without byte tokens. The vocabulary has the letters a to c, the
/// characters of `</s>`, and the special tokens `special`.
fn letters_alone(special: &[(&str, usize)]) -> Value {
    let mut tokenizer = letters();
    tokenizer["added_tokens"] = special.iter().map(|(name, id)| special_token(name, *id)).collect();
    let mut vocab = json!({"a": 4, "b": 5, "c": 6, "<": 8, ">": 9, "/": 10, "s": 11});
    special.iter().for_each(|(name, id)| vocab[*name] = (*id).into());
    tokenizer["model"] = json!({"type": "BPE", "vocab": vocab, "merges": []});
    tokenizer
}

#[test]
fn losses_of_a_text_are_counted() {
    let volume =
        TestVolume::new(&[("x.txt", "a é b".as_bytes()), ("y.txt", "é漢".as_bytes()), ("z.txt", b"c </s> </s>")]);
    let tokenizer = letters_alone(&[("<s>", 0), ("</s>", 1)]);
    volume.write("letters/tokenizer.json", tokenizer.to_string().as_bytes());
    let expected = [
        "the texts contain the names of special tokens, which are encoded as ordinary text: </s> (2 times); set \
         data.specialTokens to Parse to encode them as special tokens",
        "the tokenizer has no token for 3 characters of the corpus, such as 'é', '漢': they are left out",
        "1 document with text has no token in this tokenizer and is left out",
    ];
    // the second run reads the cache
    for _ in 0..2 {
        assert_eq!(volume.prepare().unwrap().notes, expected);
    }
    let text = [8, 10, 11, 9];
    assert_eq!(volume.ids(), [&[0, A, B, 1, 0, C][..], &text, &text, &[1]].concat());
    // y.txt has no token, so z.txt is the second document
    let prepared = volume.prepare().unwrap();
    let index = |name: &str| {
        let name: stagecoach_data::DocumentName = name.parse().unwrap();
        stagecoach_data::document_indices(&volume.config, &prepared, &[name], &mut |_| {})
    };
    assert_eq!(index("corpus/z.txt:1").unwrap(), [1]);
    let error = index("corpus/y.txt:1").unwrap_err().to_string();
    assert!(error.ends_with("the file has no document with text"), "{error}");
    let volume = TestVolume::new(&[("x.txt", b"a z z b")]);
    assert_eq!(
        volume.prepare().unwrap().notes,
        ["the tokenizer lacks characters of the corpus: 2 unknown tokens stand for them"]
    );
}

#[test]
fn special_tokens_in_a_text_are_tokens_if_the_job_says_so() {
    let mut volume = TestVolume::new(&[("x.txt", b"a</s>b"), ("y.txt", b"<s>c</s>")]);
    volume.write("letters/tokenizer.json", letters_alone(&[("<s>", 0), ("</s>", 1)]).to_string().as_bytes());
    let as_text = volume.prepare().unwrap().folder;
    volume.config.parse_special_tokens = true;
    // a document that already has begin and end tokens gets no second begin or end token
    assert_eq!(volume.ids(), [0, A, 1, B, 1, 0, C, 1]);
    let prepared = volume.prepare().unwrap();
    assert_eq!((prepared.documents, prepared.notes.len()), (2, 0));
    assert_ne!(prepared.folder, as_text);
    volume.config.sequence_length = 4;
    volume.config.packing = false;
    let dataset = volume.open();
    let parts = dataset.document_parts(&dataset.step_plan(1, 0, 2, 1).unwrap());
    let texts = stagecoach_data::part_texts(&volume.config, &prepared, &parts, &mut |_| {}).unwrap();
    let mut texts: Vec<_> = texts.iter().map(|text| text.text.as_str()).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["<s>c</s>", "a</s>b"]);
}

#[test]
fn an_end_of_text_that_a_configuration_names_is_never_made_of_text() {
    let volume = TestVolume::new(&[("x.txt", b"a </s> b")]);
    let mut tokenizer = letters_alone(&[("<s>", 0), ("</s>", 1)]);
    tokenizer["added_tokens"][1]["special"] = false.into();
    volume.write("letters/tokenizer.json", tokenizer.to_string().as_bytes());
    volume.write("letters/tokenizer_config.json", br#"{"bos_token": "<s>", "eos_token": "</s>"}"#);
    assert_eq!(volume.ids(), [0, A, 8, 10, 11, 9, B, 1]);
}

#[test]
fn token_files_end_documents_at_every_end_of_text_and_keep_it() {
    let volume = TestVolume::new(&[("x.tokens", &little_endian(&[A, 1, B, 7, C], 4))]);
    let mut tokenizer = letters();
    tokenizer["added_tokens"] = json!([special_token("[EOT]", 1), special_token("d", 7)]);
    volume.write("letters/tokenizer.json", tokenizer.to_string().as_bytes());
    volume.write("letters/config.json", br#"{"eos_token_id": [7, 1]}"#);
    assert_eq!(volume.ids(), [A, 1, B, 7, C, 7]);
    assert_eq!(volume.prepare().unwrap().documents, 3);
}

/// Prepares the corpus of `volume` with a copy of its tokenizer. `folder` receives the copy and the configuration files
/// `configs` (name, contents).
fn beside(volume: &mut TestVolume, folder: &str, configs: &[(&str, Value)]) -> PreparedCorpus {
    let tokenizer = std::fs::read(volume.folder.path().join("letters/tokenizer.json")).unwrap();
    volume.write(&format!("{folder}/tokenizer.json"), &tokenizer);
    for (name, config) in configs {
        volume.write(&format!("{folder}/{name}"), config.to_string().as_bytes());
    }
    volume.config.tokenizer = TokenizerSource::File { path: format!("{folder}/tokenizer.json").into() };
    volume.prepare().unwrap()
}

#[test]
fn jobs_with_one_tokenizer_and_other_configurations_share_only_equal_tokens() {
    // a job uses its padding token even in a cache that another job has filled
    let mut volume = TestVolume::new(&[("x.txt", b"a b c d")]);
    let first = beside(&mut volume, "first", &[]);
    let other = beside(&mut volume, "other", &[("tokenizer_config.json", json!({"pad_token": "d"}))]);
    assert_eq!((first.padding, other.padding), (PAD, D));
    let identities = |first: &PreparedCorpus, other: &PreparedCorpus| {
        [first, other].map(|prepared| prepared.special_tokens.identity())
    };
    // padding has no targets, so the padding token does not change the results of training and is not in the identity
    let [plain, padded] = identities(&first, &other);
    assert_eq!(plain, padded);

    // In `first`, `<x>` is an ordinary added token, so `<x>` in a text becomes this token. In `other`, `<x>` is the
    // padding token and therefore special, so `<x>` in a text is encoded as text.
    let mut volume = TestVolume::new(&[("x.txt", b"a<x>b")]);
    let mut tokenizer = letters_alone(&[("[BOT]", 0), ("[EOT]", 1)]);
    let mut added = special_token("<x>", 7);
    added["special"] = false.into();
    tokenizer["added_tokens"].as_array_mut().unwrap().push(added);
    tokenizer["model"]["vocab"]["<x>"] = 7.into();
    volume.write("letters/tokenizer.json", tokenizer.to_string().as_bytes());
    let first = beside(&mut volume, "first", &[]);
    assert_eq!(volume.ids(), [BOS, A, 7, B, EOS]);
    let other = beside(&mut volume, "other", &[("tokenizer_config.json", json!({"pad_token": "<x>"}))]);
    assert_eq!(volume.ids(), [BOS, A, 8, 9, B, EOS], "x has no token");
    let [plain, padded] = identities(&first, &other);
    assert_eq!(padded.as_ref().map(|tokens| &tokens["pad"]), Some(&json!(7)));
    assert_ne!(plain, padded);

    // in files of token ids, each token of the list eos_token_id ends a document
    let mut volume = TestVolume::new(&[("x.tokens", &little_endian(&[A, EOS, B, D, C], 4))]);
    let mut tokenizer = letters();
    tokenizer["added_tokens"].as_array_mut().unwrap().push(special_token("d", D as usize));
    volume.write("letters/tokenizer.json", tokenizer.to_string().as_bytes());
    let first = beside(&mut volume, "first", &[]);
    let other = beside(&mut volume, "other", &[("generation_config.json", json!({"eos_token_id": [EOS, D]}))]);
    assert_eq!((first.documents, other.documents), (2, 3));
    let [one, several] = identities(&first, &other);
    assert_eq!(several.as_ref().map(|tokens| &tokens["eos"]), Some(&json!([EOS, D])));
    assert_ne!(one, several);
}
