//! Tests conversations as documents: their formats, their cache, and their parts.

use super::*;

#[test]
fn all_formats_with_records_give_the_same_tokens() {
    let records = records(&[(1, 0), (2, 0), (1, 3), (1, 5), (2, 0)]);
    let chat_volume = |name: &str, contents: &[u8]| volume(DocumentFormat::Chat, &[(name, contents)]);
    let of_lines = chat_volume("a.jsonl", &lines(&records));
    let bitmap = |volume: &TestVolume| {
        let folder = volume.config.cache_root.join(volume.prepare().unwrap().folder);
        std::fs::read(folder.join("trained.bin")).unwrap()
    };
    let others = [
        chat_volume("a.json", json!(records).to_string().as_bytes()),
        chat_volume("a.jsonl.gz", &compressed(&[&lines(&records)], "gz")),
        chat_volume("a.parquet", &nested(&records, true)),
        chat_volume("b.parquet", &nested(&records, false)),
    ];
    for other in &others {
        assert_eq!((other.ids(), bitmap(other)), (of_lines.ids(), bitmap(&of_lines)));
    }
    // a stream of the rows reads no conversation twice in an epoch
    let mut streamed = chat_volume("a.parquet", &nested(&records, true));
    stream(&mut streamed.config, 1);
    let chat = chat(&streamed);
    let expected: Vec<_> = records.iter().map(|record| alone(&chat, record)).collect();
    let dataset = open_stream(&streamed.config, &[]);
    let rows = all_rows(&dataset, 0, 3);
    assert!(count(&rows, &expected).iter().all(|&count| count <= 1));
}

#[test]
fn the_cache_depends_on_everything_that_decides_the_tokens() {
    let records = records(&[(1, 0), (2, 0)]);
    let mut volume = volume(DocumentFormat::Chat, &[("a.jsonl", &lines(&records))]);
    let mut folders = vec![volume.prepare().unwrap().folder];
    volume.config.conversations.date = Some("2026-02-28".parse().unwrap());
    folders.push(volume.prepare().unwrap().folder);
    volume.config.conversations.on_long = OnLongConversation::Skip;
    folders.push(volume.prepare().unwrap().folder);
    volume.config.sequence_length = 25;
    folders.push(volume.prepare().unwrap().folder);
    volume.write("letters/chat_template.jinja", TEMPLATE.replace(" [EOT] ", " [EOT]").as_bytes());
    folders.push(volume.prepare().unwrap().folder);
    let different: std::collections::BTreeSet<_> = folders.iter().collect();
    assert_eq!(different.len(), folders.len(), "{folders:?}");
    assert_ne!(volume.prepare().unwrap().chat_template, None);
}

#[test]
fn another_template_and_another_special_token_are_distinguished() {
    let records = records(&[(1, 0), (2, 0)]);
    let volume = volume(DocumentFormat::Chat, &[("a.jsonl", &lines(&records))]);
    volume.write("letters/tokenizer_config.json", br#"{"unk_token": "[UNK]"}"#);
    let prepared = volume.prepare().unwrap();
    let refused = || {
        let error = stagecoach_data::document_indices(&volume.config, &prepared, &[], &mut |_| {}).unwrap_err();
        error.to_string()
    };
    volume.write("letters/tokenizer_config.json", br#"{"unk_token": "a"}"#);
    let token = refused();
    assert!(token.contains("a special token of the chat template is not the one"), "{token}");
    assert!(token.ends_with(r#"(its unk_token is "a", and was "[UNK]")"#), "{token}");
    volume.write("letters/tokenizer_config.json", br#"{"unk_token": "[UNK]"}"#);
    volume.write("letters/chat_template.jinja", TEMPLATE.replace(" [EOT] ", " [EOT]").as_bytes());
    let template = refused();
    assert!(template.contains("its chat template is not the one"), "{template}");
}

#[test]
fn parts_of_conversations_are_found_again() {
    let records = records(&[(1, 0), (2, 0), (1, 3)]);
    let rejected = [json!({"messages": [{"role": "user", "content": "a"}]})];
    let volume = volume(
        DocumentFormat::Chat,
        &[("a.jsonl", &[lines(&records[..1]), lines(&rejected), lines(&records[1..])].concat())],
    );
    let prepared = volume.prepare().unwrap();
    let dataset = volume.open();
    let sequences = dataset.training_sequences().unwrap() as usize;
    let parts = dataset.document_parts(&dataset.step_plan(0, 0, sequences, sequences).unwrap());
    let texts = part_texts(&volume.config, &prepared, &parts, &mut |_| {}).unwrap();
    let mut numbers: Vec<u64> = texts.iter().map(|text| text.name.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 3, 4]);
    for (part, text) in parts.iter().zip(&texts) {
        assert_eq!((part.tokens.start, text.offset), (0, 0));
        assert!(text.document_tokens > part.tokens.end);
    }
}

/// Returns the name, the ids and the trained text of each document, from document number `first` on.
fn shown(config: &DataConfig, first: u64) -> Vec<(String, Vec<u32>, String)> {
    let mut all = Vec::new();
    stagecoach_data::show_documents(config, first, &mut |document| {
        let trained = document.tokens.iter().filter(|token| token.is_trained);
        let trained = trained.map(|token| token.text.trim()).collect::<Vec<_>>().join(" ");
        all.push((document.name.to_string(), document.tokens.iter().map(|token| token.id).collect(), trained));
        true
    })
    .unwrap();
    all
}

#[test]
fn documents_are_shown_as_training_reads_them() {
    let records = records(&[(1, 0), (2, 0), (1, 3)]);
    let rejected = [json!({"messages": [{"role": "user", "content": "a"}]})];
    let volume = volume(
        DocumentFormat::Chat,
        &[("a.jsonl", &[&lines(&records[..1])[..], b"\n", &lines(&rejected), &lines(&records[1..])].concat())],
    );
    let chat = chat(&volume);
    let documents = shown(&volume.config, 1);
    assert_eq!(
        documents.iter().map(|(name, ..)| &name[..]).collect::<Vec<_>>(),
        ["corpus/a.jsonl:1", "corpus/a.jsonl:4", "corpus/a.jsonl:5"]
    );
    for ((_, ids, _), record) in documents.iter().zip(&records) {
        assert_eq!(*ids, chat.tokens(&Conversation::chat(record).unwrap()).unwrap().ids);
    }
    assert_eq!(documents[2].2, "d a a a [EOT]");
    assert_eq!(shown(&volume.config, 3), documents[2..]);
    // a corpus of texts, and of token ids that another tool wrote
    let ids = little_endian(&[BOS, A, EOS, B, C, EOS], 4);
    let texts =
        TestVolume::new(&[("a.txt", b"a b"), ("b.jsonl", b"{\"text\": \" \"}\n{\"text\": \"c\"}"), ("c.tokens", &ids)]);
    let documents = shown(&texts.config, 1);
    let names: Vec<&str> = documents.iter().map(|(name, ..)| &name[..]).collect();
    assert_eq!(names, ["corpus/a.txt:1", "corpus/b.jsonl:2", "corpus/c.tokens:1", "corpus/c.tokens:2"]);
    assert_eq!(documents.iter().flat_map(|(_, ids, _)| ids.clone()).collect::<Vec<_>>(), texts.ids());
    assert_eq!(documents[0].2, "a b [EOT]");
}
