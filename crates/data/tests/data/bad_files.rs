//! Tests the error messages for corpus files that can't be read, in each format.

use std::fs;

use crate::bad_input::{refused, refused_by};
use crate::common::*;

#[test]
fn invalid_utf8() {
    let expected = "VOLUME/corpus/x.txt is not valid UTF-8 at byte 200003: convert it (iconv -f latin1 -t utf-8) or \
                    leave it out of data.paths";
    let mut text = vec![b' '; 200_000];
    text.extend(b"caf\xe9 au lait");
    refused(&[("x.txt", &text)], expected);
    refused_by(&TestVolume::new(&[("x.txt", &text)]).train(300), expected);
    let cut_off = &text[..200_004];
    refused(&[("x.txt", cut_off)], expected);
    refused(
        &[("x.jsonl", b"{\"text\": \"a\"}\n{\"text\": \"caf\xe9\"}")],
        "VOLUME/corpus/x.jsonl is not valid UTF-8 at byte 27: convert it (iconv -f latin1 -t utf-8) or leave it out \
         of data.paths",
    );
    for (name, mark, encoding) in [
        ("x.txt", &b"\xff\xfea\0b\0"[..], "UTF-16"),
        ("x.txt", b"\xfe\xff\0a", "UTF-16"),
        ("x.jsonl", b"\xff\xfe{\0", "UTF-16"),
        ("x.json", b"\0\0\xfe\xff\0\0\0[", "UTF-32"),
        ("x.txt", b"\xff\xfe\0\0a\0\0\0", "UTF-32"),
    ] {
        let path = format!("VOLUME/corpus/{name}");
        refused(
            &[(name, mark)],
            &format!(
                "{path} is in {encoding} according to its byte order mark, not in UTF-8: convert it (iconv -f \
                 {encoding} -t utf-8 {path}) or leave it out of data.paths"
            ),
        );
    }
}

#[test]
fn compressed_files() {
    let text = "a b c d ".repeat(50_000);
    let text: Vec<u8> = text.bytes().enumerate().map(|(at, byte)| if at % 977 == 0 { b'e' } else { byte }).collect();
    let problems = |name: &str, whole: &[u8], flipped: &str| {
        let problem =
            |what: &str| format!("VOLUME/corpus/{name} can't be decompressed: {what}: copy it or compress it again");
        let other = ("a.txt", &b"a b"[..]);
        for bytes in [0, 1, 5, whole.len() / 2, whole.len() - 1] {
            refused(&[other, (name, &whole[..bytes])], &problem("it is cut off"));
        }
        refused(&[other, (name, &[whole, b"garbage garbage"].concat())], &problem(flipped));
        let mut damaged = whole.to_vec();
        let at = damaged.len() - 3; // in the checksum
        damaged[at] ^= 1;
        let volume = TestVolume::new(&[other, (name, &damaged)]);
        let message = volume.error_message();
        assert!(message.starts_with(&format!("VOLUME/corpus/{name} can't be decompressed: ")), "{message}");
    };
    problems("x.txt.gz", &compressed(&[&text], "gz"), "invalid gzip header");
    problems("x.txt.zst", &compressed(&[&text], "zst"), "Unknown frame descriptor");
    problems("x.txt.gz", &compressed(&[b"a", b"b c d e f g h"], "gz"), "invalid gzip header");
    refused(
        &[("x.jsonl.gz", &compressed(&[b"\xff\xfe{\0"], "gz"))],
        "VOLUME/corpus/x.jsonl.gz is in UTF-16 according to its byte order mark, not in UTF-8: convert it (gzip -dc \
         VOLUME/corpus/x.jsonl.gz | iconv -f UTF-16 -t utf-8) or leave it out of data.paths",
    );
}

