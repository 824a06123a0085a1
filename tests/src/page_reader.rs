//! A client of a job's live page that acts like a browser: plain HTTP on this machine, and event streams.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::Deadline;

/// The address of a live page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageAddress {
    /// `127.0.0.1` and a port.
    pub host: String,
    /// The path of the page: a slash, the token and a slash.
    pub path: String,
}

impl PageAddress {
    /// Returns the first address in a text, or `None` without one.
    pub fn find(text: &str) -> Option<PageAddress> {
        let (_, rest) = text.split_once("http://127.0.0.1:")?;
        let (port, rest) = rest.split_once('/')?;
        let token = rest.split_once("/\n")?.0;
        Some(PageAddress { host: format!("127.0.0.1:{port}"), path: format!("/{token}/") })
    }

    /// Returns the address as the command printed it.
    pub fn url(&self) -> String {
        format!("http://{}{}", self.host, self.path)
    }

    fn request(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        stream.set_read_timeout(Some(Deadline::start().limit())).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.host).unwrap();
        stream
    }

    /// Sends a GET request, and returns the head and the body of the answer.
    pub fn get(&self, path: &str) -> (String, String) {
        let mut answer = String::new();
        self.request(path).read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    /// Opens the event stream of the page with this query, which may be empty.
    pub fn follow(&self, query: &str) -> Follower {
        let stream = BufReader::new(self.request(&format!("{}events{query}", self.path)));
        Follower { stream, parts: BTreeMap::new(), bytes: 0 }
    }
}

/// An open event stream and the current parts of the page.
#[derive(Debug)]
pub struct Follower {
    stream: BufReader<TcpStream>,
    /// The parts of the page by id.
    pub parts: BTreeMap<String, String>,
    /// The number of bytes read from the stream.
    pub bytes: usize,
}

impl Follower {
    /// Reads the stream until `condition` returns a value for the parts of the page. Returns that value.
    ///
    /// # Panics
    /// If `condition` returns no value before the deadline. The message names `what`.
    pub fn until<T>(&mut self, what: &str, mut condition: impl FnMut(&BTreeMap<String, String>) -> Option<T>) -> T {
        let deadline = Deadline::start();
        loop {
            if let Some(value) = condition(&self.parts) {
                return value;
            }
            assert!(!deadline.is_over(), "waited for {what}: {:#?}", self.parts);
            self.read_event(what);
        }
    }

    fn read_event(&mut self, what: &str) {
        let (mut name, mut data) = (None, String::new());
        loop {
            let mut line = String::new();
            let count = self.stream.read_line(&mut line).unwrap_or(0);
            assert!(count > 0, "the stream has ended; waited for {what}: {:#?}", self.parts);
            self.bytes += count;
            let line = line.trim_end();
            if let Some(event) = line.strip_prefix("event: ") {
                name = Some(event.to_owned());
            } else if let Some(text) = line.strip_prefix("data: ") {
                data += text;
            } else if line.is_empty() {
                // a comment, which keeps the connection open, has no event name
                self.parts.extend(name.take().map(|name| (name, data)));
                return;
            }
        }
    }
}
