//! Responses with the bytes of files.

use std::io;
use std::ops::Range;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use futures::stream;

use crate::faults::Faults;
use crate::file::File;
use crate::shared::{ReceivedRequest, status};

const CHUNK: u64 = 64 << 10;
/// The number of chunks that the server sends per second if a fault limits the speed of bodies.
const CHUNKS_PER_SECOND: u64 = 20;

/// Returns the response with the file or the requested range. Applies the faults.
pub(crate) fn file(faults: &mut Faults, request: &ReceivedRequest, file: &File, etag: &str) -> Response {
    let wanted = request.header("range").filter(|_| !faults.ignores_ranges);
    let range = match wanted.map(|range| parse_range(range, file.size)) {
        Some(None) => return status(416, &[("content-range", &format!("bytes */{}", file.size))]),
        Some(range) => range,
        None => None,
    };
    let mut answer = Response::builder().header(ETAG, etag).header(ACCEPT_RANGES, "bytes");
    if let Some(Range { start, end }) = range {
        answer = answer.status(StatusCode::PARTIAL_CONTENT);
        answer = answer.header(CONTENT_RANGE, format!("bytes {start}-{}/{}", end - 1, file.size));
    }
    let range = range.unwrap_or(0..file.size);
    let length = range.end - range.start;
    answer = answer.header(CONTENT_LENGTH, length).header(CONTENT_TYPE, "application/octet-stream");
    let body = match request.method {
        Method::HEAD => Body::empty(),
        _ => Flow::new(faults, file, range).into_body(),
    };
    answer.body(body).expect("an answer")
}

/// Parses `bytes=A-B` or `bytes=A-`. Returns `None` if no byte of the file is in the range, or if `value` has another
/// form.
fn parse_range(value: &str, size: u64) -> Option<Range<u64>> {
    let (start, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    let end = last.parse().map_or(size, |last: u64| size.min(last.saturating_add(1)));
    Some(start.parse().ok()?..end).filter(|range| !range.is_empty())
}

/// The state of a body that the server sends.
struct Flow {
    file: File,
    rest: Range<u64>,
    breaks_at: Option<u64>,
    stalls_at: Option<u64>,
    flipped_byte: Option<u64>,
    bytes_per_second: Option<u64>,
}

impl Flow {
    fn new(faults: &mut Faults, file: &File, range: Range<u64>) -> Flow {
        let length = range.end - range.start;
        Flow {
            file: file.clone(),
            breaks_at: faults.take_truncation(length).map(|at| range.start + at),
            stalls_at: faults.take_stall(length).map(|at| range.start + at),
            flipped_byte: faults.flipped_byte,
            bytes_per_second: faults.bytes_per_second,
            rest: range,
        }
    }

    fn into_body(self) -> Body {
        Body::from_stream(stream::unfold(self, async |mut flow| Some((flow.next().await?, flow))))
    }

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.rest.is_empty() {
            return None;
        }
        let Range { start, end } = self.rest;
        if self.breaks_at == Some(start) {
            // during this wait, the server sends the bytes that precede the break
            tokio::task::yield_now().await;
            return Some(Err(io::Error::other("a planned fault of the test breaks the connection")));
        }
        if self.stalls_at == Some(start) {
            std::future::pending::<()>().await;
        }
        let mut count = CHUNK;
        if let Some(speed) = self.bytes_per_second {
            count = (speed / CHUNKS_PER_SECOND).clamp(1, CHUNK);
            tokio::time::sleep(Duration::from_secs_f64(count as f64 / speed as f64)).await;
        }
        let stops = [self.breaks_at, self.stalls_at].into_iter().flatten().filter(|at| *at > start);
        let next = stops.chain([end, start + count]).min().unwrap_or(end);
        self.rest.start = next;
        let bytes = self.file.read(start, (next - start) as usize);
        Some(Ok(match self.flipped_byte.and_then(|at| usize::try_from(at.checked_sub(start)?).ok()) {
            Some(at) if at < bytes.len() => {
                let mut bytes = bytes.to_vec();
                bytes[at] ^= 1;
                bytes.into()
            }
            _ => bytes,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_without_bytes_is_refused() {
        assert_eq!(parse_range("bytes=2-", 10), Some(2..10));
        assert_eq!(parse_range("bytes=2-99", 10), Some(2..10));
        assert_eq!(["bytes=5-3", "bytes=10-", "bytes=a-"].map(|range| parse_range(range, 10)), [None, None, None]);
    }
}
