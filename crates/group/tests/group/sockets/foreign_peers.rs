//! Foreign programs on either end of the control port.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use stagecoach_group::{GroupError, GroupTimeouts, StepRules};

use super::support::{SHORT_TIMEOUT, TEST_TIMEOUT, coordinator, form, hello, join, join_at, timeouts};

/// The answer of the port to `bytes`, until it closes the connection.
fn answer(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => answer.extend_from_slice(&buffer[..count]),
            Ok(_) => return answer,
            Err(error) => {
                // Unread bytes on the other side turn a close into a reset.
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                return answer;
            }
        }
    }
}

#[test]
fn foreign_clients_get_a_notice_and_do_not_disturb_the_group() {
    let timeouts = GroupTimeouts { heartbeat_timeout: SHORT_TIMEOUT, ..timeouts() };
    let (coordinator, address) = coordinator(3, timeouts);
    let half_open: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let mut slow = TcpStream::connect(&address).unwrap();
    slow.write_all(b"stgc").unwrap();
    coordinator.release(Vec::new(), StepRules::default());
    let stages = join_at(&vec![address.clone(); 3], timeouts);
    form(&stages);

    let http = answer(&address, b"GET /status HTTP/1.1\r\nHost: here\r\n\r\n");
    assert!(String::from_utf8(http).unwrap().starts_with("This is the control port of a Stagecoach job"));
    answer(&address, &[0xff; 4096]);
    // A hello above the size limit, and one that can't be decoded, end the connection.
    let preamble = [&b"stgcoach"[..], &2u32.to_le_bytes()].concat();
    assert_eq!(answer(&address, &[&preamble[..], &u32::MAX.to_le_bytes()].concat()), preamble);
    assert_eq!(answer(&address, &[&preamble[..], &3u32.to_le_bytes(), b"???"].concat()), preamble);
    // A client of another version gets this one's preamble.
    let newer = [&b"stgcoach"[..], &3u32.to_le_bytes()].concat();
    assert_eq!(answer(&address, &newer), preamble);

    // Silent clients are disconnected after the timeout.
    for mut stream in half_open.into_iter().chain([slow]) {
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let mut message = String::new();
        stream.read_to_string(&mut message).unwrap();
        assert!(message.is_empty() || message.starts_with("This is the control port"), "{message}");
    }
    assert_eq!(coordinator.failure(), None);
    for stage in &stages {
        assert!(stage.failures.try_recv().is_err());
    }
}

/// The error of joining a server that sends `bytes`.
fn join_a_server_that_sends(bytes: &'static [u8]) -> GroupError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(bytes).unwrap();
        // Until the member has read it: a reset could overtake the bytes.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = join(&address, hello(1, 2), timeouts()).unwrap_err();
    server.join().unwrap();
    error
}

#[test]
fn a_member_detects_a_foreign_server() {
    let error = join_a_server_that_sends(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    assert!(matches!(error, GroupError::NotACoordinator { .. }), "{error}");
    assert!(error.to_string().contains("it began with \"HTTP/1.1 400\""), "{error}");
    let error = join_a_server_that_sends(b"stgcoach\x09\0\0\0");
    assert!(error.to_string().contains("version 9 of the control protocol, this stage version 2"), "{error}");
}

#[test]
fn an_unreachable_coordinator_is_reported_after_the_timeout() {
    let reserved = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = reserved.local_addr().unwrap().to_string();
    drop(reserved);
    let short = GroupTimeouts { startup_timeout: Duration::from_millis(200), ..timeouts() };
    for address in [address.as_str(), "no-such-host.invalid:29500"] {
        let error = join(address, hello(1, 2), short).unwrap_err();
        assert!(matches!(error, GroupError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains(address), "{error}");
    }
}
