//! A query to the cluster's name server, as a pod sends it.

use std::io;
use std::net::UdpSocket;
use std::time::Duration;

use super::place::ADDRESS;

/// Whether the server at `server` (port 53) knows an address of `name`.
///
/// # Errors
/// If the server does not answer within a second.
pub(crate) fn resolves(server: &str, name: &str) -> io::Result<bool> {
    let socket = UdpSocket::bind((ADDRESS, 0))?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    socket.connect((server, 53))?;
    socket.send(&question(name))?;
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer)?;
    Ok(has_record(&answer[..length]))
}

/// Returns a query by RFC 1035: a header with one question, the name, type A, class IN.
fn question(name: &str) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// Whether the answer's response code is 0, and the answer has a record.
fn has_record(answer: &[u8]) -> bool {
    matches!(answer, [_, _, _, flags, _, _, high, low, ..] if flags & 0x0f == 0 && [*high, *low] != [0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read() {
        let mut answer = question("kubernetes.default.svc.cluster.local");
        (answer[2], answer[3], answer[7]) = (0x85, 0x80, 1);
        assert!(has_record(&answer));
        answer[3] = 0x83; // the response code of a name that does not exist
        assert!(!has_record(&answer));
        (answer[3], answer[7]) = (0x80, 0);
        assert!(!has_record(&answer));
    }
}
