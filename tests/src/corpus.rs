//! A small corpus that is the same on every machine: sentences from a vocabulary of 200 words. A linear congruential
//! generator draws the words.

use std::fmt::Write;
use std::path::Path;

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::writer::SerializedFileWriter;

/// Draws pseudo-random numbers. The constants are Knuth's for MMIX.
#[derive(Debug)]
pub struct Draws(pub u64);

impl Draws {
    /// Returns the next number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn word(draws: &mut Draws) -> String {
    const SYLLABLES: [&str; 12] = ["ka", "lo", "mi", "ren", "su", "tal", "vo", "wen", "xi", "yor", "zu", "be"];
    // as in a natural language, some words are much more frequent than others: here the words with small indices
    let mut index = draws.below(200).min(draws.below(200)) + 1;
    let mut word = String::new();
    while index > 0 {
        word += SYLLABLES[(index % 12) as usize];
        index /= 12;
    }
    word
}

/// Returns `documents` documents of 1 to `longest` words.
fn texts(documents: usize, longest: u64, seed: u64) -> Vec<String> {
    let mut draws = Draws(seed);
    let mut text = |_| {
        let words: Vec<String> = (0..=draws.below(longest)).map(|_| word(&mut draws)).collect();
        words.join(" ") + "."
    };
    (0..documents).map(&mut text).collect()
}

/// Returns `documents` documents of 1 to `longest` words, one document a line.
pub fn jsonl(documents: usize, longest: u64, seed: u64) -> String {
    let mut lines = String::new();
    for text in texts(documents, longest, seed) {
        writeln!(lines, "{{\"text\": \"{text}\"}}").unwrap();
    }
    lines
}

/// Returns the documents of [`jsonl`] as a Parquet file with ten rows in each row group. A second column, `id`,
/// contains the same texts.
///
/// # Panics
/// If the file can't be written.
pub fn parquet(documents: usize, longest: u64, seed: u64) -> Vec<u8> {
    let schema = "message rows { required binary text (utf8); required binary id (utf8); }";
    let schema = parquet::schema::parser::parse_message_type(schema).unwrap();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema.into(), Default::default()).unwrap();
    let texts: Vec<ByteArray> = texts(documents, longest, seed).iter().map(|text| text.as_str().into()).collect();
    for texts in texts.chunks(10) {
        let mut rows = writer.next_row_group().unwrap();
        while let Some(mut column) = rows.next_column().unwrap() {
            column.typed::<ByteArrayType>().write_batch(texts, None, None).unwrap();
            column.close().unwrap();
        }
        rows.close().unwrap();
    }
    writer.into_inner().unwrap()
}

/// Writes the default corpus of [`crate::TestJob`].
pub fn write(workspace: &Path) {
    std::fs::create_dir_all(workspace.join("corpus")).unwrap();
    std::fs::write(workspace.join("corpus/small.jsonl"), jsonl(400, 40, 7)).unwrap();
}

/// Returns a new workspace with the corpus.
pub fn workspace() -> tempfile::TempDir {
    let workspace = tempfile::tempdir().unwrap();
    write(workspace.path());
    workspace
}
