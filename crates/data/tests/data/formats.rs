//! Tests the token ids of each file format.

use std::os::unix::fs::symlink;

use crate::common::*;
use stagecoach_data::{Compression, FORMATS, Format};

const TWO_DOCUMENTS: [u32; 7] = [BOS, A, B, EOS, BOS, C, EOS];

#[test]
fn a_text_file_is_a_document() {
    let volume = TestVolume::new(&[("2.txt", b"c"), ("1.txt", b"a b\n"), ("0.txt", b"")]);
    assert_eq!(volume.ids(), TWO_DOCUMENTS);
    let prepared = volume.prepare().unwrap();
    assert_eq!((prepared.documents, prepared.empty_documents, prepared.tokens), (2, 1, 7));
    assert_eq!((prepared.vocab_size, prepared.id_bytes, prepared.padding), (12, 2, PAD));
}

#[test]
fn a_line_of_jsonl_is_a_document() {
    let lines = "\u{feff}{\"text\": \"a b\", \"more\": 1}\r\n\n{\"text\": \"\"}\n{\"text\": \"c\"}";
    let volume = TestVolume::new(&[("x.jsonl", lines.as_bytes())]);
    assert_eq!(volume.ids(), TWO_DOCUMENTS);
    assert_eq!(volume.prepare().unwrap().empty_documents, 1);
}

#[test]
fn documents_have_the_same_ids_in_every_format() {
    for format in &FORMATS {
        let volume = TestVolume::of_format(format.extension, &["a b", "", "c"]);
        assert_eq!(volume.ids(), TWO_DOCUMENTS, "{format:?}");
    }
}

#[test]
fn documents_have_the_same_ids_in_every_compression_and_without_a_byte_order_mark() {
    for format in FORMATS.iter().filter(|format| format.may_be_compressed) {
        for compression in [None].into_iter().chain(Compression::ALL.map(Some)) {
            let volume = TestVolume::new(&[]);
            for (index, contents) in (example(format.extension).files)(&["a b", "", "c"]).iter().enumerate() {
                let (contents, name) =
                    ([b"\xef\xbb\xbf", &contents[..]].concat(), format!("corpus/{index}.{}", format.extension));
                match compression.map(Compression::extension) {
                    Some(extension) => {
                        volume.write(&format!("{name}.{extension}"), &compressed(&[&contents], extension))
                    }
                    None => volume.write(&name, &contents),
                };
            }
            assert_eq!(volume.ids(), TWO_DOCUMENTS, "{format:?} {compression:?}");
        }
    }
}

#[test]
fn a_file_of_several_compressed_streams_is_read_to_its_end() {
    for extension in ["gz", "zst"] {
        let volume = TestVolume::new(&[]);
        volume.write(&format!("corpus/x.txt.{extension}"), &compressed(&[b"a b", b"", b" c"], extension));
        assert_eq!(volume.ids(), [BOS, A, B, C, EOS], "{extension}");
    }
}

#[test]
fn the_documentation_has_a_row_for_every_format() {
    let (_, table) = include_str!("../../../../docs/DATA.md").split_once("| extension |").unwrap();
    let rows = table.lines().skip(2).take_while(|row| row.starts_with("| `."));
    let compressed = |format: &Format| match format.may_be_compressed {
        true => Compression::ALL.map(|by| format!("`.{}.{}`", format.extension, by.extension())).join(", "),
        false => "no".to_owned(),
    };
    let row = |format: &Format| {
        let (extension, number) = (format.extension, format!("{}, from {}", format.unit, format.first_unit));
        format!("| `.{extension}` | {} | {number} | {} |", format.description, compressed(format))
    };
    assert_eq!(rows.collect::<Vec<_>>(), FORMATS.iter().map(row).collect::<Vec<_>>());
}

#[test]
fn empty_files_and_folders_that_a_pattern_matches_are_reported() {
    let volume = TestVolume::new(&[("a.txt", b"a b"), ("d/x.txt", b"c"), ("plain/y.txt", b"d")]);
    assert_eq!(volume.prepare().unwrap().notes, [""; 0]);
    for name in ["b.txt", "d/c.jsonl", "e.tokens", "f.txt"] {
        volume.write(&format!("corpus/{name}"), b"");
    }
    volume.write("corpus/novels.txt/z.txt", b"e");
    // the first run builds the token cache, and the second run reads it
    for _ in 0..2 {
        assert_eq!(
            volume.prepare().unwrap().notes,
            [
                "data.paths matches empty files: corpus/b.txt, corpus/d/c.jsonl, corpus/e.tokens and 1 more",
                "data.paths matches folders, which are ignored: corpus/novels.txt",
            ]
        );
    }
    assert_eq!(volume.prepare().unwrap().documents, 4);
}

