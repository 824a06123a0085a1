use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use stagecoach_launcher::JobFolder;
use tempfile::TempDir;

use super::*;
use crate::job_reader::StatusSource;
use crate::live::site;

/// A generous time limit for events that must happen; the tests measure no time.
const DEADLINE: Duration = Duration::from_secs(60);

struct Served {
    address: SocketAddr,
    token: String,
    folder: TempDir,
}

fn serve() -> Served {
    serve_with(LIMITS, 3)
}

fn serve_with(limits: ServerLimits, streams: usize) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let job = JobFolder::open(folder.path(), None).unwrap();
    write_steps(&folder, 3);
    let (listener, token) = (TcpListener::bind("127.0.0.1:0").unwrap(), PageToken::draw().unwrap());
    let served = Served { address: listener.local_addr().unwrap(), token: token.reveal().to_owned(), folder };
    start(listener, router(site(job, StatusSource::Folder, streams), token).unwrap(), limits).unwrap();
    served
}

fn write_steps(folder: &TempDir, steps: u64) {
    let lines = (1..=steps).map(|step| format!("{{\"step\":{step},\"loss\":{step}.5}}\n"));
    std::fs::write(folder.path().join("metrics.jsonl"), lines.collect::<String>()).unwrap();
}

impl Served {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    fn request(&self, head: &str) -> TcpStream {
        let mut stream = self.connect();
        write!(stream, "{head}\r\nHost: x\r\n\r\n").unwrap();
        stream
    }

    /// Returns the status line, and the answer after the status line.
    fn get(&self, path: &str) -> (String, String) {
        answer(self.request(&format!("GET {path} HTTP/1.1\r\nConnection: close")))
    }

    fn page(&self) -> String {
        format!("/{}/", self.token)
    }
}

fn answer(mut stream: TcpStream) -> (String, String) {
    let mut answer = String::new();
    // a connection may be reset after the complete answer
    let _ = stream.read_to_string(&mut answer);
    let (status, rest) = answer.split_once("\r\n").unwrap_or_default();
    (status.to_owned(), rest.to_owned())
}

/// Reads until the answer contains `words`.
fn read_until(stream: &mut TcpStream, words: &str) -> String {
    let (mut answer, mut chunk) = (Vec::new(), [0; 4096]);
    let deadline = Instant::now() + DEADLINE;
    loop {
        let count = stream.read(&mut chunk).unwrap();
        answer.extend_from_slice(&chunk[..count]);
        let text = String::from_utf8_lossy(&answer);
        if text.contains(words) {
            return text.into_owned();
        }
        assert!(count > 0 && Instant::now() < deadline, "no {words:?} in {text}");
    }
}

fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_))
}

#[test]
fn without_the_token_nothing_is_shown_but_health() {
    let served = serve();
    let token = &served.token;
    for path in [
        "/".to_owned(),
        "/events".into(),
        "/page.js".into(),
        "//".into(),
        "/..//".into(),
        format!("/{}/", &token[1..]),
        format!("/{}", &token[1..]),
        format!("/{token}x/"),
        format!("/x/{token}/"),
        format!("/{}/events", token.to_uppercase() + "0"),
        format!("/?token={token}"),
    ] {
        let (status, rest) = served.get(&path);
        assert!(status.contains("404") && rest.contains("open the complete address"), "{path}: {rest}");
        assert!(!rest.contains("3.5"), "{rest}");
    }
    assert!(served.get("/healthz").0.contains("200"));
    let (status, page) = served.get(&served.page());
    assert!(status.contains("200") && page.contains("3.5000"), "{page}");
}

#[test]
fn an_address_without_its_last_slash_leads_to_the_page() {
    let served = serve();
    let (status, rest) = served.get(&format!("/{}", served.token));
    assert!(status.contains("308") && rest.contains(&format!("location: {}\r\n", served.page())), "{status} {rest}");
}

