//! Tests the tokens that a job names to begin, end and pad its documents.

use serde_json::{Value, json};
use stagecoach_data::{NamedTokens, Tokenizer};

use crate::common::*;

/// Returns a volume whose tokenizer has the special tokens `<s>`, `</s>`, `<end>` and `<fill>`. The configuration files
/// name `<s>` and `</s>`.
fn several_special() -> TestVolume {
    let volume = TestVolume::new(&[("x.txt", b"a"), ("y.txt", b"b c")]);
    let mut tokenizer = letters();
    tokenizer["added_tokens"] =
        [("<s>", 20), ("</s>", 21), ("<end>", 22), ("<fill>", 23)].map(|(name, id)| special_token(name, id)).into();
    volume.write("letters/tokenizer.json", tokenizer.to_string().as_bytes());
    let config = json!({"add_bos_token": false, "bos_token": "<s>", "eos_token": {"content": "</s>"}, "x": 1});
    volume.write("letters/tokenizer_config.json", config.to_string().as_bytes());
    volume.write("letters/special_tokens_map.json", br#"{"eos_token": "</s>", "y": 2}"#);
    volume
}

fn named_tokens(tokens: [Option<&str>; 3]) -> NamedTokens {
    let [bos, eos, pad] = tokens.map(|token| token.map(str::to_owned));
    NamedTokens { bos, eos, pad }
}

#[test]
fn a_job_names_the_tokens_of_its_documents() {
    let mut volume = several_special();
    let ids = volume.ids();
    let (first, last) = (ids[0], ids[ids.len() - 1]);
    let plain = volume.prepare().unwrap();
    assert_eq!((ids.len(), plain.special_tokens.bos), (5, None), "no token begins documents: {ids:?}");
    let id_of =
        |volume: &TestVolume, name: &str| volume.tokenizer().special_tokens().by_name().find(|(key, _)| *key == name);
    assert_eq!(id_of(&volume, "eos_token").map(|(_, id)| id), Some(last));

    volume.config.named_tokens = named_tokens([Some("<s>"), Some("<end>"), Some("<fill>")]);
    let prepared = volume.prepare().unwrap();
    let (bos, eos, pad) = (last - 1, last + 1, last + 2);
    assert_eq!(volume.ids(), [bos, first, eos, bos, ids[2], ids[3], eos]);
    assert_eq!(prepared.padding, pad);
    assert_eq!(prepared.special_tokens.identity(), Some(json!({"bos": bos, "eos": [eos], "pad": pad})));
    assert_ne!(prepared.folder, plain.folder);
    // a job that names no tokens has the same cache as before
    volume.config.named_tokens = NamedTokens::default();
    assert_eq!(volume.prepare().unwrap(), plain);
    // the job names a token that the files also name
    volume.config.named_tokens = named_tokens([None, Some("</s>"), None]);
    assert_eq!(volume.ids(), ids);
    assert_eq!(
        volume.prepare().unwrap().special_tokens.identity(),
        Some(json!({"bos": null, "eos": [last], "pad": null}))
    );
    // the job names tokens that do not have the usual names, and no file names tokens
    std::fs::remove_file(volume.folder.path().join("letters/tokenizer_config.json")).unwrap();
    volume.config.named_tokens = named_tokens([Some("<fill>"), Some("<end>"), None]);
    assert_eq!(volume.ids(), [pad, first, eos, pad, ids[2], ids[3], eos]);
}

#[test]
fn a_checkpoint_has_the_tokens_that_the_job_names() {
    let mut volume = several_special();
    volume.config.named_tokens = named_tokens([Some("<s>"), Some("<end>"), None]);
    let files = volume.tokenizer_files();
    let read = |name: &str| serde_json::from_slice::<Value>(&files[name]).unwrap();
    assert_eq!(
        read("tokenizer_config.json"),
        json!({"add_bos_token": true, "bos_token": "<s>", "eos_token": "<end>", "x": 1})
    );
    assert_eq!(read("special_tokens_map.json"), json!({"bos_token": "<s>", "eos_token": "<end>", "y": 2}));
    // a reader of the checkpoint finds the tokens of training
    let expected = volume.prepare().unwrap().special_tokens;
    files.iter().for_each(|(name, bytes)| drop(volume.write(&format!("saved/{name}"), bytes)));
    let saved = Tokenizer::load(&volume.folder.path().join("saved/tokenizer.json")).unwrap();
    assert_eq!(special(&saved), (expected.bos, expected.eos, expected.pad));
    // if the job names no tokens, the files stay as they are
    volume.config.named_tokens = NamedTokens::default();
    assert_eq!(volume.tokenizer_files()["special_tokens_map.json"], br#"{"eos_token": "</s>", "y": 2}"#);
}

#[test]
fn tokens_that_a_tokenizer_lacks_are_refused_with_those_that_it_has() {
    let mut volume = several_special();
    let mut refusal = |tokens| {
        volume.config.named_tokens = named_tokens(tokens);
        volume.error_message().replace("the tokenizer VOLUME/letters/tokenizer.json: data.tokenizer.file.", "")
    };
    let special = "its special tokens are </s>, <end>, <fill>, <s>";
    for (tokens, field) in
        [([Some("<no>"), None, None], "bos"), ([None, Some("<no>"), None], "eos"), ([None, None, Some("<no>")], "pad")]
    {
        assert_eq!(
            refusal(tokens),
            format!("{field} is <no>, and the tokenizer has no such token: name another token; {special}")
        );
    }
    assert_eq!(
        refusal([Some("</s>"), None, None]),
        "bos is </s>, which also ends documents: name another token, or leave the field out"
    );
    assert_eq!(
        refusal([Some("<end>"), Some("<end>"), None]),
        "bos is <end>, which also ends documents: name another token, or leave the field out"
    );
    let mut bare = letters();
    bare["added_tokens"] = json!([special_token("<|endoftext|>", 20), special_token("[EOT]", 1)]);
    volume.write("letters/tokenizer.json", bare.to_string().as_bytes());
    volume.write("letters/tokenizer_config.json", b"{}");
    volume.config.named_tokens = named_tokens([Some("<|endoftext|>"), Some("[EOT]"), None]);
    assert!(volume.error_message().contains("bos is <|endoftext|>, which separates documents and begins none"));
    bare["added_tokens"] = json!([]);
    volume.write("letters/tokenizer.json", bare.to_string().as_bytes());
    volume.config.named_tokens = named_tokens([None, Some("<no>"), None]);
    assert!(
        volume.error_message().ends_with("name another token; it has no special tokens"),
        "{}",
        volume.error_message()
    );
}
