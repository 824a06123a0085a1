//! Failures of a corpus in a bucket.

use crate::port::Port;

/// The faults of a hub. A new hub has no faults. A test may change them at any time.
#[derive(Clone, Debug)]
pub struct Faults {
    /// The number of requests that a signed URL serves. The CDN refuses further ones with 403.
    pub requests_per_signature: u32,
    /// Whether bodies of files begin at their first byte, whatever range a request asks for.
    pub ignores_ranges: bool,
    /// The number of bytes of a file's body after which the connection breaks.
    pub truncate_at: Option<u64>,
    /// The number of bodies that are truncated.
    pub truncations: u32,
    /// The offset of a byte that is flipped in every file that has it.
    pub flipped_byte: Option<u64>,
    /// Answers that requests get in place of their usual answers, in order.
    pub answers: Vec<Answer>,
    /// The number of entries on a page of a listing.
    pub page_size: usize,
    /// The number of bytes of a file's body after which no more come.
    pub stall_at: Option<u64>,
    /// The number of bodies that stall.
    pub stalls: u32,
    /// The speed of each body.
    pub bytes_per_second: Option<u64>,
    /// Whether redirects within the hub have a host.
    pub absolute_redirects: bool,
    /// Headers that the hub sends with files in place of its own headers.
    pub headers: Vec<(&'static str, String)>,
}

/// An answer without a body.
#[derive(Clone, Debug)]
pub struct Answer {
    pub(crate) port: Port,
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl Answer {
    /// An answer of the hub.
    pub fn hub(status: u16) -> Answer {
        Answer { port: Port::Hub, status, headers: Vec::new() }
    }

    /// An answer of the CDN.
    pub fn cdn(status: u16) -> Answer {
        Answer { port: Port::Cdn, ..Answer::hub(status) }
    }

    /// The answer with one more header.
    pub fn with(mut self, name: &'static str, value: &str) -> Answer {
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
    /// The answer of a fault to the next request at a port; `None` if the request gets its usual answer.
    pub(crate) fn take_answer(&mut self, port: Port) -> Option<Answer> {
        let next = self.answers.iter().position(|answer| answer.port == port)?;
        Some(self.answers.remove(next))
    }

    /// The bytes of a body of `length` after which it breaks.
    pub(crate) fn take_truncation(&mut self, length: u64) -> Option<u64> {
        take(self.truncate_at, &mut self.truncations, length)
    }

    /// The bytes of a body of `length` after which it stalls.
    pub(crate) fn take_stall(&mut self, length: u64) -> Option<u64> {
        take(self.stall_at, &mut self.stalls, length)
    }
}

fn take(at: Option<u64>, times: &mut u32, length: u64) -> Option<u64> {
    let at = at.filter(|at| *at < length && *times > 0)?;
    *times = times.saturating_sub(u32::from(*times != u32::MAX));
    Some(at)
}
