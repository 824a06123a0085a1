//! Reading on from any place gives what is left.

#[path = "../../tests/common/parquet_file.rs"]
mod parquet_file;

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::settings::{Settings, TokenizerSource};

/// Contents, whether the document ends, where it goes on, bytes done.
type Read = (String, bool, Option<Cursor>, u64);

fn read(corpus: &Corpus, from: Cursor, cut: bool) -> Vec<Read> {
    let mut pieces = Vec::new();
    let each = &mut |piece: Piece| {
        pieces.push((format!("{:?}", piece.content), piece.ends, piece.next, piece.done));
        Ok(())
    };
    corpus.read(from, cut, each).unwrap();
    pieces
}

#[test]
fn reading_goes_on_from_every_place_it_names() {
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

    let settings = Settings {
        root: folder.path().to_owned(),
        cache: folder.path().join("cache"),
        paths: vec!["*".into()],
        text_field: "text".into(),
        sequence_length: 8,
        packing: true,
        evaluation_fraction: 0.0,
        tokenizer: TokenizerSource::Train { vocab_size: 300 },
    };
    let corpus = Corpus::find(&settings).unwrap();
    for cut in [true, false] {
        let all = read(&corpus, Cursor::default(), cut);
        assert_eq!(all.iter().filter(|(_, ends, ..)| *ends).count(), 2 + 3 + 7 + 2 + 1);
        assert_eq!(all.last().unwrap().3, corpus.size());
        assert!(all.is_sorted_by_key(|(.., done)| *done));
        for (index, (_, ends, next, _)) in all.iter().enumerate() {
            assert!(next.is_some() || !ends, "a finished document is a place to go on from");
            if let Some(next) = next {
                assert!(
                    read(&corpus, *next, cut) == all[index + 1..],
                    "after piece {index} of {}, at {next:?}",
                    all.len()
                );
            }
        }
    }
}
