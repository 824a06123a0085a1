//! Reading from any cursor gives the rest of the corpus.

#[path = "../../tests/data/common/parquet_file.rs"]
mod parquet_file;

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::config::{DataConfig, TokenizerSource};

/// Contents, whether the document ends, where reading can resume, bytes read.
type ReadPiece = (String, bool, Option<Cursor>, u64);

fn read(corpus: &Corpus, from: Cursor, may_split: bool) -> Vec<ReadPiece> {
    let mut pieces = Vec::new();
    let on_piece = &mut |piece: Piece| {
        pieces.push((format!("{:?}", piece.content), piece.is_last, piece.resume_at, piece.bytes_read));
        Ok(())
    };
    corpus.read(from, may_split, on_piece).unwrap();
    pieces
}

#[test]
fn reading_resumes_at_every_cursor() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, contents: &[u8]| fs::write(folder.path().join(name), contents).unwrap();
    let long = "one two  three\r\n".repeat(20_000);
    write("a.txt", long.as_bytes());
    write("b.txt", "x".repeat(200_000).as_bytes());
    write("c.jsonl", format!("{{\"text\": \"é\"}}\n\n{{\"text\": {long:?}}}\n{{\"text\": \"end\"}}").as_bytes());
    write("e.tokens", &vec![7; 100_000]);
    write("f.u16", &[1, 2, 3, 4]);
    write("g.txt", b"");
    let rows: Vec<String> = (0..7).map(|row| format!("row {row}")).collect();
    let rows: Vec<Option<&str>> = rows.iter().map(|row| Some(row.as_str())).collect();
    parquet_file::parquet(&folder.path().join("d.parquet"), "text", &rows);

    let config = DataConfig {
        volume_root: folder.path().to_owned(),
        cache_root: folder.path().join("cache"),
        paths: vec!["*".into()],
        text_field: "text".into(),
        sequence_length: 8,
        packing: true,
        evaluation_fraction: 0.0,
        evaluation_max_sequences: None,
        tokenizer: TokenizerSource::Train { vocab_size: 300 },
    };
    let corpus = Corpus::find(&config).unwrap();
    for may_split in [true, false] {
        let all = read(&corpus, Cursor::default(), may_split);
        assert_eq!(all.iter().filter(|(_, is_last, ..)| *is_last).count(), 2 + 3 + 7 + 2 + 1);
        assert_eq!(all.last().unwrap().3, corpus.size());
        assert!(all.is_sorted_by_key(|(.., bytes_read)| *bytes_read));
        for (index, (_, is_last, resume_at, _)) in all.iter().enumerate() {
            assert!(resume_at.is_some() || !is_last, "reading can resume after every document");
            if let Some(cursor) = resume_at {
                assert!(
                    read(&corpus, *cursor, may_split) == all[index + 1..],
                    "after piece {index} of {}, at {cursor:?}",
                    all.len()
                );
            }
        }
    }
}
