//! Reads a range of a file on the hub, as a stream that resumes after a broken connection.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use ureq::BodyReader;
use ureq::http::HeaderMap;

use crate::digest::Digest;
use crate::error::HubError;
use crate::file::CommitFile;
use crate::headers::{content_range, etag};
use crate::http::{HubResponse, broken, header};
use crate::hub::Hub;
use crate::retry::{HubRetry, RequestFailure};
use crate::status::{self, RequestSubject};
use crate::url::Url;

/// The reader of a range of a file.
pub(crate) struct RangeReader {
    hub: Arc<Hub>,
    source: CommitFile,
    rest: Range<u64>,
    body: Option<OpenBody>,
    /// The server that sent the most recent bytes; empty before the first answer.
    host: String,
    retry: HubRetry,
}

/// The body of an answer, while it is read.
struct OpenBody {
    bytes: BodyReader<'static>,
    url: Url,
    /// The number of bytes before the range that are still to be skipped. A server that ignores ranges sends the file
    /// from its beginning.
    skip: u64,
    /// Whether the body ends at the end of the range.
    ends: bool,
}

impl RangeReader {
    pub(crate) fn new(hub: Arc<Hub>, source: CommitFile, range: Range<u64>) -> RangeReader {
        let retry = hub.retry();
        RangeReader { hub, source, rest: range, body: None, host: String::new(), retry }
    }

    /// Returns the server that sent the most recent bytes; empty before the first answer.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Reads at least one byte of the range into `buffer`. Connects first if there is no body.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, RequestFailure> {
        let body = match &mut self.body {
            Some(body) => body,
            None => {
                let body = self.connect()?;
                self.host = body.url.host().to_owned();
                self.body.insert(body)
            }
        };
        let broke = |reason: String| HubError::Interrupted { host: body.url.host().to_owned(), reason };
        while body.skip > 0 {
            match io::copy(&mut (&mut body.bytes).take(body.skip), &mut io::sink()) {
                Ok(0) => return Err(broke("it ended early".to_owned()).into()),
                Ok(count) => body.skip -= count,
                Err(error) => return Err(broken(&body.url, error).into()),
            }
        }
        let wanted = buffer.len().min(usize::try_from(self.rest.end - self.rest.start).unwrap_or(usize::MAX));
        match body.bytes.read(&mut buffer[..wanted]) {
            Ok(0) => Err(broke(format!("it ended at byte {} of {}", self.rest.start, self.source.file.path)).into()),
            Ok(count) => Ok(count),
            Err(error) => Err(broken(&body.url, error).into()),
        }
    }

    /// Reads the end of the body. The connection is then free for the next range.
    fn finish(&mut self) {
        if let Some(mut body) = self.body.take().filter(|body| body.ends) {
            let _ = body.bytes.read(&mut [0]);
        }
    }

    /// Requests the range from the CDN if a signed URL is known, and from the hub otherwise.
    fn connect(&self) -> Result<OpenBody, RequestFailure> {
        let path = self.source.url_path();
        let signed = self.hub.signed.get(&path);
        let url = match &signed {
            Some(url) => url.clone(),
            None => self.hub.http.url(&path)?,
        };
        let answer = match self.hub.http.get(&url, Some(&self.rest)) {
            Ok(answer) => answer,
            Err(error) => {
                self.hub.signed.forget(&path);
                return Err(error.into());
            }
        };
        if !matches!(answer.status, 200 | 206 | 416) {
            self.hub.signed.forget(&path);
            return Err(self.refused(&answer));
        }
        if let Some(headers) = &answer.hub_headers {
            check(&self.source, headers)?;
        }
        if !answer.is_hub {
            self.hub.signed.remember(path, &answer.url);
        }
        self.body_of(answer)
    }

    fn refused(&self, answer: &HubResponse) -> RequestFailure {
        let CommitFile { repo, commit, file } = &self.source;
        match status::failure(&self.hub.http, answer, RequestSubject { repo, revision: commit, path: &file.path }) {
            RequestFailure::Final(_) if !answer.is_hub => {
                let host = answer.url.host().to_owned();
                RequestFailure::Expired(HubError::SignatureRefused { host, status: answer.status })
            }
            failure => failure,
        }
    }

    /// Checks the range of an answer, and returns the body.
    fn body_of(&self, answer: HubResponse) -> Result<OpenBody, RequestFailure> {
        let size = self.source.file.size;
        let (listed, found) = match answer.status {
            206 => {
                let range = header(&answer.headers, "content-range").and_then(content_range);
                let Some(range) = range.filter(|range| range.start == self.rest.start) else {
                    let reason =
                        format!("it answers a request for the bytes from {} on with another range", self.rest.start);
                    return Err(HubError::Protocol { url: answer.url.public(), reason }.into());
                };
                (size, range.size.unwrap_or(size))
            }
            200 => {
                let length = header(&answer.headers, "content-length").and_then(|length| length.parse().ok());
                (size, length.unwrap_or(size))
            }
            // the status 416 means that the file ends before the range
            _ => (size, self.rest.start),
        };
        if listed != found {
            return Err(contradiction(&self.source, format!("{listed} bytes"), format!("{found} bytes")).into());
        }
        let skip = if answer.status == 200 { self.rest.start } else { 0 };
        Ok(OpenBody { url: answer.url, skip, ends: answer.status == 206, bytes: answer.body.into_reader() })
    }
}

impl Read for RangeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.rest.is_empty() {
            return Ok(0);
        }
        loop {
            match self.receive(buffer) {
                Ok(count) => {
                    self.rest.start += count as u64;
                    self.retry.progressed();
                    if self.rest.is_empty() {
                        self.finish();
                    }
                    return Ok(count);
                }
                Err(failure) => {
                    self.body = None;
                    self.retry.wait(failure)?;
                }
            }
        }
    }
}

/// Compares the hub's headers about a file with the listing.
fn check(source: &CommitFile, headers: &HeaderMap) -> Result<(), HubError> {
    let compare = |what: &str, listed: String, found: &str| match listed == found {
        true => Ok(()),
        false => Err(contradiction(source, format!("{what} {listed}"), format!("{what} {}", found.escape_debug()))),
    };
    if let Some(commit) = header(headers, "x-repo-commit") {
        compare("the commit", source.commit.clone(), commit)?;
    }
    // the entity tag of a mirror is not always a digest: a tag of another form is not compared
    let tag = header(headers, "x-linked-etag").or_else(|| header(headers, "etag")).map(etag);
    if let Some(digest) = tag.and_then(Digest::from_hex) {
        compare("the digest", source.file.digest.to_string(), &digest.to_string())?;
    }
    if let Some(size) = header(headers, "x-linked-size") {
        compare("the size", source.file.size.to_string(), size.trim())?;
    }
    Ok(())
}

fn contradiction(source: &CommitFile, listed: String, found: String) -> HubError {
    HubError::Contradicts { file: Box::new(source.clone()), listed, found }
}
