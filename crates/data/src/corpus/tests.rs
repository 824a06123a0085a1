//! Tests that reading from any cursor returns all pieces after the cursor.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tempfile::TempDir;

use super::*;
use crate::config::{DataConfig, TokenizerSource};
use crate::examples::{compressed, example};
use crate::source::{FileStamp, SourceFile, SourceListing};

/// The content of a piece, whether its document ends, the cursor at which reading can resume, and the bytes read.
type ReadPiece = (String, bool, Option<Cursor>, u64);

fn read(corpus: &Corpus, from: Cursor, split: SplitPoints) -> Vec<ReadPiece> {
    let mut pieces = Vec::new();
    let on_piece = &mut |piece: Piece| {
        pieces.push((format!("{:?}", piece.content), piece.is_last, piece.resume_at, piece.bytes_read));
        Ok(())
    };
    corpus.read_until(from, corpus.files.len(), split, on_piece).unwrap();
    pieces
}

/// Returns a folder with files of every format, and the number of their documents.
fn files() -> (TempDir, usize) {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, contents: &[u8]| fs::write(folder.path().join(name), contents).unwrap();
    let long = "one two  three\r\n".repeat(9_000);
    write("no-white-space.txt", "x".repeat(140_000).as_bytes());
    write("empty.txt", b"");
    // the compressed text is longer than one block
    let random: String = (1..9_000).map(|at: u64| format!("{:x}\n", at.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    for extension in ["gz", "zst"] {
        write(&format!("long.txt.{extension}"), &compressed(&[random.as_bytes(), b"end"], extension));
    }
    write("last.jsonl", format!("\n{{\"text\": {long:?}}}\n\n").as_bytes());
    let mut documents = 5;
    let texts = ["row", &long, "", "é", "end"];
    for format in &FORMATS {
        let compressions = if format.may_be_compressed { Compression::ALL.map(Some).to_vec() } else { Vec::new() };
        for compression in [None].into_iter().chain(compressions) {
            for (index, contents) in (example(format.extension).files)(&texts).iter().enumerate() {
                let name = format!("{}-{index}.{}", format.hashed_name, format.extension);
                match compression.map(Compression::extension) {
                    Some(extension) => write(&format!("{name}.{extension}"), &compressed(&[contents], extension)),
                    None => write(&name, contents),
                }
            }
            // without a tokenizer, a file of token ids counts as one document
            documents += if format.is_text() { texts.len() } else { 1 };
        }
    }
    (folder, documents)
}

#[test]
fn reading_resumes_at_every_cursor() {
    let (folder, documents) = files();
    let corpus = corpus_of(&folder, "*");
    for split in [SplitPoints::BeforeWhitespace, SplitPoints::BeforeSpaces, SplitPoints::Never] {
        let all = read(&corpus, Cursor::default(), split);
        assert_eq!(all.iter().filter(|(_, is_last, ..)| *is_last).count(), documents);
        assert_eq!(all.last().unwrap().3, corpus.size());
        assert!(all.is_sorted_by_key(|(.., bytes_read)| *bytes_read));
        for (index, (_, is_last, resume_at, _)) in all.iter().enumerate() {
            assert!(resume_at.is_some() || !is_last, "reading can resume after every document");
            if let Some(cursor) = resume_at {
                assert!(
                    read(&corpus, *cursor, split) == all[index + 1..],
                    "after piece {index} of {}, at {cursor:?}",
                    all.len()
                );
            }
        }
    }
}

fn config_of(folder: &TempDir, name: &str) -> DataConfig {
    DataConfig::new(folder.path(), name, 8, TokenizerSource::Train { vocab_size: 300 })
}

fn corpus_of(folder: &TempDir, name: &str) -> Corpus {
    Corpus::find(&config_of(folder, name)).unwrap()
}

/// A source with files in memory, keyed by their URIs. Each write of a file changes its stamp.
#[derive(Debug, Default)]
struct InMemory(Mutex<BTreeMap<PathBuf, (FileStamp, Vec<u8>)>>);

impl InMemory {
    fn write(&self, path: PathBuf, contents: Vec<u8>) {
        let mut files = self.0.lock().unwrap();
        let changed = files.get(&path).map_or(0, |(stamp, _)| stamp.changed + 1);
        files.insert(path, (FileStamp { size: contents.len() as u64, changed, ..FileStamp::default() }, contents));
    }
}

/// A reader that returns a few bytes at a time, as from a network.
struct Short(io::Cursor<Vec<u8>>);

impl Read for Short {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = into.len().min(1000);
        self.0.read(&mut into[..bytes])
    }
}

impl Source for InMemory {
    fn list(&self, pattern: &str) -> Result<SourceListing, DataError> {
        let files = self.0.lock().unwrap();
        let file = |(path, (stamp, _)): (&PathBuf, &(FileStamp, Vec<u8>))| {
            let name = path.display().to_string();
            SourceFile { path: path.clone(), matched: name.clone(), name, stamp: *stamp, digest: None }
        };
        let matching = files.iter().filter(|(path, _)| path.starts_with(pattern));
        Ok(SourceListing { files: matching.map(file).collect(), folders: Vec::new() })
    }

    fn is_unchanged(&self, file: &SourceFile) -> Result<bool, DataError> {
        Ok(self.0.lock().unwrap()[&file.path].0 == file.stamp)
    }

    fn open(&self, file: &SourceFile, bytes: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let contents = &self.0.lock().unwrap()[&file.path].1;
        let end = contents.len().min(bytes.end as usize);
        Ok(Box::new(Short(io::Cursor::new(contents[(bytes.start as usize).min(end)..end].to_vec()))))
    }
}

/// The files of the second corpus exist only in memory, so a reader that bypasses the source fails.
#[test]
fn a_corpus_is_the_same_from_any_source() {
    let (folder, _) = files();
    let local = corpus_of(&folder, "*");
    let source = Arc::new(InMemory::default());
    for file in &local.files {
        source.write(Path::new("memory://texts").join(&file.name), fs::read(&file.path).unwrap());
    }
    let config = config_of(&folder, "memory://texts");
    let corpus = Corpus::of(&config, |pattern| Ok((source.clone(), source.list(pattern)?))).unwrap();
    let contents = |corpus: &Corpus, split| -> Vec<ReadPiece> {
        // the debug text of token ids ends with the field `file`, which differs between the two sources
        let file = |text: &str| text.split("file: ").next().unwrap_or_default().to_owned();
        let pieces = read(corpus, Cursor::default(), split).into_iter();
        pieces.map(|(text, is_last, resume_at, bytes_read)| (file(&text), is_last, resume_at, bytes_read)).collect()
    };
    for split in [SplitPoints::BeforeWhitespace, SplitPoints::Never] {
        assert!(contents(&corpus, split) == contents(&local, split), "{split:?}");
    }
    let first = &corpus.files[0];
    first.check_unchanged().unwrap();
    source.write(first.path.clone(), b"other".to_vec());
    assert!(matches!(first.check_unchanged(), Err(DataError::Changed { .. })));
}

/// A source that records the requested ranges of bytes.
#[derive(Debug)]
struct Recorded {
    verifies: bool,
    opened: Mutex<Vec<Range<u64>>>,
}

impl Source for Recorded {
    fn list(&self, pattern: &str) -> Result<SourceListing, DataError> {
        let stamp = FileStamp { size: 9, ..FileStamp::default() };
        let digest = Some("etag:9:\"a\"".to_owned());
        let file = SourceFile { path: pattern.into(), name: pattern.into(), matched: pattern.into(), stamp, digest };
        Ok(SourceListing { files: vec![file], folders: Vec::new() })
    }

    fn is_unchanged(&self, _: &SourceFile) -> Result<bool, DataError> {
        Ok(true)
    }

    fn open(&self, _: &SourceFile, bytes: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        self.opened.lock().unwrap().push(bytes.clone());
        Ok(Box::new(&b"one\ntwo\n\n"[bytes.start as usize..bytes.end as usize]))
    }

    fn verifies_whole_files(&self) -> bool {
        self.verifies
    }
}

#[test]
fn only_a_source_that_verifies_files_reads_them_from_their_beginning() {
    for (verifies, asked) in [(true, 0..9), (false, 4..9)] {
        let recorded = Arc::new(Recorded { verifies, opened: Mutex::default() });
        let source: Arc<dyn Source> = recorded.clone();
        let file = source.list("memory://a.txt").unwrap().files.remove(0);
        let file = CorpusFile::new(&source, file, crate::config::DocumentFormat::Text, "text").unwrap();
        let mut text = String::new();
        file.open_at(4).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "two\n\n");
        assert_eq!(*recorded.opened.lock().unwrap(), [asked]);
    }
}

