//! Reads objects, and resumes after a broken connection.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use futures::StreamExt;
use stagecoach_remote::Retry;

use crate::bucket::{Bucket, Chunks};
use crate::error::ObjectError;
use crate::object::Object;
use crate::retry::wait_to_retry;

/// A reader of a range of an object's bytes. The reader sends no request before the first read.
pub(crate) struct ObjectReader {
    bucket: Arc<Bucket>,
    object: Object,
    /// The range that the reader has not received yet.
    range: Range<u64>,
    /// The connection that receives the bytes; `None` before the first connection and after a broken one.
    chunks: Option<Chunks>,
    /// The received bytes that the caller has not read yet.
    chunk: Bytes,
    retry: Retry,
}

impl ObjectReader {
    pub(crate) fn new(bucket: Arc<Bucket>, object: Object, range: Range<u64>) -> ObjectReader {
        let retry = bucket.retry();
        ObjectReader { bucket, object, range, chunks: None, chunk: Bytes::new(), retry }
    }

    /// Receives the next bytes.
    fn next_chunk(&mut self) -> Result<Bytes, ObjectError> {
        let Range { start, end } = self.range;
        let chunks = match self.chunks.take() {
            Some(chunks) => chunks,
            None => self.bucket.chunks(&self.object, start, end)?,
        };
        let next = self.bucket.wait_for(self.chunks.insert(chunks).next());
        let odd = |reason: &str| ObjectError::Unreadable { uri: self.object.uri.clone(), reason: reason.to_owned() };
        match next {
            Some(Ok(chunk)) if chunk.len() as u64 > end - start => Err(odd("more bytes came than the object has")),
            Some(Ok(chunk)) => Ok(chunk),
            Some(Err(error)) => Err(self.bucket.verdict(&error, &self.object.uri.key)),
            None => Err(ObjectError::Interrupted {
                host: self.bucket.uri.to_string(),
                reason: format!("{} bytes before the end", end - start),
            }),
        }
    }
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() && !self.range.is_empty() && !buffer.is_empty() {
            match self.next_chunk() {
                Ok(chunk) => {
                    if !chunk.is_empty() {
                        self.retry.progressed();
                    }
                    self.range.start += chunk.len() as u64;
                    self.chunk = chunk;
                }
                Err(error) => {
                    self.chunks = None;
                    wait_to_retry(&mut self.retry, error)?;
                }
            }
        }
        let count = self.chunk.len().min(buffer.len());
        self.chunk.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}