#[test]
fn token_files_are_split_where_documents_end_or_begin() {
    for (name, width) in [("x.tokens", 4), ("x.u16", 2)] {
        // The first file has begin and end tokens, like the token cache. The second file begins with an end token, like
        // GPT-2's corpora. The third file has no end tokens, and the fourth file has no begin tokens.
        let files =
            [&[BOS, A, B, EOS, BOS, C, EOS][..], &[EOS, A, B, EOS, C], &[BOS, A, B, BOS, C], &[A, B, EOS, C, EOS, EOS]];
        for file in files {
            let volume = TestVolume::new(&[(name, &little_endian(file, width)), ("y.tokens", b"")]);
            assert_eq!(volume.ids(), TWO_DOCUMENTS, "{file:?}");
            assert_eq!(volume.prepare().unwrap().documents, 2);
        }
    }
}

#[test]
fn formats_mix_in_the_order_of_their_paths() {
    let volume = TestVolume::new(&[("d/z.txt", b"d"), ("b.jsonl", br#"{"text": "b"}"#), ("a.txt", b"a")]);
    volume.write("corpus/c.tokens", &little_endian(&[C], 4));
    assert_eq!(volume.ids(), [BOS, A, EOS, BOS, B, EOS, BOS, C, EOS, BOS, D, EOS]);
}

#[test]
fn overlapping_patterns_take_a_file_once() {
    let mut volume = TestVolume::new(&[("b.txt", b"b"), ("a.txt", b"a")]);
    volume.write("corpus/.hidden.txt", b"c");
    volume.write("cache/old/d.txt", b"d");
    volume.config.sources[0].paths = vec!["corpus/b.txt".into(), "corpus/*.txt".into()];
    assert_eq!(volume.ids(), [BOS, A, EOS, BOS, B, EOS]);
    let repeated = "data.paths matches files more than once: training reads each file once per epoch: corpus/b.txt";
    assert_eq!(volume.prepare().unwrap().notes, [repeated]);
    volume.config.sources[0].paths.push("**/*.txt".into());
    assert_eq!(volume.ids(), [BOS, A, EOS, BOS, B, EOS]);
    assert_eq!(volume.prepare().unwrap().notes, [repeated.replace(": corpus/b.txt", ": corpus/a.txt, corpus/b.txt")]);
}

#[test]
fn a_file_counts_once_however_many_links_lead_to_it() {
    let volume = TestVolume::new(&[("a.txt", b"a"), ("b.txt", b"b")]);
    let root = &volume.config.volume_root;
    symlink(root.join("corpus"), root.join("corpus/loop")).unwrap();
    symlink("b.txt", root.join("corpus/again.txt")).unwrap();
    assert_eq!(volume.ids(), [BOS, A, EOS, BOS, B, EOS]);
}

#[test]
fn links_out_of_the_volume_are_followed_where_they_may() {
    let (mut volume, elsewhere) = (TestVolume::new(&[("b.txt", b"b")]), tempfile::tempdir().unwrap());
    std::fs::write(elsewhere.path().join("LICENCE"), b"a").unwrap();
    symlink(elsewhere.path().join("LICENCE"), volume.config.volume_root.join("corpus/a.txt")).unwrap();
    assert!(volume.error_message().contains("which is not on the volume"));
    volume.config.follow_links_out = true;
    let ids = volume.ids();
    assert_eq!(ids.len(), 6);
    assert!(ids.contains(&A) && ids.contains(&B));
}

#[test]
fn a_nested_field_is_named_alike_in_every_format() {
    let nested = r#"{"doc": {"text": "a b"}}"#;
    let named = r#"{"doc": {"text": "d"}, "doc.text": "c"}"#;
    let null = r#"{"doc": null}"#;
    let struct_of =
        |columns: &str| format!("message rows {{ optional group doc {{ optional binary text (utf8); }} {columns} }}");
    let a_column = "optional binary doc.text (utf8);";
    for (name, documents) in [
        ("x.jsonl", [nested, named].join("\n").into_bytes()),
        ("x.json", format!("[{nested}, {named}]").into_bytes()),
        ("x.parquet", parquet_columns(&struct_of(""), &[&[("a b", 2), ("c", 2)]])),
        ("x.parquet", parquet_columns(&struct_of(a_column), &[&[("d", 2), ("d", 2)], &[("a b", 1), ("c", 1)]])),
    ] {
        let mut volume = TestVolume::new(&[(name, &documents)]);
        volume.config.sources[0].text_field = "doc.text".into();
        assert_eq!(volume.ids(), TWO_DOCUMENTS, "{name}");
    }
    // a null struct or object holds no text
    for (name, documents, expected) in [
        ("x.jsonl", null.as_bytes().to_vec(), "line 1: the field \"doc.text\" holds null, not text: leave such"),
        (
            "x.json",
            format!("[{null}]").into_bytes(),
            "element 0: the field \"doc.text\" holds null, not text: leave such",
        ),
        (
            "x.parquet",
            parquet_columns(&struct_of(""), &[&[("", 0)]]),
            "row 0: \"doc.text\" is null: write a text into it",
        ),
    ] {
        let mut volume = TestVolume::new(&[(name, &documents)]);
        volume.config.sources[0].text_field = "doc.text".into();
        let message = volume.error_message();
        assert!(message.contains(&format!("/{name}, {expected}")), "{message}");
        // a struct is no text
        volume.config.sources[0].text_field = "doc".into();
        let message = volume.error_message();
        let what =
            if name == "x.parquet" { "the column \"doc\" holds structs, not text" } else { "\"doc\" holds null" };
        assert!(message.contains(what), "{message}");
    }
}

#[test]
fn a_column_of_lists_is_refused_by_its_name() {
    let list =
        "message rows { optional group text (LIST) { repeated group list { optional binary element (utf8); } } }";
    let volume = TestVolume::new(&[("x.parquet", &parquet_columns(list, &[&[]]))]);
    let expected = "VOLUME/corpus/x.parquet can't be read as Parquet: the column \"text\" holds lists, not text: set \
                    data.textField to one that holds text";
    assert_eq!(volume.error_message(), expected);
}

#[test]
fn text_is_kept_to_the_byte() {
    let text = "one\r\ntwo \u{feff}\t é\u{3000}🙂 [EOT] <s>\n\n\nend\n";
    // a byte order mark is not part of the text
    let volume = TestVolume::new(&[("x.txt", format!("\u{feff}{text}").as_bytes())]).train(300);
    let tokenizer = volume.tokenizer();
    let ids = volume.ids();
    assert_eq!((ids[0], ids[ids.len() - 1]), (BOS, EOS));
    assert!(ids[1..ids.len() - 1].iter().all(|&id| id > PAD), "the text's [EOT] is text");
    assert_eq!(tokenizer.decode(&ids).unwrap(), text);
}

#[test]
fn vocabularies_above_65536_use_four_byte_ids() {
    let volume = TestVolume::new(&[("x.tokens", &little_endian(&[A, 65_536, A, A], 4))]);
    let mut tokenizer = letters();
    tokenizer["model"]["vocab"]["far"] = 65_536.into();
    volume.write("letters/tokenizer.json", tokenizer.to_string().as_bytes());
    assert_eq!(volume.ids(), [BOS, A, 65_536, A, A, EOS]);
    assert_eq!(volume.open().microbatch(&volume.open().step_plan(0, 0, 1, 1).unwrap(), 0).inputs, [0, 4, 65_536, 4]);
    assert_eq!(volume.prepare().unwrap().vocab_size, 65_537);
}

#[test]
fn a_long_document_is_the_same_in_every_format() {
    let text = "Coach and horses, \"coach\u{3000}and six\".\r\n  The mail\u{e9}\t".repeat(6_000);
    let trained = TestVolume::of_format("txt", &[&text]).train(300);
    let whole = trained.tokenizer().encode(&text).unwrap();
    for format in FORMATS.iter().filter(|format| format.is_text()) {
        let volume = TestVolume::of_format(format.extension, &[&text]);
        volume.write("letters/tokenizer.json", &trained.tokenizer_files()["tokenizer.json"]);
        let ids = volume.ids();
        assert!(ids[1..ids.len() - 1] == whole, "{format:?}");
    }
}
