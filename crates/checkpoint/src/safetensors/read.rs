//! Reads the header of a safetensors file without its tensors, and defines lazy tensors. The bytes of a lazy tensor are
//! loaded when the tensor is written to another file. A program that copies a model thus needs memory for only one
//! tensor at a time.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fs::File;
use std::path::Path;

use ::safetensors::tensor::{Metadata, TensorInfo};
use ::safetensors::{Dtype, View};

use crate::error::{CheckpointError, io};
use crate::volume::FileReader;

/// The maximum length of a header in bytes, as in the `safetensors` crate.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The length in bytes of the file's prefix, which holds the header's length as a u64.
const LENGTH_PREFIX_BYTES: u64 = 8;

/// Returns, for each tensor of a file, its name, its type and shape, and the offset of its first byte from the start of
/// the file.
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
        return Err(wrong(format!(
            "announces a header of {length} bytes: it is not a safetensors file, or it is damaged"
        )));
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

/// Reads the bytes of tensors, by name.
pub(crate) struct TensorReader<'a> {
    read: &'a dyn Fn(&str) -> Result<Vec<u8>, CheckpointError>,
    /// The error of a failed read, if any. [`View::data`] can't return an error, so it returns no data and stores the
    /// error here.
    failed: RefCell<Option<CheckpointError>>,
}

/// A view of one tensor, whose bytes a [`TensorReader`] reads on demand.
pub(crate) struct LazyTensor<'a> {
    reader: &'a TensorReader<'a>,
    name: &'a str,
    dtype: Dtype,
    shape: &'a [usize],
}

impl<'a> TensorReader<'a> {
    pub(crate) fn new(read: &'a dyn Fn(&str) -> Result<Vec<u8>, CheckpointError>) -> TensorReader<'a> {
        TensorReader { read, failed: RefCell::new(None) }
    }

    /// Returns a view of the tensor `name`. The function that reads the tensor must return its values as `dtype`.
    pub(crate) fn view(&'a self, name: &'a str, dtype: Dtype, shape: &'a [usize]) -> (String, LazyTensor<'a>) {
        (name.to_owned(), LazyTensor { reader: self, name, dtype, shape })
    }

    /// Returns the stored read error if there is one, and otherwise `written`, the result of writing the views.
    pub(crate) fn finish<T>(&self, written: Result<T, CheckpointError>) -> Result<T, CheckpointError> {
        self.failed.take().map_or(written, Err)
    }
}

impl View for LazyTensor<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let failed = |error| {
            self.reader.failed.replace(Some(error));
            Cow::Borrowed(&[][..])
        };
        (self.reader.read)(self.name).map_or_else(failed, Cow::Owned)
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}
