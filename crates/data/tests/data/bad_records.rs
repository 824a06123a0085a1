//! Tests bad records, which a job refuses or leaves out. Also tests lone surrogates: a JSON string can contain them as
//! escapes, but UTF-8 can't encode them.

use crate::common::*;
use stagecoach_data::{DocumentName, FORMATS, OnBadRecord, document_indices, part_texts};

/// The contents of a file with six bad records. Only the third line and the last line are documents.
const LINES: &[u8] = b"{\"text\": null}\n{\"texts\": \"d\"}\n{\"text\": \"a b\"}\n[1]\n{\"text\": 7}\n{\"text\": \"d\n\n{\"text\": \"\xff\"}\n{\"text\": \"c\"}\n";

fn skipping(files: &[(&str, &[u8])]) -> TestVolume {
    let mut volume = TestVolume::new(files);
    volume.config.on_bad_record = OnBadRecord::Skip;
    volume
}

#[test]
fn bad_records_are_left_out_and_counted_by_reason_and_file() {
    let rows = parquet("text", &[None, Some("d"), None, None]);
    let volume = skipping(&[
        ("a.jsonl", LINES),
        ("b.jsonl.gz", &compressed(&[LINES], "gz")),
        ("c.json", br#"[{"text": "a b"}, {"text": x}, {"text": "c"}, null]"#),
        ("d.parquet", &rows),
        ("e.txt", b"not UTF-8 \xe9 at all"),
        ("f.txt", b"a"),
    ]);
    let expected = [&[BOS, A, B, EOS, BOS, C, EOS].repeat(3)[..], &[BOS, D, EOS, BOS, A, EOS]].concat();
    assert_eq!(volume.ids(), expected);
    // the first run builds the token cache, and the second run reads it
    for _ in 0..2 {
        let prepared = volume.prepare().unwrap();
        assert_eq!((prepared.documents, prepared.empty_documents), (8, 0));
        assert_eq!(
            prepared.notes,
            [
                "18 bad records are left out: 5 with null for text, 5 without the field, 2 with something other than text, 3 in \
             invalid JSON, 3 in invalid UTF-8; in corpus/a.jsonl (6), corpus/b.jsonl.gz (6), corpus/c.json (2) and 2 more"
            ]
        );
    }
}

/// The whole text of a file is left out, including the text far before the invalid bytes.
#[test]
fn a_long_text_that_is_not_utf8_is_left_out_whole() {
    for end in [&b"\xff"[..], b"\xc3"] {
        let text = ["a b c d\n".repeat(100_000).as_bytes(), end].concat();
        for extension in ["txt", "txt.gz", "txt.zst"] {
            let contents = match extension.strip_prefix("txt.") {
                Some(compression) => compressed(&[&text], compression),
                None => text.clone(),
            };
            let volume = skipping(&[(&format!("x.{extension}"), &contents), ("y.txt", b"\xef\xbb\xbfa \xc3\xa9 a")]);
            // a tokenizer that the job itself trains encodes a long text in pieces
            let volume = volume.train(300);
            assert_eq!(volume.tokenizer().decode(&volume.ids()).unwrap(), "a é a");
            let note = format!("1 bad record is left out: 1 in invalid UTF-8; in corpus/x.{extension} (1)");
            assert_eq!(volume.prepare().unwrap().notes, [note]);
        }
    }
}

#[test]
fn a_file_that_is_damaged_as_a_whole_is_refused() {
    let other = ("a.txt", &b"a b"[..]);
    let cut_off = compressed(&[LINES], "zst");
    for (name, contents) in [
        ("x.jsonl.zst", &cut_off[..cut_off.len() - 5]),
        ("x.json", b"[{\"text\": \"a\"}, {"),
        ("x.json", b"{\"text\": \"a\"}"),
        ("x.parquet", b"PAR1"),
        ("x.parquet", &parquet("content", &[Some("a")])),
        ("x.txt", b"\xff\xfea\0"),
        ("x.u16", b"a"),
    ] {
        let volume = skipping(&[other, (name, contents)]);
        assert!(volume.error_message().starts_with(&format!("VOLUME/corpus/{name} ")), "{}", volume.error_message());
    }
    assert!(
        skipping(&[("a.jsonl", b"{}")])
            .error_message()
            .ends_with("none holds any text; 1 bad record is left out: 1 without the field; in corpus/a.jsonl (1)")
    );
}

#[test]
fn documents_keep_their_names_beside_bad_records() {
    let volume =
        skipping(&[("a.jsonl", LINES), ("b.txt", b"\xff"), ("c.parquet", &parquet("text", &[None, Some("d")]))]);
    let names = ["corpus/a.jsonl:3", "corpus/a.jsonl:9", "corpus/c.parquet:1"];
    let names = names.map(|name| name.parse::<DocumentName>().unwrap());
    let indices =
        |names: &[DocumentName]| document_indices(&volume.config, &volume.prepare().unwrap(), names, &mut |_| {});
    assert_eq!(indices(&names).unwrap(), [0, 1, 2]);
    let dataset = volume.open();
    let parts = dataset.document_parts(&dataset.step_plan(1, 0, 1, 1).unwrap());
    let texts = part_texts(&volume.config, &volume.prepare().unwrap(), &parts, &mut |_| {}).unwrap();
    assert!(!parts.is_empty());
    for (part, text) in parts.iter().zip(texts) {
        assert_eq!(text.name, names[part.document as usize]);
    }
    let message = indices(&["corpus/a.jsonl:4".parse().unwrap()]).unwrap_err().to_string();
    assert_eq!(message, "corpus/a.jsonl:4 is no document of the corpus: it is empty or holds no text");
}

/// A job that refuses bad records must not use the token cache of a job that leaves bad records out.
#[test]
fn jobs_that_leave_bad_records_out_have_caches_of_their_own() {
    let mut volume = skipping(&[("a.jsonl", LINES)]);
    let skipped = volume.prepare().unwrap();
    volume.config.on_bad_record = OnBadRecord::Fail;
    assert!(volume.prepare().is_err());
    volume.write("corpus/a.jsonl", b"{\"text\": \"a b c\"}");
    let all = volume.prepare().unwrap();
    volume.config.on_bad_record = OnBadRecord::Skip;
    let none_bad = volume.prepare().unwrap();
    assert_eq!(all.corpus_hash, none_bad.corpus_hash);
    assert!(all.folder != none_bad.folder && skipped.folder != none_bad.folder);
}

#[test]
fn lone_surrogates_are_replaced_and_counted() {
    let object = r#"{"text": "a \ud83d b \ude00", "title": "\udead"}"#;
    for format in FORMATS.iter().filter(|format| format.extension.starts_with("json")) {
        let contents = if format.extension == "json" { format!("[{object}]") } else { object.to_owned() };
        for on_bad_record in [OnBadRecord::Fail, OnBadRecord::Skip] {
            let mut volume = TestVolume::new(&[(&format!("x.{}", format.extension), contents.as_bytes())]).train(300);
            volume.config.on_bad_record = on_bad_record;
            let text = volume.tokenizer().decode(&volume.ids()).unwrap();
            assert_eq!(text, "a \u{fffd} b \u{fffd}");
            assert_eq!(
                volume.prepare().unwrap().notes,
                ["the texts have 2 halves of surrogate pairs without the other half: U+FFFD replaces each"]
            );
        }
    }
}
