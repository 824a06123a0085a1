//! The faults of the hub, which simulate the failures of a remote corpus.

use crate::port::Port;

/// The faults of a hub. A new hub has no faults. A test may change them at any time.
#[derive(Clone, Debug)]
pub struct Faults {
    /// The number of requests that the CDN answers for each signed URL. The CDN refuses further requests with 403.
    pub requests_per_signature: u32,
    /// Whether a body starts at the file's first byte even if the request has a range.
    pub ignores_ranges: bool,
    /// The number of bytes of a file's body after which the connection breaks. `None` means that it never breaks.
    pub truncate_at: Option<u64>,
    /// The number of bodies that `truncate_at` truncates. `u32::MAX` means all bodies.
    pub truncations: u32,
    /// The offset of the byte in which the hub flips a bit when it serves a file. Shorter files are intact.
    pub flipped_byte: Option<u64>,
    /// The answers that replace the usual answers to the next requests, in order.
    pub answers: Vec<PlannedAnswer>,
    /// The number of entries on a page of a listing.
    pub page_size: usize,
    /// The number of bytes of a file's body after which the hub sends no more bytes and keeps the connection open.
    /// `None` means that no body stalls.
    pub stall_at: Option<u64>,
    /// The number of bodies that `stall_at` stalls. `u32::MAX` means all bodies.
    pub stalls: u32,
    /// The number of bytes per second of each body. `None` means no limit.
    pub bytes_per_second: Option<u64>,
    /// Whether the URLs of redirects within the hub contain the host.
    pub absolute_redirects: bool,
    /// Headers that the hub adds to its answers to requests for files. They replace usual headers of the same name.
    pub headers: Vec<(&'static str, String)>,
}

/// An answer without a body, which replaces a usual answer.
#[derive(Clone, Debug)]
pub struct PlannedAnswer {
    pub(crate) port: Port,
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl PlannedAnswer {
    /// Returns an answer with this status to a request at the hub's port.
    pub fn hub(status: u16) -> PlannedAnswer {
        PlannedAnswer { port: Port::Hub, status, headers: Vec::new() }
    }

    /// Returns an answer with this status to a request at the CDN's port.
    pub fn cdn(status: u16) -> PlannedAnswer {
        PlannedAnswer { port: Port::Cdn, ..PlannedAnswer::hub(status) }
    }

    /// Returns the answer with one more header.
    pub fn with(mut self, name: &'static str, value: &str) -> PlannedAnswer {
        self.headers.push((name, value.to_owned()));
        self
    }
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            requests_per_signature: u32::MAX,
            ignores_ranges: false,
            truncate_at: None,
            truncations: u32::MAX,
            flipped_byte: None,
            answers: Vec::new(),
            page_size: 1000,
            stall_at: None,
            stalls: u32::MAX,
            bytes_per_second: None,
            absolute_redirects: false,
            headers: Vec::new(),
        }
    }
}

impl Faults {
    /// Removes and returns the answer that replaces the usual answer to the next request at `port`, or returns `None`
    /// if no answer is planned.
    pub(crate) fn take_answer(&mut self, port: Port) -> Option<PlannedAnswer> {
        let next = self.answers.iter().position(|answer| answer.port == port)?;
        Some(self.answers.remove(next))
    }

    /// Returns the number of bytes after which a body of `length` bytes breaks, or `None` if it is complete.
    pub(crate) fn take_truncation(&mut self, length: u64) -> Option<u64> {
        take(self.truncate_at, &mut self.truncations, length)
    }

    /// Returns the number of bytes after which a body of `length` bytes stalls, or `None` if it does not stall.
    pub(crate) fn take_stall(&mut self, length: u64) -> Option<u64> {
        take(self.stall_at, &mut self.stalls, length)
    }
}

fn take(at: Option<u64>, times: &mut u32, length: u64) -> Option<u64> {
    let at = at.filter(|at| *at < length && *times > 0)?;
    *times = times.saturating_sub(u32::from(*times != u32::MAX));
    Some(at)
}
