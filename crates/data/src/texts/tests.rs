use super::*;
use crate::corpus::FORMATS;
use crate::examples::{compressed, example, parquet};

fn write(root: &Path, path: &str, content: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn find(root: &Path, folder: &str) -> Texts {
    find_texts(root, Path::new(folder), false, &|path| path.ends_with("cache")).unwrap()
}

#[test]
fn texts_are_found_by_patterns_that_match_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    assert_eq!(find(root, ""), Texts::default());
    write(root, "corpus/a/one.txt", "one");
    write(root, "corpus/a/.hidden.txt", "hidden");
    let texts = find(root, "corpus");
    assert_eq!((texts.patterns, texts.files, texts.bytes), (vec!["corpus/a/*.txt".to_owned()], 1, 3));
    write(root, "corpus/b/two.txt", "two");
    write(root, "corpus/b/three.jsonl", "\n{\"id\": 7, \"title\": \"x\", \"text\": \"three\"}\n");
    let texts = find(root, "corpus");
    assert_eq!(texts.patterns, ["corpus/b/*.jsonl", "corpus/**/*.txt"]);
    assert_eq!((texts.field.as_deref(), texts.files, texts.skipped.len()), (Some("text"), 3, 0));
    // a file that can't be trained on is reported, and no pattern matches it
    write(root, "corpus/b/metrics.jsonl", "{\"step\": 1}\n");
    write(root, "corpus/b/no.jsonl", "[1]\n");
    let texts = find(root, "");
    assert_eq!(texts.patterns, ["corpus/b/three.jsonl", "corpus/a/*.txt", "corpus/b/*.txt"]);
    assert_eq!(texts.skipped.len(), 2, "{:?}", texts.skipped);
    write(root, "corpus/cache/four.txt", "four");
    assert_eq!(find(root, "corpus").patterns, ["corpus/b/three.jsonl", "corpus/a/*.txt", "corpus/b/*.txt"]);
}

#[test]
fn the_field_with_most_bytes_is_taken() {
    let root = tempfile::tempdir().unwrap();
    // the text field is not the last field by name
    let line =
        |at: usize| format!("{{\"content\": \"{}\", \"url\": \"http://x.org/{at}\", \"at\": {at}}}\n", "a".repeat(78));
    write(root.path(), "web.jsonl", &(0..10).map(line).collect::<String>());
    let texts = find(root.path(), "");
    assert_eq!((texts.field.as_deref(), texts.bytes), (Some("content"), 780));
    assert_eq!(texts.other_fields, [("url".to_owned(), 140.0 / 920.0)]);
    // all bytes of plain text count
    write(root.path(), "a.txt", "plain");
    assert_eq!(find(root.path(), "").bytes, 785);
    // an empty field in one record does not decide which field is the text
    write(root.path(), "web.jsonl", &format!("{{\"content\": \"\", \"url\": \"x\"}}\n{}", line(1)));
    assert_eq!(find(root.path(), "").field.as_deref(), Some("content"));
    // only the beginning of this file is read, and the number of its bytes is estimated
    let lines = (3 << 20) / line(7).len();
    write(root.path(), "web.jsonl", &line(7).repeat(lines));
    let expected = 78 * lines as u64 + 5;
    assert!(find(root.path(), "").bytes.abs_diff(expected) < 100, "{expected}");
}

#[test]
fn a_folder_with_characters_of_patterns_is_escaped_and_another_field_is_taken() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "[old]/x.jsonl", "{\"body\": \"three\"}\n");
    let texts = find(root.path(), "");
    assert_eq!(texts.patterns, ["[[]old[]]/*.jsonl"]);
    assert_eq!(texts.field.as_deref(), Some("body"));
    std::os::unix::fs::symlink("/etc/hostname", root.path().join("[old]/out.txt")).unwrap();
    write(root.path(), "[old]/in.txt", "in");
    let texts = find(root.path(), "");
    assert_eq!(texts.patterns, ["[[]old[]]/*.jsonl", "[[]old[]]/in.txt"]);
}

#[test]
fn a_parquet_column_is_measured_by_its_rows() {
    let root = tempfile::tempdir().unwrap();
    let write_parquet =
        |texts: &[Option<&str>]| fs::write(root.path().join("a.parquet"), parquet("body", texts)).unwrap();
    let text = "a".repeat(5000); // Parquet compresses this to a few bytes
    write_parquet(&[Some(text.as_str()); 7]);
    let texts = find(root.path(), "");
    assert_eq!((texts.field.as_deref(), texts.bytes, texts.other_fields), (Some("body"), 35_000, Vec::new()));
    write_parquet(&[]);
    assert_eq!(find(root.path(), "").bytes, 0);
}