#[test]
fn a_long_text_is_read_in_bounded_pieces() {
    let folder = TempDir::new().unwrap();
    let text = "one two,\n  three.\r\n\r\n".repeat(200_000);
    fs::write(folder.path().join("long.txt"), &text).unwrap();
    fs::write(folder.path().join("long.jsonl"), serde_json::json!({ "text": text }).to_string()).unwrap();
    for name in ["long.txt", "long.jsonl"] {
        for split in [SplitPoints::BeforeWhitespace, SplitPoints::BeforeSpaces] {
            let (mut whole, mut longest) = (String::new(), 0);
            let on_piece = &mut |piece: Piece| {
                let Content::Text(text) = piece.content else { panic!("{name} is text") };
                whole += text;
                longest = longest.max(text.len());
                Ok(())
            };
            corpus_of(&folder, name).read_until(Cursor::default(), 1, split, on_piece).unwrap();
            assert!(whole == text, "{name}");
            assert!(longest <= 2 * pieces::PIECE_BYTES, "{name}, {split:?}: {longest}");
        }
    }
}

#[test]
fn what_must_be_held_whole_and_is_too_long_is_refused() {
    let folder = TempDir::new().unwrap();
    let refusal = |name: &str, split| {
        let read = corpus_of(&folder, name).read_until(Cursor::default(), 1, split, &mut |_| Ok(()));
        read.unwrap_err().to_string()
    };
    let long = "one two ".repeat(pieces::MAX_PIECE_BYTES / 8 + 1);
    fs::write(folder.path().join("spaces.txt"), &long).unwrap();
    fs::write(folder.path().join("spaces.jsonl"), format!("{{\"text\": \"\"}}\n{{\"text\": \"{long}\"}}\n")).unwrap();
    fs::write(folder.path().join("none.txt"), "x".repeat(pieces::MAX_PIECE_BYTES + 1)).unwrap();
    for (name, split, place) in [
        ("spaces.txt", SplitPoints::Never, "spaces.txt has more than 16777216 bytes"),
        ("spaces.jsonl", SplitPoints::Never, "spaces.jsonl, line 2 has more than 16777216 bytes"),
        ("none.txt", SplitPoints::BeforeSpaces, "none.txt has more than 16777216 bytes"),
    ] {
        let message = refusal(name, split);
        assert!(message.contains(place) && message.contains("split it into several documents"), "{message}");
    }
    // reading stops at the size limit of a line, long before the end of this file
    let line = fs::File::create(folder.path().join("endless.jsonl")).unwrap();
    line.set_len(1 << 33).unwrap();
    let message = refusal("endless.jsonl", SplitPoints::BeforeSpaces);
    assert!(message.contains("endless.jsonl, line 1 has more than 67108864 bytes"), "{message}");
    // a file of a few hundred kilobytes decompresses to a gigabyte
    let block = compressed(&[&vec![b' '; 1 << 20]], "gz");
    fs::write(folder.path().join("bomb.json.gz"), [compressed(&[b"[\""], "gz"), block.repeat(1 << 10)].concat())
        .unwrap();
    let message = refusal("bomb.json.gz", SplitPoints::BeforeSpaces);
    assert!(message.contains("bomb.json.gz, element 0 has more than 67108864 bytes"), "{message}");
}
