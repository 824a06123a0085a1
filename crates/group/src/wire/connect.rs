//! One attempt to connect to another stage, and the options of its socket. The caller repeats failed attempts: the
//! address may belong to a stage that has gone, or a route or a network rule may not exist yet.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// The time limit of an attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// The wait before the next attempt. The wait is short because training can't start until all stages are connected.
pub const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Connects to `address` (`host:port`).
///
/// # Errors
/// If the name has no address, or none of its addresses answers in time.
pub fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Disables Nagle's algorithm, and sets the timeout after which a peer that neither sends nor reads is considered lost.
pub(crate) fn configure(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))
}