#[test]
fn every_answer_has_the_security_headers_and_only_reads_are_allowed() {
    let served = serve();
    for path in
        [served.page(), served.page() + "page.css", served.page() + "page.js", "/nothing".into(), "/healthz".into()]
    {
        let (_, rest) = served.get(&path);
        for (name, value) in SECURITY_HEADERS {
            assert!(rest.contains(&format!("{name}: {value}\r\n")), "no {name} at {path}: {rest}");
        }
        assert!(rest.contains("content-security-policy: default-src 'none'; script-src 'self';"), "{rest}");
        assert!(rest.contains("form-action 'none';") && !rest.contains("unsafe"), "{rest}");
    }
    for method in ["POST", "PUT", "DELETE"] {
        let (status, _) = answer(served.request(&format!("{method} {} HTTP/1.1\r\nConnection: close", served.page())));
        assert!(status.contains("405"), "{method}: {status}");
    }
}

#[test]
fn a_stream_sends_all_parts_and_then_what_has_changed() {
    let served = serve();
    let mut stream = served.request(&format!("GET {}events?width=400 HTTP/1.1", served.page()));
    let begin = read_until(&mut stream, "event: recoveries\n");
    assert!(begin.contains("text/event-stream") && begin.contains("3.5000") && begin.contains("0 0 400 "), "{begin}");
    write_steps(&served.folder, 9);
    let change = read_until(&mut stream, "9.5000");
    assert!(change.contains("event: figures") && !change.contains("event: checkpoints"), "{change}");
}

#[test]
fn more_streams_than_allowed_are_refused_and_pages_are_still_served() {
    let served = serve_with(ServerLimits { connections: 110, ..LIMITS }, 3);
    let path = format!("GET {}events HTTP/1.1", served.page());
    let mut streams: Vec<TcpStream> = (0..100).map(|_| served.request(&path)).collect();
    let is_refused = |stream: &mut TcpStream| {
        let mut begin = [0; 16];
        stream.read_exact(&mut begin).unwrap();
        String::from_utf8_lossy(&begin).contains("503")
    };
    let refused: Vec<bool> = streams.iter_mut().map(is_refused).collect();
    assert_eq!(refused.iter().filter(|refused| **refused).count(), 97);
    assert!(served.get(&served.page()).0.contains("200"));
    drop(streams);
    let deadline = Instant::now() + DEADLINE;
    while !read_until(&mut served.request(&path), "\r\n").contains("200") {
        assert!(Instant::now() < deadline, "no stream is free again");
    }
}

#[test]
fn connections_that_ask_nothing_are_closed_and_those_that_wait_are_served() {
    let limits = ServerLimits { connections: 2, head_timeout: Duration::from_millis(300), ..LIMITS };
    let served = serve_with(limits, 3);
    let mut idle: Vec<TcpStream> = (0..20).map(|_| served.connect()).collect();
    let mut half = served.connect();
    write!(half, "GET / HTTP/1.1\r\nHos").unwrap();
    assert!(served.get(&served.page()).0.contains("200"));
    assert!(idle.iter_mut().chain([&mut half]).all(is_closed));
}

#[test]
fn a_reader_that_takes_nothing_loses_its_connection() {
    let served = serve_with(ServerLimits { connections: 1, stalled_reader: Duration::from_millis(500), ..LIMITS }, 3);
    let mut stuck = served.connect();
    let request = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", served.page()).repeat(100);
    // the loop ends when all buffers are full or the server has closed the connection
    stuck.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    while stuck.write_all(request.as_bytes()).is_ok() {}
    assert!(served.get(&served.page()).0.contains("200"), "the only connection is free again");
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let served = serve();
    let mut stream = served.connect();
    // the server may close the connection during this write
    let _ = write!(stream, "GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(4 * CONNECTION_BUFFER_BYTES));
    let (status, rest) = answer(stream);
    assert!(status.is_empty() || status.contains("414") || status.contains("431"), "{status} {rest}");
    let (status, _) = served.get(&served.page());
    assert!(status.contains("200"), "{status}");
}
