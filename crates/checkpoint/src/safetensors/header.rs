//! Reading the header of a safetensors file without its tensors.

use std::fs::File;
use std::path::Path;

use ::safetensors::tensor::{Metadata, TensorInfo};

use crate::error::{CheckpointError, io};
use crate::volume::FileReader;

/// Maximum length of a header, as in safetensors.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Length of the prefix that gives the header's length as a u64.
const LENGTH_PREFIX_BYTES: u64 = 8;

/// The tensors of a file by name, with the offset of their first byte from the start of the file.
pub(crate) fn read_header(file: &File, path: &Path) -> Result<Vec<(String, TensorInfo, u64)>, CheckpointError> {
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
    let header: Metadata = serde_json::from_slice(&json)
        .map_err(|error| wrong(format!("has an invalid safetensors header ({error}): write or copy it again")))?;
    let (found, expected) = (size - start, header.data_len() as u64);
    if found != expected {
        let problem = format!("holds {found} bytes of tensors, and its header describes {expected}: is it cut off?");
        return Err(wrong(problem));
    }
    let located = |(name, info): (String, &TensorInfo)| (name, info.clone(), start + info.data_offsets.0 as u64);
    Ok(header.tensors().into_iter().map(located).collect())
}
