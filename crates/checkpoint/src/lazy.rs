//! Tensors that are read when they are written: copying a model of any size holds one of them at a time.

use std::borrow::Cow;
use std::cell::RefCell;

use safetensors::{Dtype, View};

use crate::error::CheckpointError;

/// Where the bytes of tensors come from, by name.
pub(crate) struct Source<'a> {
    read: &'a dyn Fn(&str) -> Result<Vec<u8>, CheckpointError>,
    /// A view can't say that it failed: it gives nothing, and says why here.
    failed: RefCell<Option<CheckpointError>>,
}

/// One tensor of a [`Source`].
pub(crate) struct Lazy<'a> {
    source: &'a Source<'a>,
    name: &'a str,
    dtype: Dtype,
    shape: &'a [usize],
}

impl<'a> Source<'a> {
    pub(crate) fn new(read: &'a dyn Fn(&str) -> Result<Vec<u8>, CheckpointError>) -> Source<'a> {
        Source { read, failed: RefCell::new(None) }
    }

    /// A tensor that will be read as `dtype`.
    pub(crate) fn view(&'a self, name: &'a str, dtype: Dtype, shape: &'a [usize]) -> (String, Lazy<'a>) {
        (name.to_owned(), Lazy { source: self, name, dtype, shape })
    }

    /// What came of writing the views: why one could not be read, if so.
    pub(crate) fn outcome<T>(&self, written: Result<T, CheckpointError>) -> Result<T, CheckpointError> {
        self.failed.take().map_or(written, Err)
    }
}

impl View for Lazy<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let failed = |error| {
            self.source.failed.replace(Some(error));
            Cow::Borrowed(&[][..])
        };
        (self.source.read)(self.name).map_or_else(failed, Cow::Owned)
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}
