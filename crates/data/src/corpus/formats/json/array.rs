//! `.json`: the file is an array of JSON objects, and a field of each object holds a document. The elements are
//! numbered from 0, as in Python and jq.

use std::io::BufRead;

use super::{Records, read, text_fields};
use crate::corpus::formats::{Contents, Format};
use crate::error::DataError;

pub(in crate::corpus::formats) const JSON_ARRAY: Format = Format {
    extension: "json",
    description: "an array of JSON objects, each with a document in a field",
    unit: "element",
    first_unit: 0,
    may_be_compressed: true,
    can_be_divided: false,
    hashed_name: "JsonArray",
    contents: Contents::Fields(|file| text_fields(next_element, file)),
    read: |file, options, from, on_piece| read(next_element, file, options, from, on_piece),
};

/// Reads the next element of the array. Between two elements, the reader is before the comma or the closing bracket.
fn next_element(records: &mut Records) -> Result<bool, DataError> {
    let is_first = records.position.offset == 0;
    match (next_byte(records)?, is_first) {
        (None, true) => return Ok(false),
        (Some(b'['), true) => {
            records.reader.consume(1);
            if next_byte(records)? == Some(b']') {
                return end(records);
            }
        }
        (Some(_), true) => return Err(not_an_array(records)),
        (Some(b']'), false) => return end(records),
        (Some(_), false) => records.reader.consume(1), // skips the comma
        (None, false) => return Err(cut_off(records)),
    }
    next_byte(records)?;
    records.record.clear();
    records.start = records.reader.offset();
    let mut scanner = Scanner::default();
    loop {
        let block = records.reader.fill_buf().map_err(records.file.read_failed())?;
        if block.is_empty() {
            return Err(cut_off(records));
        }
        let end = block.iter().position(|&byte| scanner.ends_before(byte));
        let bytes = end.unwrap_or(block.len());
        records.record.extend_from_slice(&block[..bytes]);
        records.reader.consume(bytes);
        records.check_length()?;
        if end.is_some() {
            records.position.offset = records.reader.offset();
            records.position.record += 1;
            return Ok(true);
        }
    }
}

/// A scanner that finds the end of an element without parsing it.
#[derive(Default)]
struct Scanner {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Scanner {
    /// Whether the element ends before `byte`. Otherwise `byte` becomes part of the element.
    fn ends_before(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = self.in_string,
            b'"' => self.in_string = !self.in_string,
            _ if self.in_string => {}
            b',' | b']' if self.depth == 0 => return true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        false
    }
}

/// Returns the next byte that is not white space, without consuming it, or `None` at the end of the file.
fn next_byte(records: &mut Records) -> Result<Option<u8>, DataError> {
    loop {
        let block = records.reader.fill_buf().map_err(records.file.read_failed())?;
        if block.is_empty() {
            return Ok(None);
        }
        let white_space = block.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let found = block.get(white_space).copied();
        records.reader.consume(white_space);
        if found.is_some() {
            return Ok(found);
        }
    }
}

/// Consumes the closing bracket, and checks that only white space follows. Returns false, because the array has ended.
fn end(records: &mut Records) -> Result<bool, DataError> {
    records.reader.consume(1);
    match next_byte(records)? {
        None => Ok(false),
        Some(_) => {
            let (offset, elements) = (records.reader.offset(), records.position.record);
            Err(bad(
                records,
                format!(
                    "continues at byte {offset}, after the end of its array (elements: {elements}): remove the rest, or write all \
                 elements into one array"
                ),
            ))
        }
    }
}

fn cut_off(records: &Records) -> DataError {
    bad(
        records,
        format!("ends in element {}, before the end of its array: copy or write it again", records.next_number()),
    )
}

fn not_an_array(records: &mut Records) -> DataError {
    let found = match next_byte(records) {
        Ok(Some(b'{')) => "an object",
        Ok(Some(b'"')) => "text",
        _ => "something else",
    };
    bad(
        records,
        format!(
            "begins with {found}, and an array of objects was expected: write [{{...}}, {{...}}], or one object in each line of a \
         .jsonl file"
        ),
    )
}

fn bad(records: &Records, problem: String) -> DataError {
    DataError::Invalid { problem: format!("{} {problem}", records.file.path.display()) }
}
