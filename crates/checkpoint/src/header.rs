//! The header of a safetensors file: names, types and offsets of its tensors. Every field is validated.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use safetensors::Dtype;
use serde::Deserialize;
use serde_json::Value;

use crate::error::{CheckpointError, io};
use crate::volume::FileReader;

/// Maximum length of a header, as in safetensors.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Length of the prefix that gives the header's length as a u64.
const LENGTH_PREFIX_BYTES: u64 = 8;

/// One tensor of a file.
#[derive(Debug)]
pub(crate) struct TensorLocation {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// From the start of the file.
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
}

/// A tensor as the header describes it; offsets are relative to the end of the header.
#[derive(Deserialize)]
struct Info {
    dtype: Dtype,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// Reads and validates the header of the safetensors file `path`.
///
/// # Errors
/// If the header is invalid, or can't be read.
pub(crate) fn read_header(file: &File, path: &Path) -> Result<BTreeMap<String, TensorLocation>, CheckpointError> {
    let wrong = |problem: String| CheckpointError::Content { path: path.to_owned(), problem };
    let read = |offset: u64, buffer: &mut [u8]| FileReader::read_at(file, offset, buffer).map_err(io("read", path));
    let size = file.metadata().map_err(io("read", path))?.len();
    if size < LENGTH_PREFIX_BYTES {
        return Err(wrong(format!("has {size} bytes, too few for a safetensors file")));
    }
    let mut length = [0; LENGTH_PREFIX_BYTES as usize];
    read(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(wrong(format!("announces a header of {length} bytes: it is no safetensors file, or damaged")));
    }
    let start = LENGTH_PREFIX_BYTES + length;
    if start > size {
        return Err(wrong(format!("is cut off in its header: it has {size} bytes, the header ends at {start}")));
    }
    let mut json = vec![0; length as usize];
    read(LENGTH_PREFIX_BYTES, &mut json)?;
    parse(&json, start, size).map_err(wrong)
}

/// Validates the header `json` of a file of `size` bytes whose tensors begin at `start`.
fn parse(json: &[u8], start: u64, size: u64) -> Result<BTreeMap<String, TensorLocation>, String> {
    let header: BTreeMap<String, Value> =
        serde_json::from_slice(json).map_err(|e| format!("has a header that is no JSON object: {e}"))?;
    let mut entries = BTreeMap::new();
    for (name, info) in header {
        if name == "__metadata__" {
            continue;
        }
        let info = serde_json::from_value(info).map_err(|e| format!("has a header that is wrong about {name}: {e}"))?;
        let Info { dtype, shape, data_offsets: (from, to) } = info;
        let end = start.checked_add(to).filter(|&end| from <= to && end <= size);
        if end.is_none() {
            return Err(format!("puts {name} at bytes {from} to {to}, and it holds {}: is it cut off?", size - start));
        }
        let bits = shape.iter().try_fold(dtype.bitsize(), |product, &dim| product.checked_mul(dim));
        let bytes = to - from;
        if bits.is_none_or(|bits| bits % 8 != 0 || (bits / 8) as u64 != bytes) {
            return Err(format!("gives {name} {bytes} bytes, which {dtype:?}{shape:?} does not take"));
        }
        entries.insert(name, TensorLocation { dtype, shape, offset: start + from, bytes: bytes as usize });
    }
    Ok(entries)
}
