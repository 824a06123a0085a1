//! `.jsonl`: every line is a JSON object, and one of its fields holds a document.

use std::io::{BufRead, Read};

use super::{MAX_RECORD_BYTES, Records, read, text_fields};
use crate::corpus::formats::{Contents, Format};
use crate::error::DataError;

pub(in crate::corpus::formats) const JSON_LINES: Format = Format {
    extension: "jsonl",
    description: "a JSON object in each line, with a document in a field",
    unit: "line",
    first_unit: 1,
    may_be_compressed: true,
    can_be_divided: false,
    hashed_name: "JsonLines",
    contents: Contents::Fields(|file| text_fields(next_line, file)),
    read: |file, options, from, on_piece| read(next_line, file, options, from, on_piece),
};

fn next_line(records: &mut Records) -> Result<bool, DataError> {
    loop {
        records.record.clear();
        records.start = records.reader.offset();
        let limited = &mut records.reader.by_ref().take(MAX_RECORD_BYTES as u64 + 1);
        limited.read_until(b'\n', &mut records.record).map_err(records.file.read_failed())?;
        records.check_length()?;
        if records.record.is_empty() {
            return Ok(false);
        }
        records.position.offset = records.reader.offset();
        records.position.record += 1;
        if !records.record.trim_ascii().is_empty() {
            return Ok(true);
        }
    }
}
