//! Tensors that are read only when they are written, so that copying a model needs memory for one tensor at a time.

use std::borrow::Cow;
use std::cell::RefCell;

use ::safetensors::{Dtype, View};

use crate::error::CheckpointError;

/// Reads the bytes of tensors, by name.
pub(crate) struct TensorReader<'a> {
    read: &'a dyn Fn(&str) -> Result<Vec<u8>, CheckpointError>,
    /// The first read error. [`View::data`] can't return an error, so it returns no data and stores the error here.
    failed: RefCell<Option<CheckpointError>>,
}

/// One tensor of a [`TensorReader`].
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

    /// A view of the tensor `name`. The bytes are read as `dtype`.
    pub(crate) fn view(&'a self, name: &'a str, dtype: Dtype, shape: &'a [usize]) -> (String, LazyTensor<'a>) {
        (name.to_owned(), LazyTensor { reader: self, name, dtype, shape })
    }

    /// The stored read error, if any; otherwise `written`, the result of writing the views.
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
