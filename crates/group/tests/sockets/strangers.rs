//! Programs that are not ours, on either end of the port.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use stagecoach_group::{GroupError, Rules, Timing};

use crate::support::{PATIENCE, coordinator, form, hello, join, join_at, timing};

/// What the port answers to `bytes`, until it hangs up.
fn answer(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => answer.extend_from_slice(&buffer[..count]),
            Ok(_) => return answer,
            Err(error) => {
                // What was left unread on the other side turns a close into a reset.
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                return answer;
            }
        }
    }
}

#[test]
fn foreign_clients_get_a_sentence_and_disturb_nobody() {
    let timing = Timing { heartbeat_timeout: Duration::from_millis(1500), ..timing() };
    let (coordinator, address) = coordinator(3, timing);
    let half_open: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let mut slow = TcpStream::connect(&address).unwrap();
    slow.write_all(b"stgc").unwrap();
    coordinator.release(Vec::new(), Rules::default());
    let stages = join_at(&vec![address.clone(); 3], timing);
    form(&stages);

    let http = answer(&address, b"GET /status HTTP/1.1\r\nHost: here\r\n\r\n");
    assert!(String::from_utf8(http).unwrap().starts_with("This is the control port of a Stagecoach job"));
    answer(&address, &[0xff; 4096]);
    // A hello that claims to be huge is not waited for, nor is one that can't be decoded.
    let preamble = [&b"stgcoach"[..], &1u32.to_le_bytes()].concat();
    assert_eq!(answer(&address, &[&preamble[..], &u32::MAX.to_le_bytes()].concat()), preamble);
    assert_eq!(answer(&address, &[&preamble[..], &3u32.to_le_bytes(), b"???"].concat()), preamble);
    // Another version learns which one this is.
    let newer = [&b"stgcoach"[..], &2u32.to_le_bytes()].concat();
    assert_eq!(answer(&address, &newer), preamble);

    // The silent ones are dropped in time.
    for mut stream in half_open.into_iter().chain([slow]) {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).unwrap();
        assert!(told.is_empty() || told.starts_with("This is the control port"), "{told}");
    }
    assert_eq!(coordinator.failure(), None);
    for stage in &stages {
        assert!(stage.failures.try_recv().is_err());
    }
}

/// A server that says `bytes` to whoever comes, and how a member takes it.
fn joining_a_server_that_says(bytes: &'static [u8]) -> GroupError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(bytes).unwrap();
        // Until the member has understood: a reset could overtake what was said.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = join(&address, hello(1, 2), timing()).unwrap_err();
    server.join().unwrap();
    error
}

#[test]
fn a_member_knows_a_foreign_server() {
    let error = joining_a_server_that_says(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    assert!(matches!(error, GroupError::Foreign { .. }), "{error}");
    assert!(error.to_string().contains("it began with \"HTTP/1.1 400\""), "{error}");
    let error = joining_a_server_that_says(b"stgcoach\x09\0\0\0");
    assert!(error.to_string().contains("version 9 of the control protocol, this stage version 1"), "{error}");
}

#[test]
fn nobody_there_is_said_after_the_deadline() {
    let reserved = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = reserved.local_addr().unwrap().to_string();
    drop(reserved);
    let short = Timing { startup: Duration::from_millis(200), ..timing() };
    for address in [address.as_str(), "no-such-host.invalid:29500"] {
        let error = join(address, hello(1, 2), short).unwrap_err();
        assert!(matches!(error, GroupError::NotReached { .. }), "{error}");
        assert!(error.to_string().contains(address), "{error}");
    }
}