#[test]
fn compressed_texts_are_found_and_measured() {
    let root = tempfile::tempdir().unwrap();
    let write = |name: &str, contents: &[u8]| fs::write(root.path().join(name), contents).unwrap();
    let text: String = (0..400_000).map(|at: u64| format!("{:x} ", at.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    for extension in ["gz", "zst"] {
        write(&format!("a.txt.{extension}"), &compressed(&[text.as_bytes()], extension));
        let texts = find(root.path(), "");
        assert_eq!(texts.patterns, [format!("*.txt.{extension}")]);
        assert!(texts.bytes.abs_diff(text.len() as u64) < text.len() as u64 / 20, "{texts:?}");
        fs::remove_file(root.path().join(format!("a.txt.{extension}"))).unwrap();
    }
    let lines = compressed(&[b"{\"body\": \"three\"}\n"], "gz");
    write("a.jsonl.gz", &lines);
    let texts = find(root.path(), "");
    assert_eq!((texts.patterns, texts.field.as_deref(), texts.bytes), (vec!["*.jsonl.gz".to_owned()], Some("body"), 5));
    // a damaged file only affects the pattern of its extension
    write("b.jsonl.gz", &lines[..lines.len() - 9]);
    write("c.jsonl", b"{\"body\": \"three\"}\n");
    let texts = find(root.path(), "");
    assert_eq!(texts.patterns, ["*.jsonl", "a.jsonl.gz"]);
    assert!(texts.skipped[0].contains("b.jsonl.gz can't be decompressed: it is cut off"), "{:?}", texts.skipped);
}

#[test]
fn texts_are_found_in_every_format_of_text() {
    for format in &FORMATS {
        let root = tempfile::tempdir().unwrap();
        let files = (example(format.extension).files)(&["one", "two"]);
        for (index, contents) in files.iter().enumerate() {
            fs::write(root.path().join(format!("{index}.{}", format.extension)), contents).unwrap();
        }
        let texts = find(root.path(), "");
        if format.is_text() {
            let has_fields = matches!(format.contents, Contents::Fields(_));
            assert_eq!(texts.patterns, [format!("*.{}", format.extension)]);
            assert_eq!((texts.files, texts.bytes, texts.skipped.len()), (files.len(), 6, 0), "{format:?}");
            assert_eq!(texts.field.is_some(), has_fields, "{format:?}");
        } else {
            assert_eq!(texts, Texts::default(), "{format:?}");
        }
    }
}

#[test]
fn the_form_of_the_records_is_found() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let messages = r#"[{"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}]"#;
    write(root, "chat.jsonl", &format!("{{\"id\": \"7\", \"messages\": {messages}}}\n"));
    let texts = find(root, "");
    assert_eq!((texts.form, texts.field.as_deref()), (RecordForm::Conversation("messages".into()), Some("id")));
    // some data sets have other names for the fields of a message
    write(root, "chat.jsonl", r#"{"conversations": [{"from": "human", "value": "a question"}]}"#);
    let texts = find(root, "");
    assert_eq!((texts.form, texts.files), (RecordForm::Conversation("conversations".into()), 0));
    assert_eq!(texts.skipped, ["chat.jsonl holds conversations in \"conversations\", and no text"]);
    // records with more bytes in a text than in messages are texts
    write(root, "chat.jsonl", &format!("{{\"messages\": {messages}, \"text\": \"{}\"}}\n", "a".repeat(80)));
    assert_eq!(find(root, "").form, RecordForm::Text);
    // lists without messages are not conversations
    write(root, "chat.jsonl", r#"{"tags": ["a", "b"], "scores": [1, 2], "text": "a"}"#);
    assert_eq!(find(root, "").form, RecordForm::Text);
    write(root, "chat.jsonl", r#"{"prompt": "a question", "completion": "an answer"}"#);
    assert_eq!(find(root, "").form, RecordForm::PromptAndCompletion);
    write(root, "more.jsonl", r#"{"prompt": "a question", "answer": "an answer"}"#);
    assert_eq!(find(root, "").form, RecordForm::Text);
}

#[test]
fn a_parquet_column_of_messages_is_a_conversation() {
    use ::parquet::data_type::{ByteArray, ByteArrayType};
    let schema = "message rows { required group messages (LIST) { repeated group list { required group element \
                  { required binary role (utf8); required binary content (utf8); } } } }";
    let schema = ::parquet::schema::parser::parse_message_type(schema).unwrap();
    let writer = ::parquet::file::writer::SerializedFileWriter::new(Vec::new(), schema.into(), Default::default());
    let mut writer = writer.unwrap();
    let mut rows = writer.next_row_group().unwrap();
    for messages in [["user", "assistant"], ["a question", "an answer"]] {
        let mut column = rows.next_column().unwrap().unwrap();
        let values = messages.map(ByteArray::from);
        column.typed::<ByteArrayType>().write_batch(&values, Some(&[1, 1]), Some(&[0, 1])).unwrap();
        column.close().unwrap();
    }
    rows.close().unwrap();
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("chat.parquet"), writer.into_inner().unwrap()).unwrap();
    assert_eq!(find(root.path(), "").form, RecordForm::Conversation("messages".into()));
}

#[test]
fn plain_texts_beside_conversations_that_are_not_read_are_texts() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    fs::write(root.join("a.txt"), "short").unwrap();
    let messages = format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"{}\"}}]}}\n", "long ".repeat(50));
    fs::write(root.join("chat.jsonl"), messages).unwrap();
    let texts = find(root, "");
    assert_eq!((texts.form, texts.patterns), (RecordForm::Text, vec!["*.txt".to_owned()]));
    let texts = find_texts(root, Path::new(""), true, &|_| false).unwrap();
    assert_eq!(texts.form, RecordForm::Conversation("messages".into()));
    assert_eq!((texts.field, texts.patterns), (None, vec!["*.jsonl".to_owned()]));
}