#[test]
fn lines() {
    let second = |line: &str, problem: &str| {
        let lines = format!("{{\"text\": \"a\"}}\n{line}\n");
        refused(&[("x.jsonl", lines.as_bytes())], &format!("VOLUME/corpus/x.jsonl, line 2: {problem}"));
    };
    second(
        r#"{"text": "b"#,
        "this is not JSON (EOF while parsing a string at column 11): every line must be an object such as {\"text\": \
         \"...\"}",
    );
    second("[1]", "this is JSON but not an object: every line must be an object such as {\"text\": \"...\"}");
    second(
        r#"{"texts": "b", "id": 1}"#,
        "there is no field \"text\", only texts, id: set data.textField to the one that holds the text",
    );
    second("{}", "the object has no fields: it needs \"text\"");
    let other = |what: &str| {
        format!(
            "the field \"text\" holds {what}, not text: leave such lines out, as `jq -c 'select(.text | type == \
             \"string\")'` does"
        )
    };
    second(r#"{"text": null}"#, &other("null"));
    second(r#"{"text": [1]}"#, &other("a list"));
    let remedy = "set data.format to Chat, which reads the field messages";
    let turns = r#"[{"role": "user", "content": "hi"}]"#;
    second(
        &format!(r#"{{"messages": {turns}}}"#),
        &format!("there is no field \"text\", only messages: to train on a conversation, {remedy}"),
    );
    second(
        &format!(r#"{{"text": {turns}}}"#),
        &format!("the field \"text\" holds a conversation, not text: to train on it, {remedy}"),
    );
    for number in ["NaN", "Infinity", "-Infinity"] {
        second(
            &format!(r#"{{"title": "NaN \" ", "score": {number}, "text": "b"}}"#),
            &format!("JSON has no {number}, which Python's json.dumps writes for a number: write null for it"),
        );
    }
}

#[test]
fn elements() {
    let whole = |file: &str, problem: &str| {
        refused(&[("x.json", file.as_bytes())], &format!("VOLUME/corpus/x.json{problem}"));
    };
    let object = r#"{"text": "a ],[\" b"}"#;
    whole(
        &format!("[{object}, {object},\n {{\"text\":\n 1}}]"),
        ", element 2: the field \"text\" holds a number, not text: leave such elements out, as `jq 'map(select(.text \
         | type == \"string\"))'` does",
    );
    whole(
        &format!("[{object}, {{\"text\":\n x}}]"),
        ", element 1: this is not JSON (expected value at line 2, column 2): every element must be an object such as \
         {\"text\": \"...\"}",
    );
    for (comma, element) in [("[{},]", 1), ("[,{}]", 0), ("[{},,{}]", 1)] {
        whole(
            &comma.replace("{}", object),
            &format!(
                ", element {element}: this is not JSON (EOF while parsing a value at column 0): every element must \
                 be an object such as {{\"text\": \"...\"}}"
            ),
        );
    }
    whole(
        "[[1]]",
        ", element 0: this is JSON but not an object: every element must be an object such as {\"text\": \"...\"}",
    );
    let cut_off = |element| format!(" ends in element {element}, before the end of its array: copy or write it again");
    for (file, element) in [("[", 0), ("[ {", 0), ("[{}", 0), ("[{},", 1), ("[{}, {\"text\": \"]", 1)] {
        whole(&file.replace("{}", object), &cut_off(element));
    }
    whole(
        &format!("[{object}]\n[{object}]"),
        " continues at byte 24, after the end of its array (elements: 1): remove the rest, or write all elements \
         into one array",
    );
    for (file, found) in [(object, "an object"), ("\"a\"", "text"), ("7", "something else")] {
        whole(
            file,
            &format!(
                " begins with {found}, and an array of objects was expected: write [{{...}}, {{...}}], or one object \
                 in each line of a .jsonl file"
            ),
        );
    }
    refused(
        &[("x.json", b"[]"), ("y.json", b" [ ] "), ("z.json", b"")],
        "the corpus is empty: 3 files match data.paths, and none holds any text",
    );
}

#[test]
fn rows() {
    let volume = TestVolume::new(&[]);
    let path = volume.write("corpus/x.parquet", &parquet("content", &[Some("a")]));
    refused_by(
        &volume,
        "VOLUME/corpus/x.parquet has no column \"text\", only number, content: set data.textField to the one that \
         holds the text",
    );
    fs::write(&path, parquet("text", &[Some("a"), Some("b"), Some("c"), None])).unwrap();
    refused_by(&volume, "VOLUME/corpus/x.parquet, row 3: \"text\" is null: write a text into it, or remove the row");
    fs::write(&path, &fs::read(&path).unwrap()[..100]).unwrap();
    refused_by(
        &volume,
        "VOLUME/corpus/x.parquet can't be read as Parquet: Parquet error: Invalid Parquet file. Corrupt footer",
    );
    let mut volume = volume;
    fs::write(&path, parquet("text", &[Some("a")])).unwrap();
    volume.config.sources[0].text_field = "number".into();
    refused_by(
        &volume,
        "VOLUME/corpus/x.parquet can't be read as Parquet: the column \"number\" is INT64, not text: set \
         data.textField to one that holds text",
    );
}

#[test]
fn token_files() {
    refused(
        &[("x.u16", &little_endian(&[A, EOS, 12, A], 2))],
        "VOLUME/corpus/x.u16: token 2 is 12, but the tokenizer has 12 tokens (ids 0 to 11): give the tokenizer that \
         made this file as data.tokenizer.file",
    );
    let far = [vec![A; 20_000], vec![4_000_000_000]].concat();
    refused(
        &[("x.tokens", &little_endian(&far, 4))],
        "VOLUME/corpus/x.tokens: token 20000 is 4000000000, but the tokenizer has 12 tokens (ids 0 to 11): give the \
         tokenizer that made this file as data.tokenizer.file",
    );
    refused(
        &[("x.tokens", b"abcde")],
        "VOLUME/corpus/x.tokens has 5 bytes, which is no whole number of 4-byte token ids: is it cut off, or of \
         another kind (.tokens holds 32-bit, .u16 16-bit little-endian ids)?",
    );
    refused_by(
        &TestVolume::new(&[("x.tokens", &little_endian(&[A], 4))]).train(300),
        "VOLUME/corpus/x.tokens holds token ids, but data.tokenizer trains a new tokenizer, which can't have made \
         these ids: give the tokenizer that made them with data.tokenizer {type: File, file: {path: ...}}",
    );
}
